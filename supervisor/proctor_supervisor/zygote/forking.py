"""Starting one standby child: its channels, its notice board, and what each process keeps of them.

Owns which descriptor goes where. The child's own set-up is `proctor_supervisor.child.setup`.
"""

from __future__ import annotations

import _socket
import fcntl
import json
import mmap
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn, Protocol

from proctor_supervisor.board import Board
from proctor_supervisor.child import entry, setup

if TYPE_CHECKING:
    from proctor_supervisor import messages

_EXEC_ENTRY = os.path.join(os.path.dirname(os.path.abspath(entry.__file__)), "__main__.py")


class Nursery(Protocol):
    """How children begin. `bottom` is the file of the outermost frame of a child's main thread."""

    bottom: str

    def board(self) -> tuple[Board, list[int]]:
        """Make the notice board of the next child, and the descriptors that travel to it beside its channels."""

    def enter(self, channels: setup.Channels, extra: list[int], board: Board, zygote: int) -> NoReturn:
        """Be the child; called in the new process."""


class ForkNursery:
    """Children are copies of this process, and have all it has loaded."""

    def __init__(self, life: entry.Life, *, bottom: str) -> None:
        self._life = life
        self._birth = setup.plan_birth()
        self.bottom = bottom

    def board(self) -> tuple[Board, list[int]]:
        """Make a notice board that the fork hands on."""
        return Board(), []

    def enter(self, channels: setup.Channels, extra: list[int], board: Board, zygote: int) -> NoReturn:
        """Live a child's life."""
        entry.enter(self._life, self._birth, channels, board, zygote)


class ExecNursery:
    """Children are new interpreters, where forking from this process would be unsafe."""

    bottom = _EXEC_ENTRY

    def __init__(self, opening: messages.Open) -> None:
        beginning = {
            "sys_path": opening.sys_path,
            "preload": opening.preload,
            "payload_bytes": opening.max_payload_bytes,
            "growth_bytes": opening.reuse_growth_bytes,
        }
        self._beginning = json.dumps(beginning).encode()
        self._birth = setup.plan_birth()

    def board(self) -> tuple[Board, list[int]]:
        """Make a notice board and a beginning, both in memory that outlives an exec."""
        extra = [_memory("proctor-board", bytes(mmap.PAGESIZE))]
        try:
            extra.append(_memory("proctor-begin", self._beginning))
            return Board(extra[0]), extra
        except OSError:
            _close_all(extra)
            raise

    def enter(self, channels: setup.Channels, extra: list[int], board: Board, zygote: int) -> NoReturn:
        """Become a new interpreter that runs `proctor_supervisor.child.__main__`."""
        try:
            setup.become_child(channels, zygote, self._birth, extra)
            os.execv(sys.executable, [sys.executable, "-I", _EXEC_ENTRY])  # noqa: S606
        except BaseException:  # noqa: BLE001 - nothing may travel up into the zygote's loop, whose stack this still is
            traceback.print_exc()
        finally:
            os._exit(entry.BROKEN_SETUP)


class Born:
    """A new child as the zygote sees it. `for_owner` travels to the owner and is then closed here."""

    __slots__ = ("board", "dump", "for_owner", "pid")

    def __init__(self, pid: int, board: Board, dump: int, for_owner: list[int]) -> None:
        self.pid = pid
        self.board = board
        self.dump = dump
        self.for_owner = for_owner


def start_child(nursery: Nursery, zygote: int) -> Born:
    """Start a standby child of this process, `zygote`.

    Raises OSError when the system has no room for one; nothing is left open then.
    """
    opened: list[int] = []
    board: Board | None = None
    try:
        ours, theirs = _socketpair()
        opened += (ours, theirs)
        beat_read, beat_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # a beat must never block its handler
        opened += (beat_read, beat_write)
        for _ in range(3):
            opened += os.pipe2(os.O_CLOEXEC)
        out_read, out_write, err_read, err_write, dump_read, dump_write = opened[4:]
        for end in (out_read, err_read, dump_read):  # the reading ends belong to event loops
            os.set_blocking(end, False)
        board, extra = nursery.board()
        opened += extra
        channels = setup.Channels(theirs, beat_write, out_write, err_write, dump_write)
        pid = os.fork()
    except OSError:
        _close_all(opened)
        if board is not None:
            board.close()
        raise
    if pid == 0:
        nursery.enter(channels, extra, board, zygote)
    board.hide_from_later_forks()
    _close_all([theirs, beat_write, out_write, err_write, dump_write, *extra])
    for_owner = [ours, beat_read, out_read, err_read]
    try:
        for_owner.append(os.pidfd_open(pid))
    except OSError:
        os.kill(pid, signal.SIGKILL)  # a child without a pidfd could not be proven gone; it is reaped as a stray
        _close_all([*for_owner, dump_read])
        board.close()
        raise
    return Born(pid, board, dump_read, for_owner)


def _socketpair() -> tuple[int, int]:
    """Give a connected pair of sockets as bare descriptors, the first one non-blocking."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    ours.setblocking(False)
    return ours.detach(), theirs.detach()


def _memory(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    # A handler finds the descriptor in its process; shrunk memory would be fatal to whoever reads it here.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
