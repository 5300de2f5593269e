"""Handlers that do their worst."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from proctor_supervisor import attempt


def _announce(*pids: int) -> None:
    running = attempt.current()
    assert running is not None
    with contextlib.suppress(attempt.AttemptCancelled):
        running.heartbeat(",".join(str(pid) for pid in pids).encode())


def swallow_everything() -> NoReturn:
    """Ignore every signal and swallow every exception; only SIGKILL is left."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    _announce()
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001
            continue


def backtrack() -> object:
    """One C call that holds the GIL for ages."""
    _announce()
    return re.match("(a+)+$", "a" * 60 + "b")


def family() -> NoReturn:
    """Start a child in the group, one in a session of its own, and a double-forked one; never end."""
    group = subprocess.Popen(["sleep", "600"])
    session = subprocess.Popen(["sleep", "600"], start_new_session=True)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    os.wait3(os.WNOHANG)
    daemon = int(os.read(read, 64))
    _announce(group.pid, session.pid, daemon)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(600)


def exit_now(status: int) -> NoReturn:
    os._exit(status)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)


def system_exit() -> NoReturn:
    sys.exit(3)


class TwoArguments(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(left)
        self.right = right


def raise_two_arguments() -> NoReturn:
    raise TwoArguments(1, 2)


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def raise_unshowable() -> NoReturn:
    raise Unshowable


def raise_chained() -> NoReturn:
    try:
        raise KeyError("inner")
    except KeyError as inner:
        raise ValueError("outer") from inner


def raise_group() -> NoReturn:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def raise_long() -> NoReturn:
    raise ValueError("x" * 1_000_000)


def unencodable() -> object:
    return object()


def write_garbage() -> NoReturn:
    """Write bytes that are no frame to the task socket."""
    os.write(3, b"\xff" * 64)
    time.sleep(600)
    os._exit(0)


def announce_endless_result() -> NoReturn:
    os.write(3, struct.pack("<BBxxIIxxxxQ", 2, 0, 0, 0, 1 << 60))
    time.sleep(600)
    os._exit(0)


def send_changeable_memory() -> NoReturn:
    """Announce a result in shared memory that is not sealed."""
    memory = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.truncate(memory, 1 << 20)
    header = struct.pack("<BBxxIIxxxxQ", 2, 3, 0, 0, 1 << 20)
    socket.send_fds(socket.socket(fileno=os.dup(3)), [header], [memory])
    time.sleep(600)
    os._exit(0)


def announce_memory_without_it() -> NoReturn:
    os.write(3, struct.pack("<BBxxIIxxxxQ", 2, 3, 0, 0, 1 << 20))
    time.sleep(600)
    os._exit(0)


def send_a_file_instead() -> NoReturn:
    with open(__file__) as file:
        header = struct.pack("<BBxxIIxxxxQ", 2, 3, 0, 0, 100)
        socket.send_fds(socket.socket(fileno=os.dup(3)), [header], [file.fileno()])
    time.sleep(600)
    os._exit(0)


def die_in_mid_result() -> NoReturn:
    os.write(3, struct.pack("<BBxxIIxxxxQ", 2, 0, 0, 0, 1 << 20) + b"half")
    os._exit(0)


def garbage_heartbeat() -> NoReturn:
    os.write(4, b"\xff" * 64)
    time.sleep(600)
    os._exit(0)


def fork_and_return() -> int:
    """Return in two processes; only one of them is the attempt."""
    return os.fork()


def hold_task_socket_open() -> NoReturn:
    """Leave a forked copy of the task socket behind and die: the end of the stream never comes by itself."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    os._exit(7)


def freeze() -> NoReturn:
    _announce()
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
    os._exit(0)


def chatter(megabytes: int) -> str:
    line = "y" * 1023 + "\n"
    for _ in range(megabytes * 1024):
        sys.stdout.write(line)
    return "said"


def say_nothing_often(megabytes: int) -> None:
    """Write empty lines only."""
    for _ in range(megabytes * 16):
        os.write(1, b"\n" * 65536)


def close_streams() -> str:
    sys.stdout.close()
    return "closed"


def record_and_sleep(path: str) -> NoReturn:
    Path(path).write_text(str(os.getpid()))
    _announce(os.getpid())
    time.sleep(600)
    os._exit(0)


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()
