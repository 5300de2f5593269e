"""Killing a whole process tree, and whatever escapes from one.

Owns the order of kill operations. Every child is a subreaper, so everything it ever started stays below it, sessions
and double forks included. The root is frozen first: while it is frozen it can neither fork nor reap, so no process id
below it can be reused and a scan that finds nothing new has found everything. What was forked in the instant before
the freeze arrives at the zygote when the root dies, and is swept up there.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container
from dataclasses import dataclass

from proctor_supervisor.platform import linux


@dataclass(frozen=True, slots=True)
class Victim:
    """A killed descendant. The pidfd names exactly this process until `close`."""

    pid: int
    started_at: int
    pidfd: int

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return linux.has_ended(self.pidfd)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.pidfd)


def kill_tree(root: int) -> list[Victim]:
    """SIGKILL everything below `root`, then `root`, which must be an unreaped child of this process.

    Returns the descendants; the caller proves that they ended and closes them.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    victims: dict[int, Victim] = {}
    while fresh := [pid for pid in linux.below(root) if pid not in victims]:
        killed = [victim for pid in fresh if (victim := _kill_one(pid)) is not None]
        if not killed:
            break  # only zombies are left
        victims.update((victim.pid, victim) for victim in killed)
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGKILL)
    return list(victims.values())


def kill_strays(known: Container[int]) -> list[Victim]:
    """SIGKILL every child of this process that is not `known`: they were orphaned by a child that is gone."""
    strays = (pid for pid in linux.children_of(os.getpid()) if pid not in known)
    return [victim for pid in strays if (victim := _kill_one(pid)) is not None]


def _kill_one(pid: int) -> Victim | None:
    """Kill one live process by pidfd; None when it has ended already."""
    stat = linux.read_stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return Victim(pid, stat.started_at, pidfd)
