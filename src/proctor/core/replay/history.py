"""Reading a recorded history: from hostile event envelopes to the durable steps that replay matches against.

It owns the shape of events (events.md §§1, 3, 4, 6) and every refusal of a history that is malformed, cut, repeated or
contradicts itself (HistoryError). Whether the workflow code asks for the same steps is `engine`'s question. Payloads
are not decoded here, but a codec that nobody may decode is refused before anything runs.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeGuard

from proctor.core.codec import CODEC
from proctor.core.instants import parse_instant
from proctor.core.replay.decision import Interrupted
from proctor.errors import HistoryError, PayloadError

ACTIVITY: Final = "activity"
SIDE_EFFECT: Final = "side effect"
VERSION_MARKER: Final = "version marker"

_ACTIVITY_END: Final = frozenset({"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"})
_ACTIVITY_PROGRESS: Final = frozenset({"ActivityScheduled", "ActivityStarted", "ActivityRetryScheduled"})
_MARKERS: Final = {"SideEffectRecorded": SIDE_EFFECT, "VersionMarkerRecorded": VERSION_MARKER}
# Steps that the authoring API does not offer yet: whoever recorded them ran other code.
_OTHER_STEPS: Final = {
    "TimerScheduled": "timer",
    "TimerFired": "timer",
    "ConditionWaitOpened": "condition wait",
    "ChildWorkflowScheduled": "child workflow",
    "ChildRunStarted": "child workflow",
    "ChildRunCompleted": "child workflow",
    "ChildRunFailed": "child workflow",
    "ChildRunCancelled": "child workflow",
    "ChildRunTerminated": "child workflow",
    "MemoUpserted": "memo upsert",
    "SearchAttributesUpserted": "search attributes upsert",
    "ServiceCallStarted": "service operation",
    "ServiceCallCompleted": "service operation",
    "ServiceCallFailed": "service operation",
    "ServiceCallCancelled": "service operation",
}
_RUN_ENDS: Final = frozenset(
    {
        "WorkflowCompleted",
        "WorkflowFailed",
        "WorkflowContinuedAsNew",
        "WorkflowCancelled",
        "WorkflowTerminated",
        "WorkflowTimedOut",
    }
)
_LARGEST: Final = 2**63 - 1
_PREPARED_EVIDENCE: Final = ("local_preparation", "local_outcome", "local_recovery", "local_group_admission")


@dataclass(slots=True)
class Step:
    """One durable operation of the run; `details` is the payload of a marker."""

    shape: str
    sequence: int | None
    position: int
    event_types: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.shape} ({', '.join(self.event_types)})"


@dataclass(slots=True)
class ActivityStep(Step):
    """An activity: `end` is the payload of its final event, `interrupted` an attempt without an end."""

    local: bool = False
    activity_type: str | None = None
    policies: set[str] = field(default_factory=set)
    end_type: str | None = None
    end: Mapping[str, Any] = field(default_factory=dict)
    attempts_started: int = 0
    last_heartbeat: dict[str, Any] | None = None
    open_attempt: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        kind = "local activity" if self.local else "activity"
        return f"{kind} {self.activity_type or '?'!r} ({', '.join(self.event_types)})"

    @property
    def interrupted(self) -> Interrupted | None:
        """The attempt that was started and neither ended nor was rescheduled.

        Raises HistoryError when that attempt has no identity, because then nobody could recover it.
        """
        if self.open_attempt is None:
            return None
        execution = self.open_attempt.get("activity_execution_id")
        attempt = self.open_attempt.get("activity_attempt_id")
        if not (isinstance(execution, str) and execution and isinstance(attempt, str) and attempt):
            raise HistoryError(
                f"the ActivityStarted of sequence {self.sequence} lacks activity_execution_id or activity_attempt_id",
                position=self.position,
            )
        return Interrupted(execution, attempt)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A recorded cooperative cancellation: the call at `sequence` raises WorkflowCancelled instead."""

    sequence: int
    span: int
    call_kind: str
    request_id: str | None
    position: int


@dataclass(slots=True)
class History:
    """A checked history: its steps in recorded order, and what concerns the whole run."""

    steps: list[Step] = field(default_factory=list)
    started: Mapping[str, Any] | None = None
    started_at: datetime | None = None
    closed: bool = False
    strict: bool = False
    delivery: Delivery | None = None


