"""Processes that outlived a supervisor process which was itself killed.

Its children die with it, by their parent-death signal; what those had started does not. Every process below a
supervisor carries its mark in the environment, so the owner can find them in the process table, wherever they were
reparented to. A process that cleared its environment escapes; only a cgroup or a pid namespace would hold it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Container, Iterable
from functools import partial

import trio

from proctor_supervisor.owner import aside
from proctor_supervisor.platform import linux

MARK = "PROCTOR_SUPERVISOR"
_PATIENCE = 5.0


def new_mark() -> str:
    """Give a value for the environment variable `MARK` of a new supervisor process."""
    return secrets.token_hex(8)


async def kill_marked(mark: str, *, since: int, spare: Container[int]) -> None:
    """SIGKILL every process with `mark` but those in `spare`, and wait for their ends, at most 5 s.

    Repeats until a look at the whole process table finds none, so that one that was just being forked is found, too.
    None of them started before `since`, in kernel ticks since boot.
    """
    entry = f"{MARK}={mark}".encode()
    with trio.move_on_after(_PATIENCE):
        look = partial(linux.pids_with_environment, entry, since=since)
        while found := [pid for pid in await aside.run(look) if pid not in spare]:
            # Whoever cannot be killed now (it is in an exec, and shows no environment) is found again.
            killed = [pidfd for pid in found if (pidfd := _kill(pid, entry)) is not None]
            try:
                for pidfd in killed:
                    await trio.lowlevel.wait_readable(pidfd)
                    collect(pidfd)
            finally:
                for pidfd in killed:
                    os.close(pidfd)


def collect(pidfd: int) -> None:
    """Take the exit status of an orphan that has ended, where it became a child of this very process.

    That is so when this process is the first one of a container, or a subreaper: nobody else would ever collect it.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


def collect_zombies(zygote: int, children: Iterable[int]) -> None:
    """The same for what had ended before anybody could look at it: it has no environment, but still a session.

    It is in the session of the supervisor process `zygote`, when it was just being forked, or of one of its `children`.
    """
    for pid in linux.zombie_children({zygote, *children}, linux.CHILD_NAME):
        if pid != zygote:  # whoever started it waits for it
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _kill(pid: int, entry: bytes) -> int | None:
    """Kill by pidfd, after making sure that the number still means the process that was found."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if not linux.has_environment(pid, entry):
        os.close(pidfd)
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd
