"""Events of operations: activities, timers, children, service operations and markers (events.md §4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from proctor.core.replay.recorded.arrivals import resolve_wait
from proctor.core.replay.recorded.ledger import Event, Ledger, contradiction, refuse_after_end, refuse_scope
from proctor.core.replay.recorded.memos import read_entries
from proctor.core.replay.recorded.steps import (
    ACTIVITY,
    CHILD,
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
    activity_type_of,
    is_number,
    is_object,
    policies_of,
    sequence_of,
    shown,
    text,
)
from proctor.errors import HistoryError

_ACTIVITY_ENDS: Final = ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled")
_CHILD_ENDS: Final = ("ChildRunCompleted", "ChildRunFailed", "ChildRunCancelled", "ChildRunTerminated")
_MARKERS: Final = {
    "SideEffectRecorded": SIDE_EFFECT,
    "VersionMarkerRecorded": VERSION_MARKER,
    "MemoUpserted": MEMO,
    "SearchAttributesUpserted": SEARCH_ATTRIBUTES,
}
_POLICIES: Final = frozenset({"try_cancel", "wait_cancellation_completed", "abandon"})
_DEFAULT_POLICY: Final = "try_cancel"
_DEFAULT_CHILD_POLICY: Final = "abandon"
_PARENT_CLOSE: Final = frozenset({"abandon", "request_cancel", "request_cancellation", "terminate"})
_SERVICE_FACTS: Final = (
    "endpoint_name",
    "service_name",
    "operation_name",
    "idempotency_key",
    "target_namespace",
    "operation_mode",
    "wait_for",
)
_PREPARED_EVIDENCE: Final = frozenset({"local_preparation", "local_outcome", "local_recovery", "local_group_admission"})


def _activity(ledger: Ledger, event: Event) -> None:
    payload = event.payload
    if not _PREPARED_EVIDENCE.isdisjoint(payload):
        ledger.history.strict = True
    step = _activity_step(ledger, event)
    if event.type in _ACTIVITY_ENDS and ledger.repeats(step, event):
        return
    if step.end_type is not None:
        ledger.repeats(step, event)
    step.event_types.append(event.type)
    step.local = step.local or payload.get("execution_mode") == "local" or payload.get("local_activity") is True
    step.activity_type = activity_type_of(payload) or step.activity_type
    if "cancellation_policy" in payload or "activity" in payload:
        _activity_policies(step, event)
    if event.type == "ActivityRetryScheduled":
        step.open_attempt = None
        return
    ledger.join(step, event)
    if event.type == "ActivityStarted":
        number = payload.get("attempt_number")
        step.attempts_started = max(step.attempts_started + 1, number if is_number(number) else 0)
        step.open_attempt = payload
    elif event.type == "ActivityScheduled":
        ledger.waits.passed(event.type)
    else:
        step.open_attempt = None
        ledger.end(step, event)
    ledger.binding.passed(condition=False)


def _activity_step(ledger: Ledger, event: Event) -> ActivityStep:
    sequence = sequence_of(event.position, event.payload)
    step = _unnumbered(ledger) if sequence is None else ledger.find(event, sequence, ActivityStep)
    return step or ledger.add(ActivityStep, ACTIVITY, event, sequence)


def _unnumbered(ledger: Ledger) -> ActivityStep | None:
    """Give the open activity of a history without numbers: the one that is meant there."""
    last = ledger.opened[-1] if ledger.opened else None
    return last if isinstance(last, ActivityStep) and not last.numbered and last.end_type is None else None


def _activity_policies(step: ActivityStep, event: Event) -> None:
    payload = event.payload
    snapshot = payload.get("activity")
    if is_object(snapshot) and "cancellation_scope_id" in snapshot:
        refuse_scope(event, snapshot["cancellation_scope_id"])
    found = policies_of(payload)
    if found <= step.policies:
        return
    if not step.policies and len(step.event_types) > 1:
        step.policies.add(_DEFAULT_POLICY)  # what the events before this one said by saying nothing
    step.policies |= found
    if not step.policies <= _POLICIES:
        contradiction(step, "invalid_activity_cancellation_policy_history", sorted(step.policies))
    if len(step.policies) > 1:
        contradiction(step, "activity_cancellation_policy_history_conflict", sorted(step.policies))


def _heartbeat(ledger: Ledger, event: Event) -> None:
    sequence = sequence_of(event.position, event.payload)
    step = _unnumbered(ledger) if sequence is None else ledger.history.by_sequence.get(sequence)
    progress = event.payload.get("progress")
    details = progress.get("details") if isinstance(progress, Mapping) else None
    if isinstance(step, ActivityStep) and isinstance(details, Mapping):
        step.last_heartbeat = dict(details)


def _timer(ledger: Ledger, event: Event) -> None:
    sequence = sequence_of(event.position, event.payload)
    fired = event.type == "TimerFired"
    kind_of = ledger.waits.timer_kind if fired else ledger.waits.scheduled_timer
    kind = kind_of(sequence, event.payload)
    if kind == "condition" and fired:
        wait_id = ledger.waits.wait_of_timer(sequence, event.payload)
        if wait_id is not None:
            resolve_wait(ledger, event, wait_id, satisfied=False)
        ledger.binding.passed(condition=True)
    if kind != "ordinary":
        return
    step = ledger.find_or_add(TimerStep, TIMER, event, sequence)
    if fired and ledger.repeats(step, event):
        return
    if step.end_type is not None:
        refuse_after_end(event, step)
    step.event_types.append(event.type)
    step.delay = event.payload.get("delay_seconds", step.delay)
    ledger.join(step, event)
    if fired:
        ledger.end(step, event)
    ledger.binding.passed(condition=False)


def _timer_cancelled(ledger: Ledger, event: Event) -> None:
    if ledger.waits.timer_kind(sequence_of(event.position, event.payload), event.payload) == "condition":
        ledger.binding.passed(condition=True)


def _child(ledger: Ledger, event: Event) -> None:
    payload = event.payload
    step = ledger.find_or_add(ChildStep, CHILD, event, sequence_of(event.position, payload))
    ends = event.type in _CHILD_ENDS
    if event.type == "ChildWorkflowScheduled" and step.end_type is not None:
        refuse_after_end(event, step)
    if (ends and ledger.repeats(step, event)) or step.end_type is not None:
        return  # the next run of a retried child changes nothing for its parent
    step.event_types.append(event.type)
    named = text(payload.get("workflow_type")) or text(payload.get("child_workflow_type"))
    step.workflow_type = named or step.workflow_type
    for policy, allowed in (("parent_close_policy", _PARENT_CLOSE), ("cancellation_policy", _POLICIES)):
        _child_policy(step, policy, allowed, payload.get(policy))
    ledger.join(step, event)
    if ends:
        ledger.end(step, event)
    elif event.type == "ChildWorkflowScheduled":
        ledger.waits.passed(event.type)
    ledger.binding.passed(condition=False)


def _child_policy(step: ChildStep, policy: str, allowed: frozenset[str], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or value not in allowed:
        contradiction(step, "invalid_child_workflow_policy_history", shown(value))
    known = getattr(step, policy)
    if known is None and len(step.event_types) > 1:
        known = _DEFAULT_CHILD_POLICY  # what the events before this one said by saying nothing
    if known not in (None, value):
        contradiction(step, "child_workflow_policy_history_conflict", value)
    setattr(step, policy, value)


def _service(ledger: Ledger, event: Event) -> None:
    payload = event.payload
    step = ledger.find_or_add(ServiceStep, SERVICE, event, sequence_of(event.position, payload))
    if step.end_type is not None:
        if step.end_type != "ServiceCallStarted" or event.type == "ServiceCallStarted":
            refuse_after_end(event, step)
        return  # what was accepted is the answer; how it ends is told elsewhere
    step.event_types.append(event.type)
    snapshot = payload.get("service_call")
    for source in (snapshot if isinstance(snapshot, Mapping) else {}, payload):
        step.facts |= {key: source[key] for key in _SERVICE_FACTS if source.get(key)}
    accepted = payload.get("wait_for") == "accepted" or payload.get("operation_mode") == "async"
    if event.type != "ServiceCallStarted" or accepted:
        ledger.end(step, event)
        ledger.binding.passed(condition=False)


def _marker(ledger: Ledger, event: Event) -> None:
    sequence = sequence_of(event.position, event.payload)
    known = None if sequence is None else ledger.history.by_sequence.get(sequence)
    if known is not None:
        if event.type == "MemoUpserted" and known.shape == MEMO:
            contradiction(known, "one MemoUpserted", "two of them")
        _refuse_repetition(event, known)
    step = ledger.add(MarkerStep, _MARKERS[event.type], event, sequence)
    step.event_types.append(event.type)
    if step.shape == MEMO:
        if sequence is None:
            contradiction(step, "a memo upsert with its sequence", "MemoUpserted without one")
        step.memo = read_entries(event.payload, sequence=step.sequence)
    ledger.end(step, event)
    ledger.binding.passed(condition=False)


def _refuse_repetition(event: Event, known: Step) -> NoReturn:
    raise HistoryError(
        f"event {event.position} ({event.type}): sequence {known.sequence} is already a {known}",
        position=event.position,
    )


OPERATIONS: Final[dict[str, Callable[[Ledger, Event], None]]] = {
    "ActivityScheduled": _activity,
    "ActivityStarted": _activity,
    "ActivityRetryScheduled": _activity,
    **dict.fromkeys(_ACTIVITY_ENDS, _activity),
    "ActivityHeartbeatRecorded": _heartbeat,
    "TimerScheduled": _timer,
    "TimerFired": _timer,
    "TimerCancelled": _timer_cancelled,
    "ChildWorkflowScheduled": _child,
    "ChildRunStarted": _child,
    **dict.fromkeys(_CHILD_ENDS, _child),
    "ServiceCallStarted": _service,
    "ServiceCallCompleted": _service,
    "ServiceCallFailed": _service,
    "ServiceCallCancelled": _service,
    **dict.fromkeys(_MARKERS, _marker),
}
"""What each event of an operation does to the ledger."""
