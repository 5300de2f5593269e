"""Starting one standby child: its channels, its notice board, and what each process keeps of them.

Owns which descriptor goes where. The child's own set-up is `proctor_supervisor.child.setup`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import NoReturn

from proctor_supervisor.board import Board
from proctor_supervisor.child import entry, setup

EXEC_ENTRY = os.path.join(os.path.dirname(os.path.abspath(entry.__file__)), "__main__.py")


@dataclass(slots=True)
class Born:
    """A new child as the zygote sees it. `for_owner` travels to the owner and is then closed here."""

    pid: int
    board: Board
    dump: int
    for_owner: list[int]


@dataclass(frozen=True, slots=True)
class Nursery:
    """How children begin: forked from this process, or exec'd when that is unsafe.

    `beginning` is None for forked children, else the JSON text that `proctor_supervisor.child.__main__` reads.
    `bottom` is the file of the outermost frame of a child's main thread.
    """

    bounds: entry.Bounds
    bottom: str
    beginning: bytes | None = None


def start_child(nursery: Nursery) -> Born:
    """Start a standby child. Raises OSError when the system has no room for one; nothing is left open then."""
    opened: list[int] = []
    extra: list[int] = []
    board: Board | None = None
    try:
        ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        opened += (ours, theirs)
        for _ in range(4):
            opened += os.pipe2(os.O_CLOEXEC)
        beat_read, beat_write, out_read, out_write, err_read, err_write, dump_read, dump_write = opened[2:]
        # A beat must never block its handler; the reading ends belong to event loops.
        for end in (beat_write, beat_read, out_read, err_read, dump_read, ours):
            os.set_blocking(end, False)
        if nursery.beginning is None:
            board = Board()
        else:
            extra.append(_memory("proctor-board", bytes(mmap.PAGESIZE)))
            extra.append(_memory("proctor-begin", nursery.beginning))
            board = Board(extra[0])
        zygote = os.getpid()
        pid = os.fork()
    except OSError:
        for end in (*opened, *extra):
            os.close(end)
        if board is not None:
            board.close()
        raise
    if pid == 0:
        channels = setup.Channels(task=theirs, beat=beat_write, out=out_write, err=err_write, dump=dump_write)
        if nursery.beginning is None:
            entry.enter(channels, board, zygote=zygote, bounds=nursery.bounds)
        _exec(channels, extra, zygote=zygote)
    board.hide_from_later_forks()
    for end in (theirs, beat_write, out_write, err_write, dump_write, *extra):
        os.close(end)
    return Born(pid, board, dump_read, [ours, beat_read, out_read, err_read, os.pidfd_open(pid)])


def _memory(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    # A handler finds the descriptor in its process; shrunk memory would be fatal to whoever reads it here.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def _exec(channels: setup.Channels, extra: list[int], *, zygote: int) -> NoReturn:
    try:
        setup.become_child(channels, zygote=zygote, extra=extra)
        os.execv(sys.executable, [sys.executable, "-I", EXEC_ENTRY])  # noqa: S606
    except BaseException:  # noqa: BLE001 - nothing may travel up into the zygote's loop, whose stack this still is
        traceback.print_exc()
    finally:
        os._exit(entry.BROKEN_SETUP)
