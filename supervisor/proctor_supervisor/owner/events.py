"""What happens in a supervisor, as a bounded stream for logs, metrics and live views.

Owns subscription and the bound: a slow reader loses the oldest events and is told how many; nobody ever waits for one.
Without a subscriber an event is not even made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import trio

EventKind = Literal[
    "started",  # an attempt was handed to a child
    "heartbeat",  # its newest heartbeat arrived
    "notice",  # the stop notice was posted
    "raised",  # the exception was raised in its main thread
    "killed",  # SIGKILL was sent to its tree
    "reaped",  # it is over and its outcome known; `facts` names it
    "descendants",  # processes below it were killed; `facts` lists their pids
    "refused",  # a task was refused before anything was sent
    "restarted",  # the supervisor process died and another one took over
]


@dataclass(frozen=True, slots=True)
class SupervisorEvent:
    """One thing that happened. `at` is on Trio's clock; `pid` is the child's (the supervisor's for ``restarted``)."""

    kind: EventKind
    at: float
    attempt_id: str = ""
    pid: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class EventStream:
    """The events since the subscription; iterate it with ``async for``, which never ends by itself.

    Several tasks may share one stream: each event goes to one of them.
    """

    def __init__(self, limit: int) -> None:
        self._waiting: deque[SupervisorEvent] = deque(maxlen=limit)
        self._arrived = trio.Event()
        self.dropped = 0

    def push(self, event: SupervisorEvent) -> None:
        """Take one event in; the oldest leaves when there is no room."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._arrived.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> SupervisorEvent:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._arrived.is_set():  # several may iterate, and wait for the same
                self._arrived = trio.Event()
            await self._arrived.wait()
        return self._waiting.popleft()


class EventHub:
    """Hands events to whoever subscribed."""

    def __init__(self) -> None:
        self._streams: list[EventStream] = []

    @contextmanager
    def subscribe(self, limit: int) -> Iterator[EventStream]:
        """Give a stream that holds at most `limit` events, for the length of the block."""
        stream = EventStream(limit)
        self._streams.append(stream)
        try:
            yield stream
        finally:
            self._streams.remove(stream)

    @property
    def is_heard(self) -> bool:
        """Whether anybody subscribed; ask before making what only an event needs."""
        return bool(self._streams)

    def tell(self, kind: EventKind, attempt_id: str = "", pid: int = 0, **facts: Any) -> None:
        """Hand on one event, if anybody listens."""
        if self._streams:
            event = SupervisorEvent(kind, trio.current_time(), attempt_id, pid, facts)
            for stream in self._streams:
                stream.push(event)
