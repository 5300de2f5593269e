"""Killing a whole process tree, and whatever escapes from one.

Owns the order of kill operations. Every child is a subreaper, so everything it ever started stays below it, sessions
and double forks included. The root is frozen first: while it is frozen it can neither fork nor reap, so no process id
below it can be reused and a scan that finds nothing new has found everything. What was forked in the instant before
the freeze arrives at the zygote when the root dies, and is swept up there.

No descriptor is kept per process, so that a tree of any size can be killed: a process is its number and its start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from proctor_supervisor.platform import linux

_SCAN_SECONDS = 0.5
"""The longest scan for processes that are still forked; what it misses dies with the group or is swept up."""


class Victim(NamedTuple):
    """A killed descendant. `started_at` (kernel ticks since boot) and `pid` together name one process for good."""

    pid: int
    started_at: int

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        stat = linux.read_stat(self.pid)
        return stat is None or stat.started_at != self.started_at or stat.has_ended


class Victims:
    """Everything that was killed below one child, and what of it is not yet known to have ended."""

    __slots__ = ("_living", "everyone")

    def __init__(self) -> None:
        self.everyone: dict[Victim, None] = {}
        self._living: dict[int, Victim] = {}

    def add(self, victims: Iterable[Victim]) -> None:
        """Take in what was killed; one that is known already is not counted twice."""
        fresh = [victim for victim in victims if victim not in self.everyone]
        self.everyone.update(dict.fromkeys(fresh))
        self._living.update((victim.pid, victim) for victim in fresh)

    def wait_for(self, pid: int) -> bool:
        """Whether `pid` was killed and is not yet known to have ended."""
        return pid in self._living

    def have_ended(self) -> bool:
        """Whether all of them run no more."""
        while self._living and next(reversed(self._living.values())).has_ended():
            self._living.popitem()
        return not self._living


def kill_tree(root: int) -> list[Victim]:
    """SIGKILL everything below `root`, then `root`, which must be an unreaped child of this process.

    Returns the descendants; the caller proves that they ended.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    victims: dict[int, Victim] = {}
    until = time.monotonic() + _SCAN_SECONDS
    while fresh := [pid for pid in linux.below(root) if pid not in victims]:
        killed = [victim for pid in fresh if (victim := _kill_one(pid)) is not None]
        victims.update((victim.pid, victim) for victim in killed)
        if not killed or time.monotonic() > until:
            break  # only zombies are left, or somebody forks faster than he is found
    # The group goes at once, with whoever is being forked in it; outside it is what left the child's session.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it had not yet come to make its own group
        os.kill(root, signal.SIGKILL)
    return list(victims.values())


def kill_strays(children: Iterable[int], is_known: Callable[[int], bool]) -> list[Victim]:
    """SIGKILL each of this process's `children` that is not known: they were orphaned by a child that is gone."""
    strays = (pid for pid in children if not is_known(pid))
    return [victim for pid in strays if (victim := _kill_one(pid)) is not None]


def end_all() -> None:
    """Kill and reap every process below this one; it starts no more itself."""
    while children := linux.children_of(os.getpid()):
        kill_strays(children, lambda _pid: False)
        for _ in children:
            os.waitpid(-1, 0)


def orphaned_here(children: Iterable[int], is_living_child: Callable[[int], bool]) -> set[int]:
    """Every process below this one, which has these `children`, that is in no living child's tree."""
    found = [pid for pid in children if not is_living_child(pid)]
    return {*found, *(below for pid in found for below in linux.below(pid))}


def _kill_one(pid: int) -> Victim | None:
    """Kill one live process by pidfd, so that it cannot be another one; None when it has ended already.

    One that may not be killed (``sudo`` made it another user's) is given, too: until it ends, nothing is proven.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        stat = linux.read_stat(pid)
        if stat is None or stat.has_ended:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return Victim(pid, stat.started_at)
