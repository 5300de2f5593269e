"""Signals and applied updates of history, delivered to the handlers of the workflow at their recorded place.

Where a receiver belongs was read by `waits`; here it is decoded, kept until it is due, and its handler called.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from proctor.core import codec
from proctor.core.replay.authoring.handlers import MESSAGE_STREAM_SIGNAL, Handlers
from proctor.core.replay.authoring.streams import Inbox
from proctor.core.replay.authoring.wire_form import refuse_async
from proctor.core.replay.body import Raised, Returned, sort_exceptions
from proctor.core.replay.recorded.ledger import History
from proctor.core.replay.recorded.steps import WaitStep
from proctor.core.replay.recorded.waits import Receiver
from proctor.errors import PayloadError


def decode_receiver(receiver: Receiver) -> list[Any]:
    """Decode the arguments of a signal or update (events.md §4); PayloadError names its place in history."""
    payload = receiver.payload
    places = ("value", "input", "arguments") if receiver.kind == "signal" else ("arguments",)
    field = next((payload[key] for key in places if payload.get(key) is not None), None)
    try:
        codec.require_named(payload)
        if field is None:
            return []
        value = codec.decode_value(field, codec.CODEC)
    except PayloadError as exc:
        raise exc.at(f"the arguments of {receiver.kind} {receiver.name!r}, event {receiver.position}") from exc
    return value if isinstance(value, list) else [value]  # a null that was sent is an argument


class Receivers:
    """The receivers of one history that the code has not seen yet, in recorded order."""

    def __init__(self, history: History, instance: object, handlers: Handlers, inbox: Inbox, *, name: str) -> None:
        self._waiting = deque(history.receivers)
        self._instance = instance
        self._handlers = handlers
        self._inbox = inbox
        self._name = name
        self._bound = Counter(receiver.wait_id for receiver in self._waiting if receiver.wait_id is not None)
        for receiver in self._waiting:
            receiver.arguments = decode_receiver(receiver)
            if receiver.name == MESSAGE_STREAM_SIGNAL and inbox.is_cursor(receiver.arguments):
                inbox.accept(receiver.arguments)  # tells of the run before this one, so it precedes all code

    def due(
        self, *, answers: int, selections: int, delivered: bool, before_answer: bool = False
    ) -> BaseException | None:
        """Deliver what history has before the next result; give the exception of a handler that raised.

        `before_answer`: the answer was taken but the code has not got it; only what precedes it is delivered.
        """
        while self._waiting:
            receiver = self._waiting[0]
            if receiver.wait_id is not None or (receiver.after_delivery and not delivered):
                return None
            if before_answer:
                if receiver.answers >= answers or receiver.selections >= selections:
                    return None
            elif receiver.answers > answers or receiver.selections > selections:
                return None
            failure = self._deliver(self._waiting.popleft())
            if failure is not None:
                return failure
        return None

    def of_wait(self, wait: WaitStep) -> BaseException | None:
        """Deliver what came before the end of `wait`, or what is bound to it while it is open."""
        if wait.end_position >= 0:
            while self._waiting and self._waiting[0].position < wait.end_position:
                failure = self._deliver(self._waiting.popleft())
                if failure is not None:
                    return failure
            return None
        for _ in range(self._count_through(wait.wait_id)):
            failure = self._deliver(self._waiting.popleft())
            if failure is not None:
                return failure
        return None

    def has_bound(self, wait_id: str) -> bool:
        """Tell whether something waits to be delivered with this wait."""
        return self._bound[wait_id] > 0

    def _count_through(self, wait_id: str) -> int:
        """Count what lies before and in the first run of receivers that belong to the wait."""
        if not self.has_bound(wait_id):
            return 0
        count, found = 0, False
        for receiver in self._waiting:
            if receiver.wait_id == wait_id:
                found = True
            elif found:
                break
            count += 1
        return count if found else 0

    def _deliver(self, receiver: Receiver) -> BaseException | None:
        if receiver.wait_id is not None:
            self._bound[receiver.wait_id] -= 1
        arguments = receiver.arguments or []
        if receiver.kind == "signal":
            if receiver.name == MESSAGE_STREAM_SIGNAL:
                self._inbox.accept(arguments)
                return None
            method = self._handlers.signals.get(receiver.name)
            if method is None:
                return None
        else:
            method = self._handlers.updates.get(receiver.name)
            if method is None:
                return TypeError(f"history applies the update {receiver.name!r}, which the workflow does not have")
        return call_handler(self._instance, method, arguments, name=self._name)[1]


def call_handler(instance: object, method: str, arguments: list[Any], *, name: str) -> tuple[Any, BaseException | None]:
    """Call a handler; give its value and None, or None and its exception. Raises what `sort_exceptions` raises."""

    def call() -> Returned:
        value = getattr(instance, method)(*arguments)
        refuse_async(value, f"handler {method}")
        return Returned(value)

    outcome = sort_exceptions(name, call)
    if isinstance(outcome, Raised):
        return None, outcome.exception
    assert isinstance(outcome, Returned)
    return outcome.value, None
