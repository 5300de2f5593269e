"""The bytes between the owner and one child, for one attempt: the task out; result, heartbeats and output in.

Owns the child's socket and pipes while the attempt runs, and what was wrong with what came out of them. What the
attempt has come to is decided in `settling`; that the child is gone is known to `link`.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from proctor_supervisor import bulk, frames
from proctor_supervisor.options import SupervisorOptions
from proctor_supervisor.outcome import CapturedOutput, Outcome, StopReason
from proctor_supervisor.owner import settling
from proctor_supervisor.owner.link import Child
from proctor_supervisor.owner.streams import BeatStream, Capture, Heartbeat, OutputLine

_T = TypeVar("_T")
_RECEIVE = 64 * 1024  # larger buffers are mapped anew by the allocator for each call
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)


class Exchange:
    """One attempt's traffic. `on_breach` is called when the child must be killed at once, with the reason."""

    def __init__(
        self,
        child: Child,
        serial: int,
        options: SupervisorOptions,
        attempt_id: str,
        on_heartbeat: Callable[[Heartbeat], None] | None,
        on_output: Callable[[OutputLine], None] | None,
        on_breach: Callable[[str], None],
        on_beat: Callable[[], None],
    ) -> None:
        self._child = child
        self._serial = serial
        self._on_breach = on_breach
        self._reader = frames.FrameReader(limit=options.max_payload_bytes)
        self.delivery: settling.Delivery | None = None
        self.breach: str | None = None
        self.started_at = time.monotonic()
        self._flushed = False
        self._lost_descriptor = False
        self._callback_error: Exception | None = None
        self._descriptors: list[int] = []
        self._beats = BeatStream(child.beat, None if on_heartbeat is None else self._guarded(on_heartbeat), on_beat)
        hand_on = None if on_output is None else self._guarded(on_output)
        limit = options.output_limit
        self._out = Capture(
            child.out,
            limit=limit,
            on_line=None if hand_on is None else lambda text: hand_on(OutputLine(attempt_id, "stdout", text)),
        )
        self._err = Capture(
            child.err,
            limit=limit,
            on_line=None if hand_on is None else lambda text: hand_on(OutputLine(attempt_id, "stderr", text)),
        )

    def _guarded(self, callback: Callable[[_T], None]) -> Callable[[_T], None]:
        """Keep a broken callback from breaking every other attempt: its error ends this one."""

        def call(value: _T) -> None:
            if self._callback_error is not None:
                return
            try:
                callback(value)
            except Exception as exc:  # noqa: BLE001 - raised by `conclude`, where its owner awaits it
                self._callback_error = exc
                self._on_breach(f"a callback of the attempt raised {type(exc).__name__}")

        return call

    def begin(self) -> None:
        """Read the child's pipes from now on, until `end`."""
        self._child.on_beat, self._child.on_out, self._child.on_err = self._read_beats, self._out.read, self._err.read

    def end(self) -> None:
        """Leave the child's pipes alone."""
        self._child.on_beat = self._child.on_out = self._child.on_err = None

    async def send(self, body: bytes, *, last: bool) -> None:
        """Write the task; a child that dies meanwhile is told by its settlement, not here."""
        flags = frames.LAST if last else 0
        shared: int | None = None
        if len(body) > bulk.THRESHOLD:
            with contextlib.suppress(OSError):  # no memory or descriptor to be had: the socket does it, too
                shared = await trio.to_thread.run_sync(bulk.put, body)
        if shared is None:
            await self._write(frames.pack(frames.Kind.TASK, body, limit=len(body), flags=flags))
            return
        try:
            header = frames.pack_shared(frames.Kind.TASK, len(body), flags=flags)
            # A fresh header always fits the socket of an idle child.
            with contextlib.suppress(OSError):
                socket.send_fds(self._child.task, [header], [shared])
        finally:
            os.close(shared)

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._child.ended.is_set():
            try:
                rest = rest[self._child.task.send(rest) :]
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_writable(self._child.task)
                except trio.ClosedResourceError:
                    return
            except OSError:
                return

    async def receive(self) -> None:
        """Read until the child has delivered, or is gone, or has written bytes that are no frame."""
        try:
            # To wait first and read then costs one call less: no handler is faster than the way back here.
            while not self._child.ended.is_set():
                try:
                    await trio.lowlevel.wait_readable(self._child.task)
                except trio.ClosedResourceError:
                    break
                if not self._read_frames():
                    break
            if self.delivery is None and self.breach is None:
                self._read_frames()
            await self._take_shared()
        finally:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()

    def _read_frames(self) -> bool:
        """Take what is there; False when there is nothing more to expect."""
        while True:
            try:
                data, ancillary, flags, _ = self._child.task.recvmsg(_RECEIVE, _ONE_DESCRIPTOR)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._keep_descriptors(ancillary)
            self._lost_descriptor |= bool(flags & socket.MSG_CTRUNC)
            if not data:
                return False
            try:
                if len(self._descriptors) > 1:
                    raise frames.FrameError("more than one descriptor")  # noqa: TRY301
                for frame in self._reader.feed(data):
                    if frame.kind is frames.Kind.TASK:
                        raise frames.FrameError("a task frame")  # noqa: TRY301 - the same breach, the same end
                    if frame.kind is frames.Kind.BEAT:
                        if self._flushed:
                            raise frames.FrameError("a second flushed heartbeat")  # noqa: TRY301
                        self._flushed = True
                        self._read_beats()  # what went by the pipe is older
                        self._beats.deliver(frame.body, superseded=0)
                    else:
                        self.delivery = settling.Delivery(frame, time.monotonic())
                        return False
            except frames.FrameError as exc:
                self._note_breach(f"the child wrote bytes that are no result: {exc}")
                return False

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                self._descriptors.extend(descriptors)

    async def _take_shared(self) -> None:
        """Read a result that came in shared memory, in a thread: it is large."""
        if self.delivery is None or not self.delivery.frame.flags & frames.SHARED:
            return
        frame = self.delivery.frame
        try:
            if self._lost_descriptor:
                raise frames.FrameError(  # noqa: TRY301
                    "a result in shared memory, but this process had no descriptor left to take it; raise its limit "
                    "of open files (ulimit -n)"
                )
            if len(self._descriptors) != 1:
                raise frames.FrameError(f"{len(self._descriptors)} descriptors beside one result")  # noqa: TRY301
            body = await trio.to_thread.run_sync(bulk.take, self._descriptors.pop(), frame.shared)
        except frames.FrameError as exc:
            self.delivery = None
            self._note_breach(f"the child sent {exc}")
        else:
            self.delivery = settling.Delivery(frame._replace(body=body), self.delivery.received_at)

    def _read_beats(self) -> bool:
        try:
            return self._beats.read()
        except frames.FrameError as exc:
            self._note_breach(f"the child wrote bytes that are no heartbeat: {exc}")
            return False

    def _note_breach(self, text: str) -> None:
        self.breach = text
        self._on_breach(text)

    @property
    def returned(self) -> bool:
        """Whether the handler returned, in a child that stays."""
        return (
            self.delivery is not None
            and self.delivery.frame.kind is frames.Kind.RESULT
            and not self.delivery.frame.flags & frames.LAST
            and self.breach is None
            and self._callback_error is None
        )

    def conclude(self, *, asked: tuple[StopReason, str] | None) -> Outcome:
        """Decide the outcome; the child is gone, or stays idle. Raises what a callback raised."""
        child = self._child
        if child.is_gone:
            self._read_beats()
            self._out.drain()
            self._err.drain()
        self._out.finish()
        self._err.finish()
        if self._callback_error is not None:
            raise self._callback_error
        facts = settling.Facts(
            serial=self._serial,
            pid=child.pid,
            started_at=self.started_at,
            ended_at=time.monotonic(),
            settlement=child.settlement,
            delivery=self.delivery,
            breach=self.breach,
            asked=asked,
            output=CapturedOutput(self._out.text, self._err.text, self._out.dropped + self._err.dropped),
            delivered_beats=self._beats.delivered,
        )
        return settling.decide(facts) if child.is_gone else settling.decide_alive(facts)
