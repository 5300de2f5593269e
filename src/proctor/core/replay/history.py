"""Reading a recorded history: from hostile event envelopes to the durable steps that replay matches against.

It owns the shape of events (events.md §§1, 3, 4, 6) and every refusal of a history that is malformed, cut, repeated or
contradicts itself. Whether the workflow code asks for the same steps is `engine`'s question. Results are not decoded
here, but a codec that nobody may decode is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from proctor.core.codec import CODEC
from proctor.core.instants import parse_instant
from proctor.core.replay.cancelling import CancellationRecord, Delivery, read_delivery, read_request
from proctor.core.replay.memo import read_entries
from proctor.core.replay.steps import (
    ACTIVITY,
    CHILD,
    CONDITION,
    MEMO,
    SEARCH_ATTRIBUTES,
    SERVICE,
    SIDE_EFFECT,
    TIMER,
    VERSION_MARKER,
    ActivityStep,
    ChildStep,
    MarkerStep,
    ServiceStep,
    Step,
    TimerStep,
    WaitStep,
    activity_type_of,
    equal,
    is_number,
    path_of,
    policies_of,
    selection_of,
    sequence_of,
    shown,
    text,
)
from proctor.core.replay.waits import Receiver, ReceiverBinding, WaitReader
from proctor.errors import HistoryError, NonDeterminismError, PayloadError

_ACTIVITY_END: Final = frozenset({"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"})
_CHILD_END: Final = frozenset({"ChildRunCompleted", "ChildRunFailed", "ChildRunCancelled", "ChildRunTerminated"})
_MARKERS: Final = {
    "SideEffectRecorded": SIDE_EFFECT,
    "VersionMarkerRecorded": VERSION_MARKER,
    "MemoUpserted": MEMO,
    "SearchAttributesUpserted": SEARCH_ATTRIBUTES,
}
_OPENINGS: Final = frozenset({"ActivityScheduled", "TimerScheduled", "ChildWorkflowScheduled", "ConditionWaitOpened"})
_IDENTITIES: Final = {
    ACTIVITY: "activity_execution_id",
    TIMER: "timer_id",
    CHILD: "child_workflow_run_id",
    CONDITION: "condition_wait_id",
}
_POLICIES: Final = frozenset({"try_cancel", "wait_cancellation_completed", "abandon"})
_PARENT_CLOSE: Final = frozenset({"abandon", "request_cancel", "request_cancellation", "terminate"})
_SERVICE_FACTS: Final = ("endpoint_name", "service_name", "operation_name", "idempotency_key", "target_namespace")
_PREPARED_EVIDENCE: Final = ("local_preparation", "local_outcome", "local_recovery", "local_group_admission")

_S = TypeVar("_S", bound=Step)


@dataclass(slots=True)
class History:
    """A checked history.

    `answered` holds the steps with a result in the order of the results (complete groups in authored order),
    `pending` those without, `waits` the openings of condition waits; members of selections are in `selected` by
    sequence instead. `interrupted` are the steps that a delivered cancellation replaced.
    """

    events: Sequence[Mapping[str, Any]]
    answered: list[Step] = field(default_factory=list)
    pending: list[Step] = field(default_factory=list)
    waits: list[WaitStep] = field(default_factory=list)
    waits_by_id: Mapping[str, WaitStep] = field(default_factory=dict)
    by_sequence: dict[int, Step] = field(default_factory=dict)
    selected: dict[int, Step] = field(default_factory=dict)
    resolutions: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    cancelled_members: dict[tuple[str, int], tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    receivers: list[Receiver] = field(default_factory=list)
    accepted_updates: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    started: Mapping[str, Any] | None = None
    started_at: datetime | None = None
    closed: bool = False
    strict: bool = False
    cancellation: CancellationRecord | None = None


def read_history(events: Sequence[Mapping[str, Any]], *, run_id: str = "") -> History:
    """Check and index a whole history, oldest event first.

    Raises HistoryError; PayloadError for an event that names another payload codec; NonDeterminismError for steps
    whose own events contradict each other.
    """
    if not isinstance(events, Sequence):
        raise HistoryError(f"a history is a list of events, not {type(events).__qualname__}")
    reader = _Reader(events, run_id)
    for position, event in enumerate(events):
        reader.read(position, event)
    return reader.finish()


class _Reader:
    def __init__(self, events: Sequence[Mapping[str, Any]], run_id: str) -> None:
        self._history = History(events)
        self._run_id = run_id
        self._last_sequence: int | None = None
        self._ids: set[str] = set()
        self._opened: list[Step] = []
        self._unnumbered: ActivityStep | None = None  # the open activity of a history without numbers
        self._waits = WaitReader()
        self._binding = ReceiverBinding()
        self._delivery = _find_delivery(events)
        self._actions: dict[str, Callable[[int, Mapping[str, Any], str, Mapping[str, Any]], None]] = {
            "WorkflowStarted": self._start,
            "ActivityScheduled": self._activity,
            "ActivityStarted": self._activity,
            "ActivityRetryScheduled": self._activity,
            "ActivityHeartbeatRecorded": self._heartbeat,
            "TimerScheduled": self._timer_scheduled,
            "TimerFired": self._timer_fired,
            "TimerCancelled": self._timer_cancelled,
            "ChildWorkflowScheduled": self._child,
            "ChildRunStarted": self._child,
            "ConditionWaitOpened": self._wait_opened,
            "ConditionWaitSatisfied": self._wait_ended,
            "ConditionWaitTimedOut": self._wait_ended,
            "ServiceCallStarted": self._service,
            "ServiceCallCompleted": self._service,
            "ServiceCallFailed": self._service,
            "ServiceCallCancelled": self._service,
            "SignalReceived": self._receiver,
            "UpdateApplied": self._receiver,
            "UpdateAccepted": self._update_accepted,
            "SelectionResolved": self._selection_resolved,
            "SelectionOperationCancelled": self._selection_cancelled,
            "CooperativeCancellationRequested": self._cancellation_requested,
            "CooperativeCancellationDelivered": self._cancellation_delivered,
            "WorkflowCompleted": self._run_ended,
            "WorkflowFailed": self._run_ended,
            "WorkflowContinuedAsNew": self._run_ended,
            "WorkflowCancelled": self._run_closed,
            "WorkflowTerminated": self._run_closed,
            "WorkflowTimedOut": self._run_closed,
        }
        self._actions |= dict.fromkeys(_ACTIVITY_END, self._activity)
        self._actions |= dict.fromkeys(_CHILD_END, self._child)
        self._actions |= dict.fromkeys(_MARKERS, self._marker)

    def read(self, position: int, event: Mapping[str, Any]) -> None:
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
                "unsupported_payload_codec", f"event {position} ({event_type}) names the payload codec {shown(codec)}"
            )
        action = self._actions.get(event_type)
        if action is not None:
            action(position, event, event_type, payload)
        elif event_type.startswith("CancellationScope"):
            raise HistoryError(
                f"event {position} ({event_type}): cancellation scopes are not supported", position=position
            )

    def finish(self) -> History:
        """Put the steps in the order in which replay answers them."""
        history = self._history
        self._binding.finish()
        history.waits_by_id = self._waits.by_id
        history.answered = _authored_order(history.answered)
        # Without a number a queued activity that did not end says nothing: its place is unknown.
        history.pending = [
            step
            for step in self._opened
            if step.end_type is None
            and step.selection is None
            and not self._interrupts(step.sequence)
            and (step.numbered or (isinstance(step, ActivityStep) and step.local))
        ]
        history.resolutions.sort(key=lambda entry: _base_of(entry[1]))
        return history

    def _check_envelope(self, position: int, event: Mapping[str, Any]) -> None:
        identity = event.get("id")
        if isinstance(identity, str):
            if identity in self._ids:
                raise HistoryError(f"event {position} repeats the id {identity!r}", position=position)
            self._ids.add(identity)
        sequence = event.get("sequence")
        if sequence is None:
            return
        if not is_number(sequence):
            raise HistoryError(f"event {position} has the history sequence {shown(sequence)}", position=position)
        expected = 1 if self._last_sequence is None else self._last_sequence + 1
        if sequence != expected and (self._last_sequence is not None or position == 0):
            raise HistoryError(
                f"event {position} has history sequence {sequence}, not {expected}: "
                f"the history is {'repeated' if sequence < expected else 'cut'} here",
                position=position,
            )
        self._last_sequence = sequence

    def _start(self, position: int, event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]) -> None:
        if self._history.started is not None:
            raise HistoryError(f"event {position} starts the run a second time", position=position)
        self._history.started = payload
        try:
            self._history.started_at = parse_instant(
                payload.get("timestamp", event.get("recorded_at", event.get("timestamp")))
            )
        except ValueError:
            self._history.started_at = None  # only code that asks for the time fails (replay.md §3)

    def _run_ended(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        self._waits.passed(event_type)
        self._binding.passed(condition=False)
        self._history.closed = True

    def _run_closed(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        self._history.closed = True

    def _activity(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        if any(key in payload for key in _PREPARED_EVIDENCE):
            self._history.strict = True
        sequence = sequence_of(position, payload)
        step = self._unnumbered if sequence is None else self._find(position, sequence, ActivityStep)
        if step is None:
            step = ActivityStep(ACTIVITY, self._rank(sequence), position, sequence is not None)
            self._add(step, sequence)
            if sequence is None:
                self._unnumbered = step
        ends = event_type in _ACTIVITY_END
        if ends and self._repeats(step, position, event_type, payload):
            return
        if step.end_type is not None:
            raise HistoryError(
                f"event {position} ({event_type}) follows the end of sequence {step.sequence} ({step.end_type})",
                position=position,
            )
        step.event_types.append(event_type)
        step.local = step.local or payload.get("execution_mode") == "local" or payload.get("local_activity") is True
        step.activity_type = activity_type_of(payload) or step.activity_type
        if "cancellation_policy" in payload or "activity" in payload:
            self._activity_policies(step, payload)
        if event_type != "ActivityRetryScheduled":
            self._member(step, event_type, payload)
        if event_type == "ActivityStarted":
            number = payload.get("attempt_number")
            step.attempts_started = max(step.attempts_started + 1, number if is_number(number) else 0)
            step.open_attempt = payload
        elif event_type == "ActivityRetryScheduled":
            step.open_attempt = None
        elif ends:
            step.open_attempt = None
            if step is self._unnumbered:
                self._unnumbered = None
            self._end(step, position, event, event_type, payload)
        if event_type == "ActivityScheduled":
            self._waits.passed(event_type)
        if event_type != "ActivityRetryScheduled":
            self._binding.passed(condition=False)

    def _activity_policies(self, step: ActivityStep, payload: Mapping[str, Any]) -> None:
        step.policies.update(policies_of(payload))
        if not step.policies <= _POLICIES:
            self._contradiction(step, "invalid_activity_cancellation_policy_history", sorted(step.policies))
        if len(step.policies) > 1:
            self._contradiction(step, "activity_cancellation_policy_history_conflict", sorted(step.policies))

    def _heartbeat(self, position: int, _event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]) -> None:
        sequence = sequence_of(position, payload)
        step = self._unnumbered if sequence is None else self._history.by_sequence.get(sequence)
        progress = payload.get("progress")
        details = progress.get("details") if isinstance(progress, Mapping) else None
        if isinstance(step, ActivityStep) and isinstance(details, Mapping):
            step.last_heartbeat = dict(details)

    def _timer_scheduled(
        self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]
    ) -> None:
        sequence = sequence_of(position, payload)
        if self._waits.scheduled_timer(sequence, payload) != "ordinary":
            return
        step = self._find(position, sequence, TimerStep)
        if step is None:
            step = TimerStep(TIMER, self._rank(sequence), position, sequence is not None)
            self._add(step, sequence)
        step.event_types.append(event_type)
        step.delay = payload.get("delay_seconds", step.delay)
        self._member(step, event_type, payload)
        self._binding.passed(condition=False)

    def _timer_fired(
        self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]
    ) -> None:
        sequence = sequence_of(position, payload)
        kind = self._waits.timer_kind(sequence, payload)
        if kind == "condition":
            wait_id = self._waits.wait_of_timer(sequence, payload)
            if wait_id is not None:
                self._resolve_wait(wait_id, False, position, event, event_type, payload)
            self._binding.passed(condition=True)
        if kind != "ordinary":
            return
        step = self._find(position, sequence, TimerStep)
        if step is None:
            step = TimerStep(TIMER, self._rank(sequence), position, sequence is not None)
            self._add(step, sequence)
        if self._repeats(step, position, event_type, payload):
            return
        step.event_types.append(event_type)
        step.delay = payload.get("delay_seconds", step.delay)
        self._member(step, event_type, payload)
        self._end(step, position, event, event_type, payload)
        self._binding.passed(condition=False)

    def _timer_cancelled(
        self, position: int, _event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]
    ) -> None:
        if self._waits.timer_kind(sequence_of(position, payload), payload) == "condition":
            self._binding.passed(condition=True)

    def _child(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        sequence = sequence_of(position, payload)
        step = self._find(position, sequence, ChildStep)
        if step is None:
            step = ChildStep(CHILD, self._rank(sequence), position, sequence is not None)
            self._add(step, sequence)
        ends = event_type in _CHILD_END
        if (ends and self._repeats(step, position, event_type, payload)) or step.end_type is not None:
            return  # the next run of a retried child changes nothing for its parent
        step.event_types.append(event_type)
        step.workflow_type = (
            text(payload.get("workflow_type")) or text(payload.get("child_workflow_type")) or step.workflow_type
        )
        self._child_policies(step, payload)
        self._member(step, event_type, payload)
        if ends:
            self._end(step, position, event, event_type, payload)
        elif event_type == "ChildWorkflowScheduled":
            self._waits.passed(event_type)
        self._binding.passed(condition=False)

    def _child_policies(self, step: ChildStep, payload: Mapping[str, Any]) -> None:
        for name, allowed in (("parent_close_policy", _PARENT_CLOSE), ("cancellation_policy", _POLICIES)):
            value = payload.get(name)
            if value is None:
                continue
            if value not in allowed if isinstance(value, str) else True:
                self._contradiction(step, "invalid_child_workflow_policy_history", shown(value))
            if getattr(step, name) not in (None, value):
                self._contradiction(step, "child_workflow_policy_history_conflict", value)
            setattr(step, name, value)

    def _marker(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        sequence = sequence_of(position, payload)
        known = None if sequence is None else self._history.by_sequence.get(sequence)
        if known is not None:
            if known.event_types == [event_type] and equal(known.end, payload):
                return
            raise HistoryError(
                f"event {position} ({event_type}): sequence {sequence} is already a {known}", position=position
            )
        step = MarkerStep(_MARKERS[event_type], self._rank(sequence), position, sequence is not None, [event_type])
        self._add(step, sequence)
        if step.shape == MEMO:
            if sequence is None:
                self._contradiction(step, "a memo upsert without a sequence", "MemoUpserted")
            step.memo = read_entries(payload, sequence=step.sequence)
        self._end(step, position, event, event_type, payload)
        self._binding.passed(condition=False)

    def _service(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        sequence = sequence_of(position, payload)
        step = self._find(position, sequence, ServiceStep)
        if step is None:
            step = ServiceStep(SERVICE, self._rank(sequence), position, sequence is not None)
            self._add(step, sequence)
        if step.end_type is not None:
            return  # what was accepted is the answer; how it ends is told elsewhere
        step.event_types.append(event_type)
        snapshot = payload.get("service_call")
        for source in (snapshot if isinstance(snapshot, Mapping) else {}, payload):
            step.facts |= {
                key: source[key] for key in (*_SERVICE_FACTS, "operation_mode", "wait_for") if source.get(key)
            }
        accepted = payload.get("wait_for") == "accepted" or payload.get("operation_mode") == "async"
        if event_type != "ServiceCallStarted" or accepted:
            self._end(step, position, event, event_type, payload)
            self._binding.passed(condition=False)

    def _wait_opened(
        self, position: int, _event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]
    ) -> None:
        wait_id = text(payload.get("condition_wait_id"))
        if wait_id is None:
            return
        sequence = sequence_of(position, payload)
        known = self._find(position, sequence, WaitStep)
        if known is not None or wait_id in self._waits.by_id:
            known = known or self._waits.by_id[wait_id]
            if known.wait_id == wait_id and equal(known.end, payload):
                return
            raise HistoryError(
                f"event {position} ({event_type}) opens {wait_id!r}, but history already has a {known}",
                position=position,
            )
        step = WaitStep(CONDITION, self._rank(sequence), position, sequence is not None, [event_type])
        step.wait_id, step.timeout, step.end = wait_id, payload.get("timeout_seconds"), payload
        step.key = text(payload.get("condition_key"))
        step.fingerprint = text(payload.get("condition_definition_fingerprint"))
        if sequence is not None:
            self._history.by_sequence[sequence] = step
        self._waits.opened(step)
        self._member(step, event_type, payload)
        self._binding.opened(wait_id)
        delivery = self._delivery
        if step.selection is None and (
            not self._interrupts(step.sequence) or (delivery is not None and delivery.call_kind == "condition")
        ):
            self._history.waits.append(step)

    def _wait_ended(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        wait_id = text(payload.get("condition_wait_id"))
        if wait_id is not None:
            self._resolve_wait(wait_id, event_type == "ConditionWaitSatisfied", position, event, event_type, payload)
        self._binding.passed(condition=True)

    def _resolve_wait(
        self,
        wait_id: str,
        satisfied: bool,
        position: int,
        event: Mapping[str, Any],
        event_type: str,
        payload: Mapping[str, Any],
    ) -> None:
        step = self._waits.by_id.get(wait_id)
        if step is None or self._interrupts(step.sequence):
            return
        if step.selection is not None:
            if path_of(payload) is None or "parallel_group_path" not in payload:
                self._contradiction(step, "the end of a selected condition with its parallel_group_path", event_type)
            self._member(step, event_type, payload)
        self._waits.resolved(wait_id, satisfied, position, event_type, _event_id(event))

    def _receiver(self, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]) -> None:
        signal = event_type == "SignalReceived"
        name = text(payload.get("signal_name" if signal else "update_name"))
        if name is None:
            return
        receiver = Receiver(
            kind="signal" if signal else "update",
            name=name,
            payload=payload,
            position=position,
            answers=len(self._history.answered),
            selections=len(self._history.resolutions),
            after_delivery=self._history.cancellation is not None and self._history.cancellation.delivery is not None,
        )
        self._history.receivers.append(receiver)
        sequence = sequence_of(position, payload)
        wait = None if sequence is None else self._history.by_sequence.get(sequence)
        if isinstance(wait, WaitStep) and wait.selection is not None:
            receiver.wait_id = wait.wait_id  # selected conditions are open side by side: only the number tells
        else:
            self._binding.received(receiver, numbered=sequence is not None)

    def _update_accepted(
        self, _position: int, _event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]
    ) -> None:
        update_id = text(payload.get("update_id"))
        if update_id is not None:
            self._history.accepted_updates[update_id] = payload

    def _selection_resolved(
        self, position: int, _event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]
    ) -> None:
        if isinstance(payload.get("selection_group_id"), str):
            self._history.resolutions.append((position, payload))

    def _selection_cancelled(
        self, position: int, _event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]
    ) -> None:
        group, base = payload.get("selection_group_id"), payload.get("member_base_sequence")
        if not isinstance(group, str) or not is_number(base):
            return
        known = self._history.cancelled_members.setdefault((group, base), (position, payload))
        if not equal(known[1], payload):
            raise NonDeterminismError(
                f"the member at sequence {base} of {group!r} is recorded as cancelled in two ways",
                sequence=base,
                expected="one SelectionOperationCancelled",
                found="two that differ",
            )

    def _cancellation_requested(
        self, position: int, event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]
    ) -> None:
        self._history.strict = True
        if self._history.cancellation is not None:
            raise HistoryError(f"event {position} requests cancellation a second time", position=position)
        self._history.cancellation = read_request(position, event, payload, run_id=self._run_id)

    def _cancellation_delivered(
        self, position: int, event: Mapping[str, Any], _type: str, payload: Mapping[str, Any]
    ) -> None:
        delivery = read_delivery(position, event, payload, run_id=self._run_id)
        self._history.strict = True
        record = self._history.cancellation
        if record is None:
            raise HistoryError(f"event {position} delivers a cancellation that nobody requested", position=position)
        record.deliver(delivery, payload)
        self._binding.passed(condition=delivery.call_kind == "condition")

    def _find(self, position: int, sequence: int | None, kind: type[_S]) -> _S | None:
        step = None if sequence is None else self._history.by_sequence.get(sequence)
        if step is None or isinstance(step, kind):
            return step
        raise HistoryError(f"event {position}: sequence {sequence} is also a {step.shape}", position=position)

    def _add(self, step: Step, sequence: int | None) -> None:
        self._opened.append(step)
        if sequence is not None:
            self._history.by_sequence[sequence] = step

    def _rank(self, sequence: int | None) -> int:
        """Give the number of a step; histories without numbers are matched by order."""
        return len(self._history.answered) + len(self._history.waits) + 1 if sequence is None else sequence

    def _member(self, step: Step, event_type: str, payload: Mapping[str, Any]) -> None:
        """Read what an event says of the groups and of the identity of its step."""
        if "parallel_group_id" in payload or "parallel_group_path" in payload:
            path = path_of(payload)
            step.path = step.path if path is None else path
            selection = selection_of(step.sequence, payload)
            if selection is not None and step.selection is None:
                step.selection = selection
                self._history.selected[step.sequence] = step
        if step.selection is not None:
            identity = text(payload.get(_IDENTITIES.get(step.shape, "")))
            if event_type in _OPENINGS and step.identity is None:
                step.identity = identity
            elif identity != step.identity:
                step.identity_disputed = True

    def _repeats(self, step: Step, position: int, event_type: str, payload: Mapping[str, Any]) -> bool:
        """Tell an exact repetition of the recorded end; HistoryError for an end that differs from it."""
        if step.end_type is None:
            return False
        if event_type == step.end_type and equal(payload, step.end):
            return True
        raise HistoryError(
            f"event {position} ({event_type}) follows the end of sequence {step.sequence} ({step.end_type})",
            position=position,
        )

    def _end(
        self, step: Step, position: int, event: Mapping[str, Any], event_type: str, payload: Mapping[str, Any]
    ) -> None:
        delivery = self._delivery
        interrupted = self._interrupts(step.sequence)
        if interrupted and delivery is not None and delivery.call_kind == "selection_handle":
            return  # the handle's operation stays open for the code: its end came after the cancellation
        step.end_type, step.end, step.end_position, step.end_id = event_type, payload, position, _event_id(event)
        if not step.numbered:
            step.sequence = self._rank(None)
        if step.selection is None and not interrupted:
            self._history.answered.append(step)

    def _interrupts(self, sequence: int) -> bool:
        return self._delivery is not None and self._delivery.interrupts(sequence)

    def _contradiction(self, step: Step, expected: str, found: object) -> None:
        raise NonDeterminismError(
            f"the events of sequence {step.sequence} contradict each other: {expected} ({found})",
            sequence=step.sequence,
            expected=expected,
            found=str(found),
        )


def _find_delivery(events: Sequence[Mapping[str, Any]]) -> Delivery | None:
    """Find the delivery ahead of reading: it decides what the events before it mean (events.md §4)."""
    for position, event in enumerate(events):
        if (
            isinstance(event, Mapping)
            and event.get("event_type", event.get("type")) == "CooperativeCancellationDelivered"
        ):
            payload = event.get("payload")
            return read_delivery(position, event, payload if isinstance(payload, Mapping) else {})
    return None


def _authored_order(answered: list[Step]) -> list[Step]:
    """Put the members of each complete group into authored order within the places they hold (events.md §6.3)."""
    slots: dict[tuple[Any, ...], list[int]] = {}
    for slot, step in enumerate(answered):
        if step.path is not None and all(_is_member(entry, step) for entry in step.path):
            outer = step.path[0]
            key = tuple(
                outer[name]
                for name in (
                    "parallel_group_id",
                    "parallel_group_kind",
                    "parallel_group_base_sequence",
                    "parallel_group_size",
                )
            )
            slots.setdefault(key, []).append(slot)
    ordered = list(answered)
    for (*_, base, size), places in slots.items():
        members = sorted((answered[place] for place in places), key=lambda step: step.sequence)
        if [step.sequence for step in members] == list(range(base, base + size)) if len(members) == size else False:
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


def _event_id(event: Mapping[str, Any]) -> str | None:
    return text(event.get("id")) or text(event.get("event_id"))
