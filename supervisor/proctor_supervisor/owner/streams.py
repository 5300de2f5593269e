"""Reading what running children say besides their result: heartbeats and captured output.

Owns one epoll set for all children, so that a child costs no task and no wake-up while it is silent, and a chatty one
costs a bounded rate of wake-ups. Reading never blocks; a reader that is late loses nothing but old heartbeats.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import trio

from proctor_supervisor.owner.child import Child

_COALESCE_SECONDS = 0.005
_READ = 65536
_READS_MOST = 16  # as much as a pipe can be made to hold; whoever writes faster than this side reads must not hold it
_LINES_MOST = 500  # of one reading; a handler can write some ten million lines a second, and each costs a callback


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The newest heartbeat of an attempt.

    `received_at` is on Trio's clock, `superseded` counts the beats that this one replaced unseen.
    """

    payload: bytes
    received_at: float
    superseded: int


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line that the attempt wrote to stdout or stderr, without its newline."""

    attempt_id: str
    stream: Literal["stdout", "stderr"]
    text: str


class Streams:
    """The pipes of all children behind one descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._owners: dict[int, Child] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self.read_all()
            await trio.sleep(_COALESCE_SECONDS)  # a rate, not a wait: more may arrive meanwhile and is read at once

    def read_all(self) -> None:
        """Read whatever is there; what fits a pipe is taken whole."""
        for descriptor, _ in self._epoll.poll(0):
            child = self._owners.get(descriptor)
            if child is None:
                continue
            reads_on = _discard(descriptor) if child.reader is None else child.reader.read(descriptor)
            if not reads_on:
                self._remove(descriptor)

    def add_child(self, child: Child) -> None:
        """Read the pipes of `child` from now on, by its `reader` while it has one."""
        for descriptor in child.pipes:
            self._owners[descriptor] = child
            self._epoll.register(descriptor, select.EPOLLIN)

    def remove_child(self, child: Child) -> None:
        """The reverse of `add_child`; call it before the descriptors are closed. Safe to repeat."""
        for descriptor in child.pipes:
            self._remove(descriptor)

    def _remove(self, descriptor: int) -> None:
        if self._owners.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()


def _discard(descriptor: int) -> bool:
    """Drop what an idle child writes: it belongs to no attempt."""
    return read_available(descriptor) != b""


def read_available(descriptor: int) -> bytes | None:
    """Read what a pipe holds, at most 64 KiB; None when that is nothing, empty bytes at its end."""
    try:
        return os.read(descriptor, _READ)
    except BlockingIOError:
        return None


def read_all(descriptor: int) -> Iterator[bytes]:
    """Read what a pipe holds, piece by piece; the last one is empty when that was its end.

    Ends in any case, also when somebody fills the pipe meanwhile.
    """
    for _ in range(_READS_MOST):
        data = read_available(descriptor)
        if data is not None:
            yield data
        if data is None or len(data) < _READ:
            return


class Capture:
    """One output stream, bounded: its head and its tail are kept, the middle is counted."""

    __slots__ = ("_half", "_head", "_line", "_on_line", "_tail", "dropped")

    def __init__(self, *, limit: int, on_line: Callable[[str], None] | None) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._line = bytearray()
        self._on_line = on_line
        self.dropped = 0

    def take(self, data: bytes) -> None:
        """Keep what of `data` there is room for, and hand on the lines that it completes."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(0, room) :]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self.dropped += surplus
            del self._tail[:surplus]
        if self._on_line is not None:
            self._split(data, self._on_line)

    def finish(self) -> None:
        """Hand on the last line if it has no newline; the attempt writes no more."""
        if self._on_line is not None and self._line:
            self._on_line(self._line.decode("utf-8", "replace"))
            self._line.clear()

    @property
    def text(self) -> str:
        """What was kept, with a mark where something was left out."""
        gap = f"\n[{self.dropped} bytes left out]\n".encode() if self.dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")

    def _split(self, data: bytes, on_line: Callable[[str], None]) -> None:
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        for line in lines[:_LINES_MOST]:
            on_line(line.decode("utf-8", "replace"))
        if len(lines) > _LINES_MOST:
            on_line(f"[{len(lines) - _LINES_MOST} lines left out]")
        if len(rest) > self._half:  # a line without end is handed on in pieces
            on_line(rest.decode("utf-8", "replace"))
            rest = b""
        self._line = bytearray(rest)
