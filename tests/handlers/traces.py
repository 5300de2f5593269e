"""Handlers that return, and leave something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import NoReturn


def leave_process() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def leave_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def grow(megabytes: int) -> int:
    return len(bytes(megabytes * 1024 * 1024).replace(b"\0", b"x"))


def fail() -> NoReturn:
    raise ValueError("no")


def kill_later(pid: int) -> None:
    """Arrange for this very process to be killed within the next millisecond or so."""
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def leave_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, 600)


def go_elsewhere(folder: str) -> None:
    os.chdir(folder)


def go_where_nothing_is(folder: str) -> None:
    place = os.path.join(folder, "gone")
    os.mkdir(place)
    os.chdir(place)
    os.rmdir(place)


def hide_new_files() -> None:
    os.umask(0o777)


def become_nobody() -> None:
    os.seteuid(65534)
