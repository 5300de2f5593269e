"""Handlers that behave: each shows one thing."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from proctor_supervisor import attempt


def echo(value: Any) -> Any:
    return value


def pid() -> int:
    return os.getpid()


def say(out: str, err: str) -> None:
    print(out)
    print(err, file=sys.stderr)


def say_by_descriptor(text: str) -> None:
    os.write(1, text.encode())


def say_in_subprocess(text: str) -> int:
    return subprocess.run(["echo", text], check=True).returncode


def read_stdin() -> str:
    return sys.stdin.read()


def beat(count: int, then: str = "") -> str:
    running = attempt.current()
    assert running is not None
    for number in range(count):
        running.heartbeat(str(number).encode())
    return then


def beat_and_wait(path: str) -> str:
    """Beat once, then wait for the stop notice; the file says how it went."""
    running = attempt.current()
    assert running is not None
    try:
        running.heartbeat(b"started")
        while True:
            running.raise_if_stopped()
            time.sleep(0.002)
    except attempt.AttemptCancelled as stop:
        Path(path).write_text(f"noticed {stop.reason}")
        raise


def sleep_with_cleanup(path: str) -> None:
    try:
        started(path)
        time.sleep(600)
    finally:
        Path(path).write_text("cleaned up")


def started(path: str) -> None:
    """Tell the owner that the handler runs; by output, since a heartbeat would raise when the stop is there already."""
    print(path, flush=True)


def answer_notice_with_result() -> str:
    running = attempt.current()
    assert running is not None
    with contextlib.suppress(attempt.AttemptCancelled):  # the stop may be there before the beat returns
        running.heartbeat(b"started")
    while running.stop_reason is None:
        time.sleep(0.001)
    return "finished anyway"


def sleep(seconds: float) -> str:
    running = attempt.current()
    assert running is not None
    running.heartbeat(b"started")
    time.sleep(seconds)
    return "slept"


def surroundings() -> dict[str, Any]:
    """What the child inherited."""
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    unusual = [
        number
        for number in range(1, 32)
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores the last two
        and signal.getsignal(number) not in (signal.SIG_DFL, None)
    ]
    return {
        "descriptors": descriptors,
        "environment": dict(os.environ),
        "unusual_signals": unusual,
        "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "modules": sorted(sys.modules),
        "threads": threading.active_count(),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "session": os.getsid(0) == os.getpid(),
        "core_limit": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "cwd": os.getcwd(),
    }


def leave_daemon_behind() -> int:
    """Return while a double-forked process in a session of its own lives on; give its pid."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            time.sleep(600)
        os._exit(0)
    os.close(write)
    os.wait()
    return int(os.read(read, 64))


def leave_thread_behind() -> str:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "returned"


def blob(size: int) -> str:
    return "x" * size


def unlisted_socket() -> socket.socket:
    return socket.socket()


def beat_for(seconds: float, interval: float) -> str:
    running = attempt.current()
    assert running is not None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        running.heartbeat(b"")
        time.sleep(interval)
    return "beaten"


class Carrier:
    def __init__(self, number: int) -> None:
        self.number = number

    def double(self) -> int:
        return self.number * 2


def answer_notice_late(seconds: float) -> str:
    answer_notice_with_result()
    time.sleep(seconds)
    return "finished late"
