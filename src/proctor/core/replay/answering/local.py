"""Local activities: a recorded one gives its result without the handler, an open one ends the replay as a LocalCall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.core import codec
from proctor.core.replay.answering.answers import Answer, Outcome, Throw
from proctor.core.replay.answering.boundaries import at_call, pending_delivery, refuse_passing
from proctor.core.replay.answering.run import Replaying
from proctor.core.replay.authoring.commands import LocalActivity
from proctor.core.replay.authoring.placing import Path, Placed
from proctor.core.replay.authoring.wire_form import envelope, local_descriptor, membership
from proctor.core.replay.decision import Cleanup, LocalCall, Unworkable
from proctor.core.replay.failures import ActivityFailed
from proctor.core.replay.recorded.steps import ActivityStep


def answer_local(run: Replaying, command: LocalActivity) -> Outcome:
    """Answer a local activity from history, or ask for its execution."""
    outcome = at_call(run, command, "local_activity", (Placed(command, ()),))
    if outcome is not None:
        return outcome
    cursor = run.cursor
    step = cursor.answered
    if step is not None:
        cursor.check_order(command, step)
        cursor.check(command, step)
        cursor.take(command)
        run.observe(step.end_position)
        return run.answer(step)
    delivery = pending_delivery(run)
    if delivery is not None:
        refuse_passing(run, f"{command} without an outcome", delivery)
    open_step = cursor.unconsumed
    if open_step is not None:
        cursor.check(command, open_step, at=cursor.position)
        behind = cursor.next_unconsumed(2)[1:]
        if behind:
            cursor.refuse(f"{command} without an outcome", str(behind[0]), at=behind[0].sequence)
    if run.uncommitted:
        return _answer_uncommitted(run, command)
    assert open_step is None or isinstance(open_step, ActivityStep)
    sequence = cursor.position if open_step is None or not open_step.numbered else open_step.sequence
    return call_of(run, command, open_step, sequence=sequence, prefix=tuple(run.authored.commands))


def call_of(
    run: Replaying,
    command: LocalActivity,
    step: ActivityStep | None,
    *,
    sequence: int,
    prefix: tuple[dict[str, Any], ...],
    path: Path = (),
) -> LocalCall | Unworkable:
    """Build the LocalCall of an activity without an outcome; `step` is what history has of it."""
    arguments = envelope(command.arguments)
    descriptor = local_descriptor(command, arguments) | membership(path)
    cleanup = _cleanup(run, sequence)
    if isinstance(cleanup, Unworkable):
        return cleanup
    if cleanup is not None:
        descriptor["cancellation_cleanup"] = {
            "request_id": cleanup.request_id,
            "delivery_history_event_id": cleanup.delivery_history_event_id,
        }
    return LocalCall(
        prefix=prefix,
        prefix_start=sequence - run.authored.span if prefix else sequence,
        sequence=sequence,
        activity_type=command.activity_type,
        descriptor=descriptor,
        arguments=codec.decode_arguments(arguments, None),
        interrupted=None if step is None else step.interrupted,
        last_heartbeat=None if step is None else step.last_heartbeat,
        attempts_started=0 if step is None else step.attempts_started,
        start_to_close_timeout=command.start_to_close_timeout,
        schedule_to_close_timeout=command.schedule_to_close_timeout,
        heartbeat_timeout=command.heartbeat_timeout,
        cleanup=cleanup,
    )


def _cleanup(run: Replaying, sequence: int) -> Cleanup | Unworkable | None:
    """Prove that a prepared call belongs to the cleanup of a delivered cancellation (cancellation.md §7)."""
    record = run.history.cancellation
    if record is None or not run.task.prepared:
        return None
    delivery = record.delivery
    if delivery is None or not run.cancelled or not run.context._shields:
        return Unworkable(
            "call_after_cancellation",
            f"the local activity at sequence {sequence} is not inside ctx.cancellation_shield() after the delivery "
            "of the cancellation",
        )
    if record.body is None or delivery.event_id is None or sequence < delivery.sequence + delivery.span:
        return Unworkable("cleanup_not_provable", "history lacks the context or the event id of the cancellation")
    return Cleanup(
        request_id=record.request_id,
        root_request_id=record.body["root_request_id"],
        delivery_history_event_id=delivery.event_id,
        cleanup_deadline_at=record.cleanup_deadline_at,
    )


def _answer_uncommitted(run: Replaying, command: LocalActivity) -> Outcome:
    """Give the code the outcome of a call that this task ran before (profile ``ordinary``)."""
    record = run.take_uncommitted(command, "record_local_activity")
    if record.get("activity_type") != command.activity_type:
        run.cursor.refuse(str(command), f"local activity {record.get('activity_type')!r} of this very task")
    if record.get("outcome") == "completed":
        return Answer(codec.decode_value(record.get("result"), codec.CODEC))
    return Throw(_fresh_failure(command, record))


def _fresh_failure(command: LocalActivity, record: Mapping[str, Any]) -> ActivityFailed:
    return ActivityFailed(
        str(record.get("message") or "activity failed"),
        activity_type=command.activity_type,
        exception_type=record.get("exception_type"),
        non_retryable=record.get("non_retryable") is True,
    )
