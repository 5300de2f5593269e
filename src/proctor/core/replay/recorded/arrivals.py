"""Events of waiting and of what reaches a run from outside: condition waits, receivers, selections, cancellation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proctor.core.replay.recorded.cancelling import MAX_SPAN, read_delivery, read_request
from proctor.core.replay.recorded.ledger import Event, Ledger, contradiction
from proctor.core.replay.recorded.steps import (
    CONDITION,
    SIGNAL_WAIT,
    SignalWaitStep,
    WaitStep,
    equal,
    is_number,
    path_of,
    sequence_of,
    text,
)
from proctor.core.replay.recorded.waits import Receiver
from proctor.errors import HistoryError, NonDeterminismError


def _wait_opened(ledger: Ledger, event: Event) -> None:
    payload = event.payload
    wait_id = text(payload.get("condition_wait_id"))
    if wait_id is None:
        return
    sequence = sequence_of(event.position, payload)
    known = ledger.find(event, sequence, WaitStep) or ledger.waits.by_id.get(wait_id)
    if known is not None:
        raise HistoryError(
            f"event {event.position} ({event.type}) opens {wait_id!r}, but history already has a {known}",
            position=event.position,
        )
    if wait_id in ledger.waits.ended_unopened:
        raise HistoryError(
            f"event {event.position} ({event.type}) opens {wait_id!r} behind its end", position=event.position
        )
    step = ledger.add(WaitStep, CONDITION, event, sequence)
    step.event_types.append(event.type)
    step.wait_id, step.timeout, step.end = wait_id, payload.get("timeout_seconds"), payload
    step.key = text(payload.get("condition_key"))
    step.fingerprint = text(payload.get("condition_definition_fingerprint"))
    ledger.waits.opened(step)
    ledger.join(step, event)
    ledger.binding.opened(wait_id)
    delivery = ledger.delivery
    replaced = delivery is not None and delivery.call_kind != "condition" and delivery.interrupts(step.sequence)
    if step.selection is None and not replaced:
        ledger.history.waits.append(step)


def _wait_ended(ledger: Ledger, event: Event) -> None:
    wait_id = text(event.payload.get("condition_wait_id"))
    if wait_id is not None:
        resolve_wait(ledger, event, wait_id, satisfied=event.type == "ConditionWaitSatisfied")
    ledger.binding.passed(condition=True)


def resolve_wait(ledger: Ledger, event: Event, wait_id: str, *, satisfied: bool) -> None:
    """Record how a condition wait ended; one that a cancellation replaced has no end of its own."""
    step = ledger.waits.by_id.get(wait_id)
    if step is None:
        ledger.waits.ended_unopened.add(wait_id)
        return
    if ledger.interrupts(step.sequence):
        return
    if step.selection is not None:
        if path_of(event.payload) is None or "parallel_group_path" not in event.payload:
            contradiction(step, "the end of a selected condition with its parallel_group_path", event.type)
        ledger.join(step, event)
    ledger.waits.resolved(step, satisfied, event.position, event.type, event.identity)


def _receiver(ledger: Ledger, event: Event) -> None:
    signal = event.type == "SignalReceived"
    name = text(event.payload.get("signal_name" if signal else "update_name"))
    if name is None:
        return
    record = ledger.history.cancellation
    receiver = Receiver(
        kind="signal" if signal else "update",
        name=name,
        payload=event.payload,
        position=event.position,
        answers=len(ledger.history.answered),
        selections=len(ledger.history.resolutions),
        after_delivery=record is not None and record.delivery is not None,
    )
    ledger.history.receivers.append(receiver)
    sequence = sequence_of(event.position, event.payload)
    wait = None if sequence is None else ledger.history.by_sequence.get(sequence)
    if isinstance(wait, WaitStep) and wait.selection is not None:
        receiver.wait_id = wait.wait_id  # selected conditions are open side by side: only the number tells
    else:
        ledger.binding.received(receiver, numbered=sequence is not None)


def _signal_wait_opened(ledger: Ledger, event: Event) -> None:
    """Keep a step that no code of ours asks for: passing it by in silence would shift all that follows."""
    sequence = sequence_of(event.position, event.payload)
    if sequence is None:
        return
    step = ledger.find_or_add(SignalWaitStep, SIGNAL_WAIT, event, sequence)
    step.event_types.append(event.type)
    step.name = text(event.payload.get("signal_name"))


def _update_accepted(ledger: Ledger, event: Event) -> None:
    update_id = text(event.payload.get("update_id"))
    if update_id is not None:
        ledger.history.accepted_updates[update_id] = event.payload


def _selection_resolved(ledger: Ledger, event: Event) -> None:
    if isinstance(event.payload.get("selection_group_id"), str):
        ledger.history.resolutions.append((event.position, event.payload))
        base, size = (event.payload.get(f"selection_group_{name}") for name in ("base_sequence", "size"))
        if is_number(base) and is_number(size):
            ledger.history.resolved_at.setdefault((base, size), event.position)


def _selection_cancelled(ledger: Ledger, event: Event) -> None:
    group, base = event.payload.get("selection_group_id"), event.payload.get("member_base_sequence")
    if not isinstance(group, str) or not is_number(base):
        return
    size = event.payload.get("member_size")
    for number in range(base, base + size) if is_number(size) and size <= MAX_SPAN else ():
        ledger.history.member_cancelled_at.setdefault(number, event.position)
    _, known = ledger.history.cancelled_members.setdefault((group, base), (event.position, event.payload))
    if not equal(known, event.payload):
        raise NonDeterminismError(
            f"the member at sequence {base} of {group!r} is recorded as cancelled in two ways",
            sequence=base,
            expected="one SelectionOperationCancelled",
            found="two that differ",
        )


def _cancellation_requested(ledger: Ledger, event: Event) -> None:
    history = ledger.history
    if history.cancellation is not None:
        raise HistoryError(f"event {event.position} requests cancellation a second time", position=event.position)
    history.strict = True
    history.cancellation = read_request(event.position, event.envelope, event.payload, run_id=ledger.run_id)


def _cancellation_delivered(ledger: Ledger, event: Event) -> None:
    delivery = read_delivery(event.position, event.envelope, event.payload, run_id=ledger.run_id)
    record = ledger.history.cancellation
    if record is None:
        raise HistoryError(
            f"event {event.position} delivers a cancellation that nobody requested", position=event.position
        )
    record.deliver(delivery, event.payload)
    ledger.binding.passed(condition=delivery.call_kind == "condition")


ARRIVALS: Final[dict[str, Callable[[Ledger, Event], None]]] = {
    "ConditionWaitOpened": _wait_opened,
    "ConditionWaitSatisfied": _wait_ended,
    "ConditionWaitTimedOut": _wait_ended,
    "SignalReceived": _receiver,
    "SignalWaitOpened": _signal_wait_opened,
    "UpdateApplied": _receiver,
    "UpdateAccepted": _update_accepted,
    "SelectionResolved": _selection_resolved,
    "SelectionOperationCancelled": _selection_cancelled,
    "CooperativeCancellationRequested": _cancellation_requested,
    "CooperativeCancellationDelivered": _cancellation_delivered,
}
"""What each of these events does to the ledger."""