def read_history(events: Sequence[Mapping[str, Any]]) -> History:
    """Check and index a whole history, oldest event first.

    Raises HistoryError, or PayloadError for an event that names another payload codec.
    """
    if not isinstance(events, Sequence):
        raise HistoryError(f"a history is a list of events, not {type(events).__qualname__}")
    reader = _Reader()
    for position, event in enumerate(events):
        reader.read(position, event)
    reader.history.steps.sort(key=lambda step: step.position)
    return reader.history


class _Reader:
    def __init__(self) -> None:
        self.history = History()
        self._last_sequence: int | None = None
        self._ids: set[str] = set()
        self._by_key: dict[object, Step] = {}
        self._unnumbered_ended = 0

    def read(self, position: int, event: object) -> None:
        if not isinstance(event, Mapping):
            raise HistoryError(f"event {position} is no object but {type(event).__qualname__}", position=position)
        event_type = event.get("event_type", event.get("type"))
        if not isinstance(event_type, str) or not event_type:
            raise HistoryError(f"event {position} has no event_type", position=position)
        self._check_envelope(position, event)
        payload = event.get("payload")
        if not isinstance(payload, Mapping):
            payload = {}
        codec = payload.get("payload_codec")
        if codec is not None and codec != CODEC:
            raise PayloadError(
                "unsupported_payload_codec", f"event {position} ({event_type}) names the payload codec {_shown(codec)}"
            )
        if any(key in payload for key in _PREPARED_EVIDENCE):
            self.history.strict = True
        self._dispatch(position, event, event_type, payload)

    def _check_envelope(self, position: int, event: Mapping[str, Any]) -> None:
        identity = event.get("id")
        if isinstance(identity, str):
            if identity in self._ids:
                raise HistoryError(f"event {position} repeats the id {identity!r}", position=position)
            self._ids.add(identity)
        sequence = event.get("sequence")
        if sequence is None:
            return
        if not _is_number(sequence):
            raise HistoryError(f"event {position} has the history sequence {_shown(sequence)}", position=position)
        expected = 1 if self._last_sequence is None else self._last_sequence + 1
        if sequence != expected and (self._last_sequence is not None or position == 0):
            raise HistoryError(
                f"event {position} has history sequence {sequence}, not {expected}: "
                f"the history is {'repeated' if sequence < expected else 'cut'} here",
                position=position,
            )
        self._last_sequence = sequence

    def _dispatch(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        if event_type == "WorkflowStarted":
            self._start(position, event, payload)
        elif event_type in _RUN_ENDS:
            self.history.closed = True
        elif event_type in _ACTIVITY_END or event_type in _ACTIVITY_PROGRESS:
            self._activity(position, event_type, payload)
        elif event_type == "ActivityHeartbeatRecorded":
            self._heartbeat(position, payload)
        elif event_type in _MARKERS:
            self._marker(position, event_type, payload)
        elif event_type in _OTHER_STEPS:
            self._other(position, event_type, payload)
        elif event_type == "CooperativeCancellationRequested":
            self.history.strict = True
        elif event_type == "CooperativeCancellationDelivered":
            self._deliver(position, payload)
        elif event_type.startswith("CancellationScope"):
            raise HistoryError(
                f"event {position} ({event_type}): cancellation scopes are not supported", position=position
            )

    def _start(self, position: int, event: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
        if self.history.started is not None:
            raise HistoryError(f"event {position} starts the run a second time", position=position)
        self.history.started = payload
        envelope_time = event.get("recorded_at", event.get("timestamp"))
        text = payload.get("timestamp", envelope_time)
        try:
            self.history.started_at = parse_instant(text)
        except ValueError:
            self.history.started_at = None  # only code that asks for the time fails (replay.md §3)

    def _activity(self, position: int, event_type: str, payload: Mapping[str, Any]) -> None:
        step = self._activity_step(position, payload)
        if step.end_type is not None:
            if event_type == step.end_type and _equal(payload, step.end):
                return
            raise HistoryError(
                f"event {position} ({event_type}) follows the end of sequence {step.sequence} ({step.end_type})",
                position=position,
            )
        step.event_types.append(event_type)
        step.local = step.local or payload.get("execution_mode") == "local" or payload.get("local_activity") is True
        step.activity_type = _activity_type(payload) or step.activity_type
        step.policies.update(_policies(payload))
        if event_type == "ActivityStarted":
            number = payload.get("attempt_number")
            counted = number if _is_number(number) else 0
            step.attempts_started = max(step.attempts_started + 1, counted)
            step.open_attempt = payload
        elif event_type == "ActivityRetryScheduled":
            step.open_attempt = None
        elif event_type in _ACTIVITY_END:
            step.open_attempt = None
            step.end_type, step.end = event_type, payload
            if step.sequence is None:
                self._unnumbered_ended += 1

    def _activity_step(self, position: int, payload: Mapping[str, Any]) -> ActivityStep:
        sequence = _sequence(position, payload)
        # Without numbers (old histories) the activity that is open is the one that is meant.
        key: object = sequence if sequence is not None else (ACTIVITY, self._unnumbered_ended)
        step = self._by_key.get(key)
        if step is None:
            step = ActivityStep(ACTIVITY, sequence, position)
            self._add(key, step)
        if not isinstance(step, ActivityStep):
            raise HistoryError(f"event {position}: sequence {sequence} is also a {step.shape}", position=position)
        return step

    def _heartbeat(self, position: int, payload: Mapping[str, Any]) -> None:
        step = self._by_key.get(_sequence(position, payload))
        progress = payload.get("progress")
        details = progress.get("details") if isinstance(progress, Mapping) else None
        if isinstance(step, ActivityStep) and isinstance(details, Mapping):
            step.last_heartbeat = dict(details)

    def _marker(self, position: int, event_type: str, payload: Mapping[str, Any]) -> None:
        sequence = _sequence(position, payload)
        known = self._by_key.get(sequence) if sequence is not None else None
        if known is not None:
            if known.event_types == [event_type] and _equal(known.details, payload):
                return
            raise HistoryError(
                f"event {position} ({event_type}): sequence {sequence} is already a {known}", position=position
            )
        step = Step(_MARKERS[event_type], sequence, position, [event_type], dict(payload))
        self._add(sequence if sequence is not None else ("marker", position), step)

    def _other(self, position: int, event_type: str, payload: Mapping[str, Any]) -> None:
        sequence = _sequence(position, payload)
        shape = _OTHER_STEPS[event_type]
        known = self._by_key.get(sequence) if sequence is not None else None
        if known is None:
            self._add(
                sequence if sequence is not None else (shape, position), Step(shape, sequence, position, [event_type])
            )
        else:
            known.event_types.append(event_type)

    def _deliver(self, position: int, payload: Mapping[str, Any]) -> None:
        sequence = _sequence(position, payload)
        span = payload.get("sequence_span", 1)
        kind = payload.get("call_kind")
        if sequence is None or not isinstance(kind, str) or not _is_number(span):
            raise HistoryError(
                f"event {position}: a cancellation delivery without sequence and kind", position=position
            )
        if self.history.delivery is not None:
            raise HistoryError(f"event {position} delivers the cancellation a second time", position=position)
        request = payload.get("workflow_command_id")
        self.history.strict = True
        self.history.delivery = Delivery(sequence, span, kind, request if isinstance(request, str) else None, position)

    def _add(self, key: object, step: Step) -> None:
        self._by_key[key] = step
        self.history.steps.append(step)


def _sequence(position: int, payload: Mapping[str, Any]) -> int | None:
    sequence = payload.get("sequence", payload.get("workflow_sequence"))
    if sequence is None:
        return None
    if not _is_number(sequence):
        raise HistoryError(f"event {position} has the command sequence {_shown(sequence)}", position=position)
    return sequence


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST


def _shown(value: object) -> str:
    """Show a hostile value without following it: nested or endless data must not turn one error into another."""
    if isinstance(value, (bool, str)) or (isinstance(value, int) and abs(value) <= _LARGEST):
        return reprlib.repr(value)
    return f"of type {type(value).__qualname__}"


def _activity_type(payload: Mapping[str, Any]) -> str | None:
    snapshot = payload.get("activity")
    places: list[object] = [payload.get("activity_type"), payload.get("activity_name")]
    if isinstance(snapshot, Mapping):
        places += [snapshot.get(key) for key in ("activity_type", "activity_name", "type", "name")]
    return next((name for name in places if isinstance(name, str) and name), None)


def _policies(payload: Mapping[str, Any]) -> set[str]:
    snapshot = payload.get("activity")
    values = [payload.get("cancellation_policy")]
    if isinstance(snapshot, Mapping):
        values.append(snapshot.get("cancellation_policy"))
    return {value if isinstance(value, str) else _shown(value) for value in values if value is not None}


def _equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    try:
        return dict(left) == dict(right)
    except RecursionError:  # hostile nesting; what cannot be compared is not the same
        return False
