"""Handlers that meddle with their own process: its descriptors, limits, signals, streams and the interpreter itself."""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from handlers.hostile import _announce
from proctor_supervisor import attempt
from proctor_supervisor.board import Board

_KEPT: list[Any] = []  # what must outlive its handler


def close_everything() -> str:
    os.closerange(0, 4096)
    return "closed"


def replace_channels_by_files(folder: str) -> str:
    """Close all descriptors, as a daemon does, and open files, which get the numbers of the channels."""
    os.closerange(0, 4096)
    for number in range(6):
        descriptor = os.open(os.path.join(folder, str(number)), os.O_RDWR | os.O_CREAT)
        assert descriptor == number
    running = attempt.current()
    assert running is not None
    running.heartbeat(b"not into a file")
    print("into a file, as asked", flush=True)
    return "not into a file"


def replace_task_socket_by_a_socket(path: str) -> str:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    os.dup2(connection.fileno(), 3)
    return "not into the connection"


def close_heartbeat_pipe() -> str:
    running = attempt.current()
    assert running is not None
    running.heartbeat(b"first")
    os.close(4)
    running.heartbeat(b"second")
    running.heartbeat(b"third")
    return "done"


def use_up_descriptors() -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    try:
        while True:
            _KEPT.append(open("/dev/null"))  # noqa: SIM115
    except OSError:
        return "x" * 400_000  # too much for the socket's way of small results, with no descriptor for another


def forbid_descriptors() -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    return "none"


def forbid_file_sizes() -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return "x" * 400_000


def hold_all_memory() -> NoReturn:
    """Fail for want of memory, with everything still held by the frames of the failure."""
    held = []
    step = 1 << 20
    while True:
        try:
            held.append(bytearray(step))
        except MemoryError:
            if step == 1:
                raise
            step >>= 1


def block_all_signals() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _announce()
    while True:
        time.sleep(600)


def leave_signals_blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def leave_raise_signal_ignored() -> None:
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
        signal.signal(number, signal.SIG_IGN)


def leave_a_raising_signal_handler() -> str:
    def on_alarm(*_: object) -> None:
        raise TimeoutError("too late for anybody")

    signal.signal(signal.SIGALRM, on_alarm)
    return "in time"


class AlarmingCodec:
    """A codec under which the alarm that a handler forgot goes off while its result is encoded."""

    def decode_arguments(self, _payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        return [], {}

    def encode_result(self, value: object) -> bytes:
        os.kill(os.getpid(), signal.SIGALRM)
        return json.dumps(value).encode()


ALARMING = AlarmingCodec()


class _Hopeless:
    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt(name)


def replace_streams() -> str:
    vars(sys).update(stdout=_Hopeless(), stderr=_Hopeless())
    return "replaced"


def delete_builtins() -> str:
    text = "deleted"
    vars(builtins).clear()
    return text


def replace_exit() -> str:
    vars(os)["_exit"] = lambda _status: None
    return "replaced"


def shrink_stack_and_trace() -> str:
    def tracer(*_: object) -> Any:
        return tracer

    sys.settrace(tracer)
    threading.settrace(tracer)
    sys.setrecursionlimit(60)
    return "small"


def stop_instead_of_exiting() -> str:
    """Stand still for ever in a destructor that runs after the result was sent."""
    socket_type: Any = socket.socket
    original = socket_type.sendall

    def sendall(self: socket.socket, data: Any, *rest: Any) -> None:
        original(self, data, *rest)
        os.kill(os.getpid(), signal.SIGSTOP)

    socket_type.sendall = sendall
    return "delivered"


def segfault_for_real() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def flush_endless_heartbeats() -> NoReturn:
    """Write flushed heartbeats to the task socket without end, from several processes."""
    frame = struct.pack("<BBxxIIxxxxQ", 4, 0, 0, 0, 10) + b"x" * 10
    os.fork()
    os.fork()
    while True:
        os.write(3, frame * 1000)


def flood_stack_pipe() -> NoReturn:
    """Write to the pipe of stack dumps without end, from several processes."""
    for _ in range(3):
        if os.fork() == 0:
            while True:
                os.write(5, b"x" * 65536)
    _announce()
    while True:
        try:
            time.sleep(600)
        except BaseException:  # noqa: BLE001
            continue


def send_many_descriptors() -> NoReturn:
    connection = socket.socket(fileno=os.dup(3))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(2)]
    while True:
        for file in files:
            socket.send_fds(connection, [struct.pack("<B", 2)], [file])


def claim_pids_as_kept(pids: list[int]) -> None:
    """Have the notice board say that other processes are this one's, and to be kept."""
    original = Board.keep
    setattr(Board, "keep", lambda self, _pids: original(self, pids))  # noqa: B010


def start_and_return_later(path: str) -> None:
    """Leave a process behind, once `path` exists."""
    _announce(subprocess.Popen(["sleep", "600"]).pid)
    while not Path(path).exists():
        time.sleep(0.001)


def forge_failure(facts: Any) -> NoReturn:
    body = json.dumps(facts).encode()
    os.write(3, struct.pack("<BBxxIIxxxxQ", 3, 1, 0, 0, len(body)) + body)
    os._exit(0)


def shrink_shared_memory() -> list[str]:
    """Try to take the memory away that an exec'd child shares with the supervisor process; say how each try went."""
    said = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "proctor-board" in os.readlink(f"/proc/self/fd/{name}"):
                os.truncate(int(name), 0)
                said.append("shrunk")
        except PermissionError:
            said.append("refused")
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return said


def keep_a_chatterbox() -> int:
    """Leave a process that writes to the captured stdout without end."""
    pid = os.fork()
    if pid == 0:
        while True:
            os.write(1, b"y\n" * 4096)
    return pid


def replace_task_socket_by_a_pair() -> None:
    """Put a connection of the handler's own in the place of the task socket, with nobody at its other end to end it."""
    ours, theirs = socket.socketpair()
    _KEPT.append(theirs)
    os.dup2(ours.fileno(), 3)


def answer_notice_with_noise() -> NoReturn:
    running = attempt.current()
    assert running is not None
    _announce()
    while running.stop_reason is None:
        time.sleep(0.001)
    os.write(3, b"\xff" * 100)
    while True:
        time.sleep(600)


def flush_a_huge_heartbeat() -> str:
    body = b"x" * 1_000_000
    running = attempt.current()
    assert running is not None
    serial = running._board.begun
    with socket.socket(fileno=os.dup(3)) as connection:
        connection.sendall(struct.pack("<BBxxIIIQ", 4, 0, 0, 0, serial, len(body)) + body)
    return "sent"


def replace_channels_by_files_and_stay(folder: str) -> NoReturn:
    os.closerange(3, 64)
    for number in range(3, 7):
        assert os.open(os.path.join(folder, str(number)), os.O_RDWR | os.O_CREAT) == number
    print("replaced", flush=True)
    while True:
        time.sleep(600)


def forget_having_begun(path: str) -> str:
    """Run, and have the notice board say that nothing did."""
    with open(path, "a") as file:
        file.write("ran\n")
    running = attempt.current()
    assert running is not None
    running._board.begin(0)
    return "ran"
