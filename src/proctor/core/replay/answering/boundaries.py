"""Where a cooperative cancellation meets the code: the call at which it is, or is to be, delivered (cancellation.md).

A recorded delivery must be reached at exactly its call; a request without a delivery ends the replay at the first call
that may carry it.
"""

from __future__ import annotations

from collections.abc import Sequence

from proctor.core.replay.answering.answers import Fail, Outcome, Throw
from proctor.core.replay.answering.run import Replaying
from proctor.core.replay.authoring.placing import Placed
from proctor.core.replay.decision import Boundary
from proctor.core.replay.failures import WorkflowCancelled
from proctor.core.replay.recorded.cancelling import CancellationRecord, Delivery
from proctor.core.replay.recorded.ledger import History
from proctor.core.replay.recorded.steps import WaitStep

_FAILURES = frozenset(
    {
        "ActivityFailed",
        "ActivityTimedOut",
        "ActivityCancelled",
        "ChildRunFailed",
        "ChildRunCancelled",
        "ChildRunTerminated",
        "ServiceCallFailed",
        "ServiceCallCancelled",
    }
)


def at_call(
    run: Replaying,
    asked: object,
    kind: str,
    leaves: Sequence[Placed],
    *,
    sequence: int | None = None,
    operation: tuple[int, int] | None = None,
) -> Outcome | None:
    """Deliver, or ask to deliver, the cancellation at this call; None when the call goes on as usual.

    `leaves` are the operations of the call, `sequence` its number (the next one by default), `operation` the numbers
    of the operation that an awaited handle names.
    """
    record = run.history.cancellation
    if record is None or run.cancelled:
        return None
    sequence = run.cursor.position if sequence is None else sequence
    span = 1 if operation is not None else len(leaves)
    if record.delivery is None:
        first, count = operation or (sequence, span)
        if run.context._shields or not _is_eligible(run.history, record, first, count):
            return None
        _check_openings(run, asked, leaves, sequence, span, is_handle=operation is not None)
        return Boundary(
            prefix=tuple(run.authored.commands),
            prefix_start=run.prefix_start,
            request_id=record.request_id,
            call_kind=kind,
            sequence=sequence,
            span=span,
            operation_sequence=None if operation is None else operation[0],
            operation_span=1 if operation is None else operation[1],
        )
    delivery = record.delivery
    if delivery.sequence > sequence:
        return None
    if delivery.sequence < sequence:
        refuse_passing(run, asked, delivery)
    if operation is not None and operation != (delivery.operation_sequence, delivery.operation_span):
        return None  # a handle takes no number of its own, so the call that carries it may come behind
    if (
        run.context._shields
        or (delivery.call_kind, delivery.span) != (kind, span)
        or (delivery.operation_sequence, delivery.operation_span) != (operation or (None, 1))
    ):
        shielded = "shielded " if run.context._shields else ""
        run.cursor.refuse(
            f"{shielded}{asked}", f"a cancellation delivered to a call of kind {delivery.call_kind!r}", at=sequence
        )
    return _deliver(run, record, delivery, leaves)


def refuse_passing(run: Replaying, asked: object, delivery: Delivery) -> None:
    """End the replay: the code goes past the call at which history delivers the cancellation."""
    run.cursor.refuse(str(asked), f"a cancellation delivered at sequence {delivery.sequence}", at=delivery.sequence)


def must_not_pass(run: Replaying, asked: object, *, span: int = 1) -> None:
    """Require that the delivery is not at or before a command that cannot carry it and takes `span` numbers.

    One that takes none has the number of the call behind it, which may be the one that carries the delivery.
    """
    delivery = pending_delivery(run)
    if delivery is not None and delivery.sequence < run.cursor.position + span:
        refuse_passing(run, asked, delivery)


def pending_delivery(run: Replaying) -> Delivery | None:
    """Give the recorded delivery that the code has not reached yet."""
    record = run.history.cancellation
    return None if record is None or run.cancelled else record.delivery


def _deliver(run: Replaying, record: CancellationRecord, delivery: Delivery, leaves: Sequence[Placed]) -> Outcome:
    _check_members(run, leaves, delivery.sequence)
    wait = run.cursor.wait
    if isinstance(wait, WaitStep) and delivery.call_kind == "condition" and wait.sequence == delivery.sequence:
        failure = run.receivers.of_wait(wait)
        if failure is not None:
            return Fail(failure)
        run.cursor.take_wait()
    run.selected.update(range(delivery.sequence, delivery.sequence + delivery.span))  # over, if it was a selection
    run.cancelled = True
    run.cursor.position = delivery.sequence + delivery.span
    run.time.observe(run.history.events[delivery.position])
    context = record.context(run.time)
    run.context._deliver(record.request_id, context)
    return Throw(WorkflowCancelled(request_id=record.request_id, context=context))


def _check_openings(
    run: Replaying, asked: object, leaves: Sequence[Placed], sequence: int, span: int, *, is_handle: bool
) -> None:
    """Require that history, as far as it goes, stands at this very call."""
    step = run.cursor.unconsumed
    if step is not None and not is_handle and not sequence <= step.sequence < sequence + span:
        run.cursor.refuse(f"{asked} at sequence {sequence}", f"{step} at sequence {step.sequence}", at=sequence)
    _check_members(run, leaves, sequence)


def _check_members(run: Replaying, leaves: Sequence[Placed], base: int) -> None:
    for offset, leaf in enumerate(leaves):
        step = run.history.by_sequence.get(base + offset)
        if step is not None:
            run.cursor.check(leaf.command, step, leaf.path or None)


def _is_eligible(history: History, record: CancellationRecord, sequence: int, span: int) -> bool:
    """Tell whether a request may be delivered here: what was known before it is delivered first."""
    resolved = 0
    for number in range(sequence, sequence + span):
        step = history.by_sequence.get(number)
        if step is not None and 0 <= step.end_position < record.position:
            if step.end_type in _FAILURES:
                return False
            resolved += 1
        else:
            resolved += _was_cancelled(history, record, number)
    if resolved == span:
        return False
    return history.resolved_at.get((sequence, span), record.position) >= record.position


def _was_cancelled(history: History, record: CancellationRecord, number: int) -> bool:
    return history.member_cancelled_at.get(number, record.position) < record.position
