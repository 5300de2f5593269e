"""A forked child as the owner sees it, from announcement to settlement: its descriptors, and what is known of it."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from typing import Protocol

import trio

from proctor_supervisor import frames, messages


class PipeReader(Protocol):
    """Who reads the pipes of a child while it runs an attempt."""

    def read(self, descriptor: int) -> bool:
        """Read what is there; False at the end of that pipe."""


class Child:
    """One child.

    `ended` is set when it is proven gone (`settlement`, or `orphaned_at` when the supervisor died first), and also
    when that could not be proven in time (`unconfirmed`).
    """

    __slots__ = (
        "attempt_id", "attempts", "beat", "ended", "err", "frames", "let_go_at", "number", "orphaned_at", "out", "pid",
        "pidfd", "reader", "settlement", "task", "unconfirmed",
    )  # fmt: skip

    def __init__(self, number: int, pid: int, descriptors: list[int], *, payload_limit: int) -> None:
        task, self.beat, self.out, self.err, self.pidfd = descriptors
        self.number = number
        self.pid = pid
        self.task = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, task)
        self.frames = frames.FrameReader(limit=payload_limit)
        self.ended = trio.Event()
        self.settlement: messages.Settled | None = None
        self.orphaned_at: float | None = None
        self.unconfirmed = False
        self.attempts = 0
        self.let_go_at = math.inf  # CLOCK_MONOTONIC
        self.attempt_id = ""
        self.reader: PipeReader | None = None  # while it runs an attempt

    @property
    def pipes(self) -> tuple[int, int, int]:
        """Where it says something besides its outcome: heartbeats, stdout, stderr."""
        return self.beat, self.out, self.err

    @property
    def is_gone(self) -> bool:
        """Whether it is proven gone."""
        return self.settlement is not None or self.orphaned_at is not None

    def end(self) -> None:
        """Wake whoever awaits the end, also a task that is parked on the socket."""
        self.ended.set()
        if self.task.fileno() != -1:
            trio.lowlevel.notify_closing(self.task)

    def let_go(self) -> None:
        """Have an idle child exit: the end of its socket tells it to."""
        self.expect_exit()
        with contextlib.suppress(OSError):
            self.task.shutdown(socket.SHUT_RDWR)

    def expect_exit(self) -> None:
        """Note that it is about to exit by itself, and is to be killed if it does not."""
        self.let_go_at = time.monotonic()

    def close(self) -> None:
        """Give all descriptors back; safe to repeat."""
        if self.task.fileno() != -1:
            self.task.close()
            for descriptor in (self.beat, self.out, self.err, self.pidfd):
                os.close(descriptor)
