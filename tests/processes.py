"""Asking the process table, for tests that kill what they cannot await."""

from __future__ import annotations

import contextlib
import os
import select
import time
import uuid
from pathlib import Path

MARK = "PROCTOR_TEST_MARK"


def new_mark() -> str:
    """Give a value for the environment variable `MARK`; every process started below inherits it."""
    return uuid.uuid4().hex


def marked(mark: str) -> list[int]:
    """Every live process that carries `mark`; zombies are dead."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def await_none(mark: str, *, within: float) -> list[int]:
    """Wait until no process carries `mark`, at most `within` seconds; give those that still do."""
    deadline = time.monotonic() + within
    while left := marked(mark):
        if not wait_for_exit(left[0], within=deadline - time.monotonic()):
            return marked(mark)
    return []


def wait_for_exit(pid: int, *, within: float) -> bool:
    """Wait until the process `pid` has ended, at most `within` seconds."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, within) * 1000))
    finally:
        os.close(pidfd)


def state(pid: int) -> str:
    """The one-letter state of a process, or an empty string when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent(pid: int) -> int:
    """The parent of a process, or 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
