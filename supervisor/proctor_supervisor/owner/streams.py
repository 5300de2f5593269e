"""Reading what running children say besides their result: heartbeats and captured output.

Owns one epoll set for all children, so that a child costs no task and no wake-up while it is silent, and a chatty one
costs a bounded rate of wake-ups. Reading never blocks; a reader that is late loses nothing but old heartbeats.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import trio

from proctor_supervisor import frames
from proctor_supervisor.owner.link import Child

_COALESCE_SECONDS = 0.005
_READ = 65536
_LINES_MOST = 500  # of one reading; a handler can write some ten million lines a second, and each costs a callback
_READS_MOST = 16  # as much as a pipe can be made to hold; whoever writes faster than this side reads must not hold it


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
        self._readers: dict[int, Callable[[], bool]] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self.read_all()
            await trio.sleep(_COALESCE_SECONDS)  # a rate, not a wait: more may arrive meanwhile and is read at once

    def read_all(self) -> None:
        """Read whatever is there; what fits a pipe is taken whole."""
        for descriptor, _ in self._epoll.poll(0):
            reader = self._readers.get(descriptor)
            if reader is not None and not reader():
                self.remove(descriptor)

    def add_child(self, child: Child) -> None:
        """Read the pipes of `child` from now on, by whoever runs an attempt on it."""
        self.add(child.beat, lambda: child.on_beat() if child.on_beat is not None else _discard(child.beat))
        self.add(child.out, lambda: child.on_out() if child.on_out is not None else _discard(child.out))
        self.add(child.err, lambda: child.on_err() if child.on_err is not None else _discard(child.err))

    def remove_child(self, child: Child) -> None:
        """The reverse of `add_child`; call it before the descriptors are closed."""
        for descriptor in (child.beat, child.out, child.err):
            self.remove(descriptor)

    def add(self, descriptor: int, reader: Callable[[], bool]) -> None:
        """Call `reader` whenever `descriptor` has data, until it gives False."""
        self._readers[descriptor] = reader
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Forget `descriptor`; it may be closed then. Safe to repeat."""
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()


def _discard(descriptor: int) -> bool:
    """Drop what an idle child writes: it belongs to no attempt."""
    try:
        return bool(os.read(descriptor, _READ))
    except BlockingIOError:
        return True


class Capture:
    """One output stream, bounded: its head and its tail are kept, the middle is counted."""

    __slots__ = ("_descriptor", "_half", "_head", "_line", "_on_line", "_tail", "dropped")

    def __init__(self, descriptor: int, *, limit: int, on_line: Callable[[str], None] | None) -> None:
        self._descriptor = descriptor
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._line = bytearray()
        self._on_line = on_line
        self.dropped = 0

    def read(self) -> bool:
        """Take what is there; False at the end of the stream."""
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._take(data)
        return True

    def drain(self) -> None:
        """Take all that is left, up to the most a pipe holds: a process that may live on may still be writing."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS_MOST):
                if not (data := os.read(self._descriptor, _READ)):
                    break
                self._take(data)

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

    def _take(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(0, room) :]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self.dropped += surplus
            del self._tail[:surplus]
        if self._on_line is not None:
            self._split(data, self._on_line)

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


class BeatStream:
    """The heartbeat pipe of one attempt: newest wins, each wake-up gives at most one callback."""

    __slots__ = ("_callback", "_descriptor", "_on_any", "_reader", "delivered")

    def __init__(
        self, descriptor: int, callback: Callable[[Heartbeat], None] | None, on_any: Callable[[], None]
    ) -> None:
        self._descriptor = descriptor
        self._reader = frames.BeatReader()
        self._callback = callback
        self._on_any = on_any
        self.delivered = 0

    def read(self) -> bool:
        """Take what is there; False at the end of the stream. Raises FrameError for bytes that are no beats."""
        newest: bytes | None = None
        count = 0
        alive = True
        for _ in range(_READS_MOST):
            try:
                data = os.read(self._descriptor, _READ)
            except BlockingIOError:
                break
            if not data:
                alive = False
                break
            payload, found = self._reader.feed(data)
            if payload is not None:
                newest = payload
                count += found
            if len(data) < _READ:
                break
        if newest is not None:
            self.deliver(newest, superseded=count - 1)
        return alive

    def deliver(self, payload: bytes, *, superseded: int) -> None:
        """Hand one beat to the caller."""
        self.delivered += 1
        self._on_any()
        if self._callback is not None:
            self._callback(Heartbeat(payload, trio.current_time(), superseded))
