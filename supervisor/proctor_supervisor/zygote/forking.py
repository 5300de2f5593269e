"""Forking one standby child: its channels, its notice board, and what each process keeps of them.

Owns which descriptor goes where. The child's own set-up is `proctor_supervisor.child.entry`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from proctor_supervisor.board import Board
from proctor_supervisor.child import entry


@dataclass(slots=True)
class Born:
    """A forked child as the zygote sees it. `for_owner` travels to the owner and is then closed here."""

    pid: int
    board: Board
    dump: int
    for_owner: list[int]


def fork_child(*, bounds: entry.Bounds) -> Born:
    """Fork a standby child. Raises OSError when the system has no room for one; nothing is left open then."""
    opened: list[int] = []
    board = Board()
    try:
        ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        opened += (ours, theirs)
        for _ in range(4):
            opened += os.pipe2(os.O_CLOEXEC)
        beat_read, beat_write, out_read, out_write, err_read, err_write, dump_read, dump_write = opened[2:]
        # A beat must never block its handler; the reading ends belong to event loops.
        for end in (beat_write, beat_read, out_read, err_read, dump_read, ours):
            os.set_blocking(end, False)
        zygote = os.getpid()
        pid = os.fork()
    except OSError:
        for end in opened:
            os.close(end)
        board.close()
        raise
    if pid == 0:
        entry.enter(
            entry.Channels(task=theirs, beat=beat_write, out=out_write, err=err_write, dump=dump_write),
            board,
            zygote=zygote,
            bounds=bounds,
        )
    board.hide_from_later_forks()
    for end in (theirs, beat_write, out_write, err_write, dump_write):
        os.close(end)
    return Born(pid, board, dump_read, [ours, beat_read, out_read, err_read, os.pidfd_open(pid)])
