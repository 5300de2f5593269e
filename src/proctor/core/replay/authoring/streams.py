"""Message streams: ordered, repeated input of a run, and the items a run appends to its output streams.

Messages arrive as signals under a reserved name (replay.md §2); the inbox keeps those that the code has not read, and
how far it has read. Output goes out as side effects with a directive (commands.md §9).
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from proctor.core import codec
from proctor.core.replay.authoring.commands import Command, WaitCondition
from proctor.core.replay.authoring.routine import Routine
from proctor.core.replay.decision import StreamCursor
from proctor.errors import PayloadError

if TYPE_CHECKING:
    from proctor.core.replay.authoring.context import WorkflowContext

MAX_BATCH: Final = 100
"""Most messages of one `receive` (replay.md §2)."""

_MESSAGE: Final = "durable-workflow.v2.message-stream.message"
_CURSOR: Final = "durable-workflow.v2.message-stream.cursor"
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-")
_MAX_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class MessageStreamMessage:
    """One message of a stream, in the order the server gave it."""

    stream_name: str
    message_id: str
    position: int
    arguments: list[Any]


@dataclass(slots=True)
class Inbox:
    """The messages of all streams of one run that were received and not yet read."""

    _messages: dict[str, _Queue] = field(default_factory=dict)
    _cursors: dict[str, int] = field(default_factory=dict)
    _waits: dict[str, int] = field(default_factory=dict)

    @property
    def cursors(self) -> tuple[StreamCursor, ...]:
        """How far each stream was read."""
        return tuple(StreamCursor(name, position) for name, position in sorted(self._cursors.items()))

    @property
    def waits(self) -> tuple[StreamCursor, ...]:
        """Behind which position each waiting stream expects a message."""
        return tuple(StreamCursor(name, position) for name, position in sorted(self._waits.items()))

    def is_cursor(self, arguments: Sequence[Any]) -> bool:
        """Tell a checkpoint of the run before from a message."""
        return len(arguments) == 1 and isinstance(arguments[0], Mapping) and arguments[0].get("schema") == _CURSOR

    def accept(self, arguments: Sequence[Any]) -> None:
        """Take what one signal brought; anything that is neither message nor checkpoint is ignored."""
        if len(arguments) != 1 or not isinstance(arguments[0], Mapping):
            return
        body = arguments[0]
        stream = body.get("stream_name")
        if not isinstance(stream, str):
            return
        if body.get("schema") == _CURSOR:
            self._move(stream, body.get("through_position"))
        elif body.get("schema") == _MESSAGE:
            self._append(stream, body)

    def pending(self, stream: str) -> bool:
        """Tell whether a message waits to be read."""
        return bool(self._messages.get(stream))

    def cursor(self, stream: str) -> int:
        """Give the position of the last message that was read, 0 at first."""
        return self._cursors.get(stream, 0)

    def wait(self, stream: str) -> None:
        """Note that the code waits for the next message."""
        self._waits[stream] = self.cursor(stream)

    def read(self, stream: str, count: int) -> list[MessageStreamMessage]:
        """Take at most `count` messages."""
        self._waits.pop(stream, None)
        queue = self._messages.get(stream)
        batch = [] if queue is None else queue.take(count)
        if batch:
            self._cursors[stream] = batch[-1].position
        return batch

    def _move(self, stream: str, through: object) -> None:
        if isinstance(through, int) and not isinstance(through, bool) and through >= 0:
            self._cursors[stream] = max(through, self.cursor(stream))
            if stream in self._messages:
                self._messages[stream].drop_through(through)

    def _append(self, stream: str, body: Mapping[str, Any]) -> None:
        message_id, position, payload = body.get("message_id"), body.get("position"), body.get("payload_envelope")
        if not isinstance(message_id, str) or not isinstance(position, int) or isinstance(position, bool):
            return
        if not isinstance(payload, Mapping) or position < 1 or position <= self.cursor(stream):
            return
        try:
            values = codec.decode_value(payload, None)
        except PayloadError as exc:
            # Passing it by would lose it for ever: the cursor moves on with the next message.
            raise exc.at(f"message {message_id!r} of stream {stream!r}") from exc
        if isinstance(values, list):
            message = MessageStreamMessage(stream, message_id, position, values)
            self._messages.setdefault(stream, _Queue()).add(message)


@dataclass(slots=True)
class _Queue:
    """Messages by position, each position and each identity once."""

    _heap: list[tuple[int, MessageStreamMessage]] = field(default_factory=list)
    _positions: set[int] = field(default_factory=set)
    _ids: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, message: MessageStreamMessage) -> None:
        if message.position in self._positions or message.message_id in self._ids:
            return
        self._positions.add(message.position)
        self._ids.add(message.message_id)
        heapq.heappush(self._heap, (message.position, message))

    def take(self, count: int) -> list[MessageStreamMessage]:
        return [self._pop() for _ in range(min(count, len(self._heap)))]

    def drop_through(self, position: int) -> None:
        while self._heap and self._heap[0][0] <= position:
            self._pop()

    def _pop(self) -> MessageStreamMessage:
        position, message = heapq.heappop(self._heap)
        self._positions.discard(position)
        self._ids.discard(message.message_id)
        return message


class MessageStream:
    """The reading end of one named stream: ``await stream.receive()`` or ``yield from stream.receive()``."""

    def __init__(self, name: str, inbox: Inbox) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME or not set(name) <= _NAME:
            raise ValueError(f"a message stream has a name of 1 to {_MAX_NAME} of A-Z a-z 0-9 . _ : -, not {name!r}")
        self.name = name
        self._inbox = inbox

    def receive(self, max_items: int = 1) -> Routine[list[MessageStreamMessage]]:
        """Wait for a message, then give what is there, at most `max_items` (1 to 100)."""
        if isinstance(max_items, bool) or not isinstance(max_items, int) or not 1 <= max_items <= MAX_BATCH:
            raise ValueError(f"max_items is 1 to {MAX_BATCH}, not {max_items!r}")
        return Routine(lambda: self._receive(max_items))

    def receive_one(self) -> Routine[MessageStreamMessage]:
        """Wait for the next message."""
        return Routine(self._receive_one)

    def _receive(self, max_items: int) -> Generator[Command[Any], Any, list[MessageStreamMessage]]:
        while not self._inbox.pending(self.name):
            self._inbox.wait(self.name)
            key = f"message-stream:{self.name}:{self._inbox.cursor(self.name)}"
            # Without a fingerprint: this predicate is ours, and other workers have their own.
            yield WaitCondition(lambda: self._inbox.pending(self.name), key, None, None)
        return self._inbox.read(self.name, max_items)

    def _receive_one(self) -> Generator[Command[Any], Any, MessageStreamMessage]:
        (message,) = yield from self._receive(1)
        return message


@dataclass(frozen=True, slots=True)
class WorkflowStreamAppendItem:
    """One item for an output stream: a value, or the reference of a payload kept outside."""

    payload: Any = None
    payload_reference: str | None = None
    item_type: str | None = None
    content_type: str | None = None

    def to_wire(self, idempotency_key: str) -> dict[str, Any]:
        """Give the item of the directive."""
        wire: dict[str, Any] = {"payload_codec": codec.CODEC, "idempotency_key": idempotency_key}
        if self.payload is not None or self.payload_reference is None:
            wire["payload"] = codec.envelope(self.payload)
        optional = ("payload_reference", "item_type", "content_type")
        return wire | {name: value for name in optional if (value := getattr(self, name)) is not None}


def append_directive(
    ctx: WorkflowContext, stream_name: str, items: Sequence[WorkflowStreamAppendItem], max_pending_items: int | None
) -> dict[str, Any]:
    """Give the directive that appends items; TypeError or ValueError for a wrong one."""
    if not items:
        raise ValueError("there is at least one item to append")
    if not all(isinstance(item, WorkflowStreamAppendItem) for item in items):
        raise TypeError("items are WorkflowStreamAppendItem objects")
    if max_pending_items is not None and max_pending_items < 1:
        raise ValueError("max_pending_items is at least 1")
    directive = _directive(ctx, "append", stream_name)
    prefix = f"dw-stream:{directive['command_identity']}:{directive['command_ordinal']}"
    directive["items"] = [item.to_wire(f"{prefix}:{index}") for index, item in enumerate(items)]
    return directive if max_pending_items is None else directive | {"max_pending_items": max_pending_items}


def end_directive(
    ctx: WorkflowContext, stream_name: str, error_reason: str | None, retention_seconds: int | None
) -> dict[str, Any]:
    """Give the directive that closes a stream, or marks it as broken; ValueError for a wrong option."""
    if error_reason == "":
        raise ValueError("error_reason says something")
    if retention_seconds is not None and retention_seconds < 1:
        raise ValueError("retention_seconds is at least 1")
    directive = _directive(ctx, "close" if error_reason is None else "error", stream_name)
    optional = {"error_reason": error_reason, "retention_seconds": retention_seconds}
    return directive | {key: value for key, value in optional.items() if value is not None}


def _directive(ctx: WorkflowContext, operation: str, stream_name: str) -> dict[str, Any]:
    if not isinstance(stream_name, str) or not stream_name:
        raise ValueError("an output stream has a name")
    return {
        "operation": operation,
        "stream_name": stream_name,
        "command_identity": ctx._command_id,
        "command_ordinal": ctx._next_stream_ordinal(),
    }
