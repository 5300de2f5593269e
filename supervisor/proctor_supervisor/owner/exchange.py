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
from typing import Literal, TypeVar

import trio

from proctor_supervisor import bulk, frames
from proctor_supervisor.options import SupervisorOptions, Task
from proctor_supervisor.outcome import NO_OUTPUT, CapturedOutput, Completed, Outcome
from proctor_supervisor.owner import aside, settling
from proctor_supervisor.owner.child import Child
from proctor_supervisor.owner.events import EventHub
from proctor_supervisor.owner.orders import Orders
from proctor_supervisor.owner.streams import Capture, Heartbeat, OutputLine, read_all, read_available
from proctor_supervisor.reasons import StopReason

_T = TypeVar("_T")
_RECEIVE = 64 * 1024  # larger buffers are mapped anew by the allocator for each call
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)
_TRUNCATED = int(socket.MSG_CTRUNC)  # plain numbers: to combine enumeration members takes microseconds
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)


class Exchange:
    """One attempt's traffic. A child that breaks the rules is killed by `orders`, at once.

    What a silent handler does not need is made only when the first byte of it arrives.
    """

    __slots__ = (
        "_beat_reader", "_callback_error", "_child", "_descriptors", "_err", "_flushed", "_hub", "_lost_descriptor",
        "_on_heartbeat", "_on_output", "_orders", "_out", "_output_limit", "_task", "breach", "delivered_beats",
        "delivery", "serial", "started_at", "was_refused",
    )  # fmt: skip

    def __init__(
        self,
        child: Child,
        serial: int,
        task: Task,
        options: SupervisorOptions,
        orders: Orders,
        hub: EventHub,
        on_heartbeat: Callable[[Heartbeat], None] | None,
        on_output: Callable[[OutputLine], None] | None,
    ) -> None:
        self._child = child
        self.serial = serial
        self._task = task
        self._orders = orders
        self._hub = hub
        self._on_heartbeat = on_heartbeat
        self._on_output = on_output
        self._output_limit = options.output_limit
        self._flushed = False
        self._lost_descriptor = False
        self._callback_error: Exception | None = None
        self._descriptors: list[int] | None = None
        self._beat_reader: frames.BeatReader | None = None
        self._out: Capture | None = None
        self._err: Capture | None = None
        self.delivered_beats = 0
        self.delivery: settling.Delivery | None = None
        self.breach: str | None = None
        self.was_refused = False  # the child was gone before it had the whole task, so it began nothing of it
        self.started_at = time.monotonic()
        child.reader = self

    def end(self) -> None:
        """Leave the child's pipes alone."""
        self._child.reader = None

    # -- out ------------------------------------------------------------------------------------------------

    async def send(self, body: bytes, flags: int) -> None:
        """Write the task; a child that dies meanwhile is told by its settlement, not here."""
        if len(body) > bulk.THRESHOLD:
            with contextlib.suppress(OSError):  # no memory or descriptor to be had: the socket does it, too
                await self._send_shared(body, flags)
                return
        data = frames.pack(frames.Kind.TASK, body, limit=len(body), flags=flags)
        try:
            sent = self._child.task.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.was_refused = True
            return
        if sent < len(data):
            await self._send_rest(memoryview(data)[sent:])

    async def _send_shared(self, body: bytes, flags: int) -> None:
        shared = await aside.run(lambda: bulk.put(body))
        try:
            header = frames.pack_shared(frames.Kind.TASK, len(body), flags=flags)
            # A fresh header always fits the socket of an idle child.
            try:
                socket.send_fds(self._child.task, [header], [shared])
            except OSError:
                self.was_refused = True
        finally:
            os.close(shared)

    async def _send_rest(self, rest: memoryview) -> None:
        while rest and not self._child.ended.is_set():
            try:
                await trio.lowlevel.wait_writable(self._child.task)
                rest = rest[self._child.task.send(rest) :]
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                break
        self.was_refused = bool(rest)

    # -- in: the outcome ------------------------------------------------------------------------------------

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
                while self._read_frames():
                    continue
            if self.delivery is not None and self.delivery.frame.flags & frames.SHARED:
                await self._take_shared(self.delivery)
        finally:
            if self._descriptors is not None:
                for descriptor in self._descriptors:
                    os.close(descriptor)
                self._descriptors = None

    def _read_frames(self) -> bool:
        """Take what one read gives; False when there is nothing more to expect, or nothing there now."""
        try:
            data, ancillary, flags, _ = self._child.task.recvmsg(_RECEIVE, _ONE_DESCRIPTOR, _CLOSE_ON_EXEC)
        except BlockingIOError:
            return not self._child.ended.is_set()
        except OSError:
            return False
        if ancillary or flags & _TRUNCATED:
            self._keep_descriptors(ancillary)
            self._lost_descriptor |= bool(flags & _TRUNCATED)
        if not data:
            return False
        try:
            if self._descriptors is not None and len(self._descriptors) > 1:
                raise frames.FrameError("more than one descriptor")  # noqa: TRY301
            for frame in self._child.frames.feed(data):
                self._take_frame(frame)
            if self.delivery is not None and self._child.frames.partial:
                raise frames.FrameError("bytes after its outcome")  # noqa: TRY301 - the same breach, the same end
        except frames.FrameError as exc:
            self.delivery = None
            self._note_breach(f"the child wrote bytes that are no result: {exc}")
            return False
        return self.delivery is None

    def _take_frame(self, frame: frames.Frame) -> None:
        """Take one frame in. Raises FrameError for one that the child may not send now."""
        if self.delivery is not None:
            raise frames.FrameError("a frame after its outcome")
        if frame.kind == frames.Kind.TASK:
            raise frames.FrameError("a task frame")
        if not frames.is_of(frame, self.serial):
            raise frames.FrameError("an outcome of another attempt")
        if frame.kind == frames.Kind.BEAT:
            if self._flushed:
                raise frames.FrameError("a second flushed heartbeat")
            self._flushed = True
            self._read_beats()  # what went by the pipe is older
            self._deliver_beat(frame.body, superseded=0)
        else:
            self.delivery = settling.Delivery(frame, time.monotonic())

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        if self._descriptors is None:
            self._descriptors = []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                self._descriptors.extend(descriptors)

    async def _take_shared(self, delivery: settling.Delivery) -> None:
        """Read a result that came in shared memory, in a thread: it is large."""
        descriptors = self._descriptors or []
        try:
            if self._lost_descriptor:
                raise frames.FrameError(  # noqa: TRY301
                    "a result in shared memory, but this process had no descriptor left to take it; raise its limit "
                    "of open files (ulimit -n)"
                )
            if len(descriptors) != 1:
                raise frames.FrameError(f"{len(descriptors)} descriptors beside one result")  # noqa: TRY301
            # Taken from the list in the thread: a cancellation before that leaves it to be closed with the list.
            body = await aside.run(lambda: bulk.take(descriptors.pop(), delivery.frame.shared))
        except frames.FrameError as exc:
            self.delivery = None
            self._note_breach(f"the child sent {exc}")
        else:
            self.delivery = delivery._replace(frame=delivery.frame._replace(body=body))

    def _note_breach(self, text: str) -> None:
        self.breach = text
        self._orders.stop(StopReason.CANCELLED, text, at_once=True)

    # -- in: heartbeats and output --------------------------------------------------------------------------

    def read(self, descriptor: int) -> bool:
        """Read what one pipe of the child holds; False at its end."""
        if descriptor == self._child.beat:
            return self._read_beats()
        data = read_available(descriptor)
        if data:
            self._capture(descriptor).take(data)
        return data != b""

    def _capture(self, descriptor: int) -> Capture:
        if descriptor == self._child.out:
            if self._out is None:
                self._out = self._new_capture("stdout")
            return self._out
        if self._err is None:
            self._err = self._new_capture("stderr")
        return self._err

    def _new_capture(self, stream: Literal["stdout", "stderr"]) -> Capture:
        hand_on = self._on_output
        if hand_on is None:
            return Capture(limit=self._output_limit, on_line=None)
        attempt_id = self._task.attempt_id

        def on_line(text: str) -> None:
            self._call(hand_on, OutputLine(attempt_id, stream, text))

        return Capture(limit=self._output_limit, on_line=on_line)

    def _read_beats(self) -> bool:
        """Take all beats that are there, and hand on the newest: each wake-up gives at most one callback."""
        newest: bytes | None = None
        count = 0
        alive = True
        for data in read_all(self._child.beat):
            if not data:
                alive = False
                break
            if self._beat_reader is None:
                self._beat_reader = frames.BeatReader()
            try:
                payload, found = self._beat_reader.feed(data)
            except frames.FrameError as exc:
                self._note_breach(f"the child wrote bytes that are no heartbeat: {exc}")
                return False
            if payload is not None:
                newest = payload
                count += found
        if newest is not None:
            self._deliver_beat(newest, superseded=count - 1)
        return alive

    def _deliver_beat(self, payload: bytes, *, superseded: int) -> None:
        self.delivered_beats += 1
        if self._hub.is_heard:
            self._hub.tell("heartbeat", self._task.attempt_id, self._child.pid)
        if self._on_heartbeat is not None:
            self._call(self._on_heartbeat, Heartbeat(payload, trio.current_time(), superseded))

    def _call(self, callback: Callable[[_T], None], value: _T) -> None:
        """Keep a broken callback from breaking every other attempt: its error ends this one."""
        if self._callback_error is not None:
            return
        try:
            callback(value)
        except Exception as exc:  # noqa: BLE001 - raised by `conclude`, where its owner awaits it
            self._callback_error = exc
            text = f"a callback of the attempt raised {type(exc).__name__}"
            self._orders.stop(StopReason.CANCELLED, text, at_once=True)

    # -- the end --------------------------------------------------------------------------------------------

    @property
    def returned(self) -> bool:
        """Whether the handler returned, in a child that stays."""
        return (
            self.delivery is not None
            and self.delivery.frame.kind == frames.Kind.RESULT
            and not self.delivery.frame.flags & frames.LAST
            and self.breach is None
            and self._callback_error is None
        )

    def dismiss(self) -> None:
        """Have the child exit, which delivered and gets no other task; after its last one it does so by itself."""
        assert self.delivery is not None
        if self.delivery.frame.flags & frames.LAST:
            self._child.expect_exit()
        else:
            self._child.let_go()

    def conclude(self, asked: tuple[StopReason, str] | None) -> Outcome:
        """Decide the outcome of an attempt whose child is gone. Raises what a callback raised."""
        child = self._child
        self._read_beats()
        for pipe in (child.out, child.err):
            for data in read_all(pipe):
                if data:
                    self._capture(pipe).take(data)
        output = self._finish_output()
        if self._callback_error is not None:
            raise self._callback_error
        return settling.decide(
            settling.Facts(
                serial=self.serial,
                pid=child.pid,
                started_at=self.started_at,
                ended_at=time.monotonic(),
                settlement=child.settlement,
                delivery=self.delivery,
                breach=self.breach,
                asked=asked,
                output=output,
                delivered_beats=self.delivered_beats,
            )
        )

    def conclude_alive(self) -> Completed:
        """Give the outcome of an attempt that `returned`; there is no stop to race with. Raises as `conclude`."""
        assert self.delivery is not None
        frame, received_at = self.delivery
        output = self._finish_output()
        if self._callback_error is not None:
            raise self._callback_error
        return Completed(
            result=frame.body,
            pid=self._child.pid,
            duration=time.monotonic() - self.started_at,
            answered_after=received_at - self.started_at,
            output=output,
            heartbeats=max(frame.beats, self.delivered_beats),
            heartbeats_dropped=max(0, frame.beats - self.delivered_beats),
        )

    def _finish_output(self) -> CapturedOutput:
        if self._out is None and self._err is None:
            return NO_OUTPUT
        texts, dropped = [], 0
        for capture in (self._out, self._err):
            if capture is not None:
                capture.finish()
                dropped += capture.dropped
            texts.append("" if capture is None else capture.text)
        return CapturedOutput(texts[0], texts[1], dropped)
