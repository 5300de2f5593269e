"""The bytes between the owner and one child, for one attempt: the task out; result, heartbeats and output in.

Owns the child's socket and pipes while the attempt runs, and what was wrong with what came out of them. What the
attempt has come to is decided in `settling`; that the child is gone is known to `link`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from proctor_supervisor import frames
from proctor_supervisor.options import SupervisorOptions
from proctor_supervisor.outcome import CapturedOutput, Outcome, StopReason
from proctor_supervisor.owner import settling
from proctor_supervisor.owner.link import Child
from proctor_supervisor.owner.streams import BeatStream, Capture, Heartbeat, OutputLine, Streams

_T = TypeVar("_T")
_RECEIVE = 256 * 1024
_RECEIVE_MOST = 8 * 1024 * 1024


class Exchange:
    """One attempt's traffic. `on_breach` is called when the child must be killed at once, with the reason."""

    def __init__(
        self,
        child: Child,
        options: SupervisorOptions,
        attempt_id: str,
        on_heartbeat: Callable[[Heartbeat], None] | None,
        on_output: Callable[[OutputLine], None] | None,
        on_breach: Callable[[Child, str], None],
    ) -> None:
        self._child = child
        self._on_breach = on_breach
        self._reader = frames.FrameReader(limit=options.max_payload_bytes)
        self._delivery: settling.Delivery | None = None
        self._breach: str | None = None
        self._started_at = time.monotonic()
        self._callback_error: Exception | None = None
        self._beats = BeatStream(child.beat, None if on_heartbeat is None else self._guarded(on_heartbeat))
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
                self._on_breach(self._child, f"a callback of the attempt raised {type(exc).__name__}")

        return call

    def watch(self, streams: Streams) -> None:
        """Have the pipes read while the attempt runs."""
        streams.add(self._child.beat, self._read_beats)
        streams.add(self._child.out, self._out.read)
        streams.add(self._child.err, self._err.read)

    def unwatch(self, streams: Streams) -> None:
        """The reverse of `watch`."""
        for descriptor in (self._child.beat, self._child.out, self._child.err):
            streams.remove(descriptor)

    async def send(self, frame: bytes) -> None:
        """Write the task; a child that dies meanwhile is told by its settlement, not here."""
        rest = memoryview(frame)
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
        while self._read_frames():
            if self._child.ended.is_set():
                return
            try:
                await trio.lowlevel.wait_readable(self._child.task)
            except trio.ClosedResourceError:
                self._read_frames()
                return

    def _read_frames(self) -> bool:
        """Take what is there; False when there is nothing more to expect."""
        while True:
            try:
                data = self._child.task.recv(max(_RECEIVE, min(self._reader.missing, _RECEIVE_MOST)))
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                for kind, body in self._reader.feed(data):
                    if kind is frames.Kind.BEAT:
                        self._read_beats()
                        self._beats.deliver(body, superseded=0)
                    elif kind is frames.Kind.TASK:
                        raise frames.FrameError("a task frame")  # noqa: TRY301 - the same breach, the same end
                    else:
                        self._read_beats()
                        self._delivery = settling.Delivery(kind, body, time.monotonic())
                        return False
            except frames.FrameError as exc:
                self._note_breach(f"the child wrote bytes that are no result: {exc}")
                return False

    def _read_beats(self) -> bool:
        try:
            return self._beats.read()
        except frames.FrameError as exc:
            self._note_breach(f"the child wrote bytes that are no heartbeat: {exc}")
            return False

    def _note_breach(self, text: str) -> None:
        self._breach = text
        self._on_breach(self._child, text)

    def conclude(self, *, asked: tuple[StopReason, str] | None) -> Outcome:
        """Read what is left and decide the outcome; the child is gone. Raises what a callback raised."""
        child = self._child
        self._read_beats()
        self._out.drain()
        self._err.drain()
        if self._callback_error is not None:
            raise self._callback_error
        return settling.decide(
            settling.Facts(
                pid=child.pid,
                started_at=self._started_at,
                ended_at=time.monotonic(),
                settlement=child.settlement,
                delivery=self._delivery,
                breach=self._breach,
                asked=asked,
                output=CapturedOutput(self._out.text, self._err.text, self._out.dropped + self._err.dropped),
                delivered_beats=self._beats.delivered,
            )
        )
