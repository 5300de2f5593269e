"""Reading a recorded history: from hostile event envelopes to the durable steps that replay matches against.

It owns the envelope of events (events.md §1) and the order in which results answer the code (events.md §6); what the
single events mean is in `operations` and `arrivals`. Every history that is malformed, cut, repeated or contradicts
itself is refused with the place. Results are not decoded here, but a codec that nobody may decode is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from proctor.core.codec import CODEC
from proctor.core.instants import parse_instant
from proctor.core.replay.recorded.arrivals import ARRIVALS
from proctor.core.replay.recorded.cancelling import Delivery, read_delivery
from proctor.core.replay.recorded.ledger import Event, History, Ledger
from proctor.core.replay.recorded.operations import OPERATIONS
from proctor.core.replay.recorded.steps import ActivityStep, Step, is_number, is_object, shown
from proctor.errors import HistoryError, PayloadError

_GROUP_IDENTITY: Final = (
    "parallel_group_id",
    "parallel_group_kind",
    "parallel_group_base_sequence",
    "parallel_group_size",
)


def read_history(events: Sequence[Mapping[str, Any]], *, run_id: str = "") -> History:
    """Check and index a whole history, oldest event first.

    Raises HistoryError; PayloadError for an event that names another payload codec; NonDeterminismError for steps
    whose own events contradict each other.
    """
    if not isinstance(events, Sequence):
        raise HistoryError(f"a history is a list of events, not {type(events).__qualname__}")
    ledger = Ledger(events, run_id=run_id, delivery=_find_delivery(events))
    envelopes = _Envelopes()
    for position, body in enumerate(events):
        event = envelopes.check(position, body)
        action = _ACTIONS.get(event.type)
        if action is not None:
            action(ledger, event)
        elif event.type.startswith("CancellationScope"):
            raise HistoryError(
                f"event {position} ({event.type}): cancellation scopes are not supported", position=position
            )
    return _finished(ledger)


class _Envelopes:
    """Checks that the events are those of one history, complete and in order."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._ids: set[str] = set()

    def check(self, position: int, body: object) -> Event:
        if not is_object(body):
            raise HistoryError(f"event {position} is no object but {type(body).__qualname__}", position=position)
        event_type = body.get("event_type") or body.get("type")
        if not isinstance(event_type, str) or not event_type:
            raise HistoryError(f"event {position} has no event_type", position=position)
        identity = body.get("id")
        if isinstance(identity, str):
            if identity in self._ids:
                raise HistoryError(f"event {position} repeats the id {identity!r}", position=position)
            self._ids.add(identity)
        sequence = body.get("sequence")
        if sequence is not None:
            self._check_sequence(position, sequence)
        payload = body.get("payload")
        if not is_object(payload):
            payload = {}
        codec = payload.get("payload_codec")
        if codec is not None and codec != CODEC:
            raise PayloadError(
                "unsupported_payload_codec", f"event {position} ({event_type}) names the payload codec {shown(codec)}"
            )
        return Event(position, event_type, payload, body)

    def _check_sequence(self, position: int, sequence: object) -> None:
        if not is_number(sequence):
            raise HistoryError(f"event {position} has the history sequence {shown(sequence)}", position=position)
        expected = 1 if self._last is None else self._last + 1
        if sequence != expected and (self._last is not None or position == 0):
            raise HistoryError(
                f"event {position} has history sequence {sequence}, not {expected}: "
                f"the history is {'repeated' if sequence < expected else 'cut'} here",
                position=position,
            )
        self._last = sequence


def _started(ledger: Ledger, event: Event) -> None:
    if ledger.history.started is not None:
        raise HistoryError(f"event {event.position} starts the run a second time", position=event.position)
    if ledger.opened or ledger.waits.by_id:
        raise HistoryError(f"event {event.position} starts the run behind its first step", position=event.position)
    ledger.history.started = event.payload
    recorded_at = event.envelope.get("recorded_at", event.envelope.get("timestamp"))
    try:
        ledger.history.started_at = parse_instant(event.payload.get("timestamp", recorded_at))
    except ValueError:
        ledger.history.started_at = None  # only code that asks for the time fails (replay.md §3)


def _ended(ledger: Ledger, event: Event) -> None:
    ledger.waits.passed(event.type)
    ledger.binding.passed(condition=False)
    ledger.history.closed = True


def _closed(ledger: Ledger, _event: Event) -> None:
    ledger.history.closed = True


_ACTIONS: Final[dict[str, Callable[[Ledger, Event], None]]] = {
    "WorkflowStarted": _started,
    **OPERATIONS,
    **ARRIVALS,
    **dict.fromkeys(("WorkflowCompleted", "WorkflowFailed", "WorkflowContinuedAsNew"), _ended),
    **dict.fromkeys(("WorkflowCancelled", "WorkflowTerminated", "WorkflowTimedOut"), _closed),
}


def _finished(ledger: Ledger) -> History:
    """Put the steps into the order in which replay answers them."""
    history = ledger.history
    ledger.binding.finish()
    history.answered = _authored_order(history.answered)
    # Without a number a queued activity that did not end says nothing: its place is unknown.
    history.pending = [
        step
        for step in ledger.opened
        if step.end_type is None
        and step.selection is None
        and not ledger.interrupts(step.sequence)
        and (step.numbered or (isinstance(step, ActivityStep) and step.local))
    ]
    history.resolutions.sort(key=lambda entry: _base_of(entry[1]))
    return history


def _find_delivery(events: Sequence[Mapping[str, Any]]) -> Delivery | None:
    """Find the delivery ahead of reading: it decides what the events before it mean (events.md §4)."""
    for position, event in enumerate(events):
        if is_object(event) and (event.get("event_type") or event.get("type")) == "CooperativeCancellationDelivered":
            payload = event.get("payload")
            return read_delivery(position, event, payload if isinstance(payload, Mapping) else {})
    return None


def _authored_order(answered: list[Step]) -> list[Step]:
    """Put the members of each complete group into authored order within the places they hold (events.md §6.3)."""
    slots: dict[tuple[Any, ...], list[int]] = {}
    for slot, step in enumerate(answered):
        if step.path is not None and all(_is_member(entry, step) for entry in step.path):
            slots.setdefault(tuple(step.path[0][name] for name in _GROUP_IDENTITY), []).append(slot)
    ordered = list(answered)
    for (*_, base, size), places in slots.items():
        members = sorted((answered[place] for place in places), key=lambda step: step.sequence)
        if len(members) == size and [step.sequence for step in members] == list(range(base, base + size)):
            for place, step in zip(places, members, strict=True):
                ordered[place] = step
    return ordered


def _is_member(entry: Mapping[str, Any], step: Step) -> bool:
    base, index = entry.get("parallel_group_base_sequence"), entry.get("parallel_group_index")
    return (
        isinstance(entry.get("parallel_group_id"), str)
        and isinstance(entry.get("parallel_group_kind"), str)
        and is_number(entry.get("parallel_group_size"))
        and is_number(base)
        and isinstance(index, int)
        and base + index == step.sequence
    )


def _base_of(payload: Mapping[str, Any]) -> int:
    base = payload.get("selection_group_base_sequence")
    return base if is_number(base) else 0
