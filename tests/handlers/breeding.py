"""Handlers that multiply, hide below themselves, or turn against what is above them."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from typing import Any, NoReturn

from handlers.hostile import _announce

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _SYS_EXIT, _PTRACE_TRACEME = 1, 36, 60, 0


def _for_ever() -> NoReturn:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(600)


def many(count: int) -> int:
    """Return while `count` processes live on."""
    for _ in range(count):
        if os.fork() == 0:
            _for_ever()
    return count


def hop(*, own_session: bool) -> NoReturn:
    """Keep one process alive that forks and exits all the time, so that its number is never the one just seen."""
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            if own_session:
                os.setsid()
    _announce()
    _for_ever()


def _leave_main_thread() -> None:
    _LIBC.syscall(_SYS_EXIT, 0)


def headless_process() -> NoReturn:
    """Keep a process whose main thread has ended while another runs on: the process table calls it a zombie."""
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=_for_ever).start()
        _leave_main_thread()
    _wait_for_zombie(pid)
    _announce(pid)
    _for_ever()


def lose_own_head() -> None:
    """Do the same to the child itself."""
    threading.Thread(target=_announce_headless).start()
    _leave_main_thread()


def _announce_headless() -> None:
    _wait_for_zombie(os.getpid())
    _announce(os.getpid())
    _for_ever()


def _wait_for_zombie(pid: int) -> None:
    while True:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                return
        time.sleep(0.001)


def daemonise_past_the_child() -> NoReturn:
    """Resign as a subreaper first, so that the daemon is not below this process any more."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            _for_ever()
        os._exit(0)
    os.wait()
    _announce(int(os.read(read, 64)))
    _for_ever()


def with_multiprocessing(method: str, *, then_return: bool) -> list[int]:
    """Start processes with `multiprocessing`, and return or run on."""
    context: Any = multiprocessing.get_context(method)
    started = [context.Process(target=time.sleep, args=(600,)) for _ in range(2)]
    for process in started:
        process.start()
    pids = [process.pid for process in started if process.pid is not None]
    _announce(*pids)
    if not then_return:
        _for_ever()
    return pids


def below_each_other(depth: int) -> NoReturn:
    """A chain of processes, each in a session of its own below the one before."""
    root = os.getpid()
    read, write = os.pipe()
    level = 0
    while level < depth and os.fork() == 0:
        level += 1
        os.setsid()
        os.write(write, f"{os.getpid()},".encode())
    if level == depth:
        os.write(write, b"end")
    if os.getpid() == root:
        collected = b""
        while not collected.endswith(b"end"):
            collected += os.read(read, 4096)
        _announce(*(int(pid) for pid in collected.decode().split(",")[:-1]))
    _for_ever()


def signal_parent(number: int) -> str:
    """Send a signal to the supervisor process."""
    os.kill(os.getppid(), number)
    return "sent"


def signal_parent_and_stay(number: int) -> NoReturn:
    os.kill(os.getppid(), number)
    _for_ever()


def survive_parent() -> NoReturn:
    """Take off the parent-death signal, then kill the parent."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    os.kill(os.getppid(), signal.SIGKILL)
    _for_ever()


def kill_own_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    _for_ever()


def be_traced() -> NoReturn:
    """Make the supervisor process the tracer, and stand still in a stop that it is told of."""
    _LIBC.ptrace(_PTRACE_TRACEME, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    _for_ever()


def become_another_program() -> NoReturn:
    _announce()
    os.execvp("sleep", ["sleep", "600"])


def in_a_stopped_group() -> NoReturn:
    """Freeze a descendant in a group of its own."""
    frozen = subprocess.Popen(["sleep", "600"], process_group=0)
    os.kill(frozen.pid, signal.SIGSTOP)
    _announce(frozen.pid)
    _for_ever()
