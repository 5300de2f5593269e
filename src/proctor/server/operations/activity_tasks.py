"""Queued activity tasks on the wire: poll, lease renewal, heartbeat, status, outcomes, stop receipts (worker.md §3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, release_expired, resolve_overdue, saving
from proctor.server.operations.session_leases import (
    admit_activity,
    is_usable,
    renew_by_activity,
    session_of,
    told_of_session,
)
from proctor.server.operations.workflow_polls import STALE, polling_worker
from proctor.server.rules.book import RunBook
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.queued import ending, leasing, standing
from proctor.server.rules.refusal import Answer, Refusal, conflict, not_found
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.steps import ActivityCall
from proctor.server.transaction import Transaction

PROGRESS_LIMIT = 65_536
_FAILURE_LIMIT = 65_536


def poll(tx: Transaction, call: Call) -> Answer:
    """Lease an activity to this worker, repeat the lease of the same request id, or answer `empty` at once."""
    worker_id, queue = str(call.body["worker_id"]), str(call.body["task_queue"])
    registration = polling_worker(tx, call, worker_id, queue)
    if call.incarnation not in (None, registration.token):
        return _nothing(tx, STALE)
    if not registration.activity_types:
        return _nothing(tx, "no_activity_capability", registration.token)
    request_id = call.body.get("poll_request_id")
    resolve_overdue(tx)
    release_expired(tx)
    if request_id is not None:
        known = tx.polled_activity(call.namespace, worker_id, str(request_id))
        if known is not None:
            return _leased(tx, *known)
    for run_id, sequence in tx.ready_activities(call.namespace, queue, registration.activity_types):
        book, activity = _load(tx, run_id, sequence)
        if book is None or activity is None:
            continue
        with saving(tx, book):
            enforce_deadlines(book)
            current = book.steps[sequence]
            if not isinstance(current, ActivityCall) or current.status != "pending":
                continue
            if not admit_activity(tx, call.minor, registration, current):
                continue
            leasing.lease(book, current, registration, None if request_id is None else str(request_id))
        return _leased(tx, run_id, sequence)
    return _nothing(tx, "empty", registration.token)


def undo_poll(tx: Transaction, namespace: str, task_id: str) -> None:
    """Take back a lease whose answer could not be delivered because the client had left."""
    known = tx.activity_task(namespace, task_id)
    book, activity = (None, None) if known is None else _load(tx, known[0], known[1])
    if book is not None and activity is not None and activity.attempt.task_id == task_id:
        with saving(tx, book):
            ending.release(book, activity)


def renew_lease(tx: Transaction, call: Call) -> Answer:
    """Renew the lease of a running attempt; no heartbeat is recorded and no deadline moves (worker.md §3.2)."""
    with _owned(tx, call) as (book, activity):
        standing.check_running(book, activity)
        renewed = leasing.renew(book, activity)
        attempt = renewed.attempt
        return Answer(
            {
                "lease_renewed": True,
                "can_continue": True,
                "cancel_requested": False,
                "heartbeat_recorded": False,
                "reason": None,
                "server_time": format_instant(tx.now),
                "lease_expires_at": instant_or_none(attempt.lease_expires_at),
                "workflow_task_id": attempt.task_id,
                "workflow_instance_id": book.run.workflow_id,
                "workflow_run_id": book.run.run_id,
                "activity_execution_id": renewed.step_id,
                "activity_attempt_id": attempt.attempt_id,
                "attempt_number": attempt.number,
                "lease_owner": attempt.lease_owner,
                "last_heartbeat_at": instant_or_none(attempt.last_heartbeat_at),
                "heartbeat_deadline_at": instant_or_none(attempt.heartbeat_deadline_at),
            }
        )


def heartbeat(tx: Transaction, call: Call) -> Answer:
    """Record a heartbeat, or say why the handler must stop (worker.md §3.3)."""
    fields = Fields(call.body)
    progress = {
        "details": fields.optional_object("details"),
        "message": fields.optional_text("message", limit=PROGRESS_LIMIT, blank=True),
        "unit": fields.optional_text("unit", blank=True),
        **{name: _number(fields, name) for name in ("current", "total")},
    }
    progress = {name: value for name, value in progress.items() if value is not None}
    if len(str(progress)) > PROGRESS_LIMIT:
        fields.wrong("details", f"progress may hold {PROGRESS_LIMIT} bytes")
    fields.check()
    try:
        return _beat(tx, call, progress)
    except Refusal as refusal:
        told = _told_of_follower(call, refusal)
        return Answer({name: value for name, value in told.items() if name not in standing.ONLY_IN_STATUS})


def _beat(tx: Transaction, call: Call, progress: dict[str, Any]) -> Answer:
    with _owned(tx, call) as (book, activity):
        stop = standing.why_stop(book, activity)
        alive, session = activity, None
        if stop is None:
            alive = leasing.beat(book, activity, progress)
            session = renew_by_activity(tx, alive)
        state = standing.state(book, alive, stop, recorded=stop is None, session=session)
        return Answer({"task_id": call.path["task_id"], **state})


def status(tx: Transaction, call: Call) -> Answer:
    """Say how an attempt stands; nothing changes (worker.md §3.4)."""
    if call.minor < 20:
        raise Refusal(422, "activity_attempt_status_unavailable", "the status of an attempt needs worker protocol 1.20")
    try:
        return _status(tx, call)
    except Refusal as refusal:
        return Answer(_told_of_follower(call, refusal))


def _status(tx: Transaction, call: Call) -> Answer:
    with _owned(tx, call) as (book, activity):
        stop = standing.why_stop(book, activity)
        attempt = activity.attempt
        session = session_of(tx, activity)
        if stop is None and not is_usable(activity, session):
            stop = standing.SESSION_LOST
        body = {
            "task_id": call.path["task_id"],
            **standing.state(book, activity, stop, recorded=False, session=told_of_session(activity, session)),
            "run_status": book.run.status,
            "activity_status": activity.status,
            "attempt_status": "cancelled" if activity.status == "cancelled" else attempt.status,
            "task_status": "leased" if activity.status == "running" else "completed",
            "deadlines": leasing.deadline_texts(book, activity),
        }
        request = book.run.cancellation
        if activity.status == "cancelled" and request is not None:
            receipt = attempt.stop
            body["cancellation_acknowledgement"] = {
                "request_id": request.request_id,
                "root_request_id": request.context["root_request_id"],
                "cleanup_deadline_at": format_instant(request.cleanup_deadline_at),
                "cancellation_history_event_id": activity.cancelled_event_id,
                "callback_state": "unknown" if receipt is None else "stopped",
                "history_event_id": None if receipt is None else receipt.event_id,
                "acknowledged_at": None if receipt is None else format_instant(receipt.acknowledged_at),
                "received_after_deadline": None if receipt is None else receipt.received_after_deadline,
            }
        return Answer(body)


def complete(tx: Transaction, call: Call) -> Answer:
    """Record the result of an attempt, once (worker.md §3.5)."""
    fields = Fields(call.body)
    result = fields.payload("result", limit=tx.settings.max_payload_bytes)
    fields.check()
    return _report(tx, call, "completed", lambda book, activity: ending.complete(book, activity, result))


def fail(tx: Transaction, call: Call) -> Answer:
    """Record the failure of an attempt, once; whether another one follows is decided here (worker.md §3.5)."""
    fields = Fields(call.body)
    failure = fields.object("failure")
    reader = Fields(failure, "failure.", fields.errors)
    reader.optional_text("message", limit=_FAILURE_LIMIT, blank=True)
    for name in ("type", "class", "kind", "timeout_type"):
        reader.optional_text(name)
    reader.flag("non_retryable")
    fields.check()
    return _report(tx, call, "failed", lambda book, activity: ending.fail(book, activity, failure))


def acknowledge_cancellation(tx: Transaction, call: Call) -> Answer:
    """Take the receipt that the handler of a cancelled attempt is gone (worker.md §3.5)."""
    fields = Fields(call.body)
    request_id = fields.text("request_id")
    fields.check()
    with _owned(tx, call) as (book, activity):
        request = book.run.cancellation
        if request is None or request.request_id != request_id:
            raise conflict("cancellation_request_mismatch", f"the run has no cancellation request {request_id}")
        if activity.cancelled_event_id is None:
            raise conflict("activity_cancellation_not_recorded", "the activity is not cancelled")
        receipt, duplicate = ending.acknowledge(book, activity, request_id)
        return Answer(
            {
                "task_id": call.path["task_id"],
                "activity_attempt_id": activity.attempt.attempt_id,
                "lease_owner": activity.attempt.lease_owner,
                "request_id": request_id,
                "acknowledged": True,
                "duplicate": duplicate,
                "reason": None,
                "history_event_id": receipt.event_id,
                "heartbeat_recorded": False,
            }
        )


def _report(tx: Transaction, call: Call, outcome: str, record: Callable[[RunBook, ActivityCall], list[str]]) -> Answer:
    with _owned(tx, call) as (book, activity):
        standing.check_running(book, activity)
        created = record(book, activity)
        return Answer(
            {
                "task_id": call.path["task_id"],
                "activity_attempt_id": activity.attempt.attempt_id,
                "outcome": outcome,
                "recorded": True,
                "reason": None,
                "next_task_id": created[0] if created else None,
            }
        )


def _nothing(tx: Transaction, poll_status: str, incarnation: str | None = None) -> Answer:
    body = {"task": None, "poll_status": poll_status, "server_time": format_instant(tx.now)}
    return Answer(body, incarnation=incarnation)


def _leased(tx: Transaction, run_id: str, sequence: int) -> Answer:
    book, activity = _load(tx, run_id, sequence)
    if book is None or activity is None:
        raise ValueError(f"the activity {sequence} of run {run_id} is gone within one transaction")
    attempt = activity.attempt
    policy = {"heartbeat_timeout": activity.heartbeat_timeout}
    task = {
        "task_id": attempt.task_id,
        "workflow_id": book.run.workflow_id,
        "run_id": run_id,
        "activity_execution_id": activity.step_id,
        "activity_attempt_id": attempt.attempt_id,
        "idempotency_key": activity.step_id,
        "attempt_number": attempt.number,
        "activity_type": activity.activity_type,
        "payload_codec": activity.payload_codec,
        "arguments": envelope(activity.arguments),
        "retry_policy": {name: value for name, value in policy.items() if value is not None} or None,
        "task_queue": activity.queue,
        "lease_owner": attempt.lease_owner,
        "lease_expires_at": instant_or_none(attempt.lease_expires_at),
        "deadlines": leasing.deadline_texts(book, activity) or None,
        "worker_session": told_of_session(activity, session_of(tx, activity)),
    }
    task = {name: value for name, value in task.items() if value is not None}
    return Answer({"task": task, "poll_status": "leased", "server_time": format_instant(tx.now)})


def _load(tx: Transaction, run_id: str, sequence: int) -> tuple[RunBook | None, ActivityCall | None]:
    run = tx.run(run_id)
    book = None if run is None else tx.book(run, sequence=sequence)
    found = None if book is None else book.steps.get(sequence)
    return book, found if isinstance(found, ActivityCall) else None


@contextmanager
def _owned(tx: Transaction, call: Call) -> Iterator[tuple[RunBook, ActivityCall]]:
    """Give the activity whose attempt the caller owns, or the first refusal of worker.md §3.6; save what changed."""
    fields = Fields(call.body)
    attempt_id, owner = fields.text("activity_attempt_id"), fields.text("lease_owner")
    fields.check()
    task_id = call.path["task_id"]
    known = tx.activity_task(call.namespace, task_id)
    if known is None:
        raise not_found("task_not_found", f"there is no activity task {task_id}", task_id=task_id)
    run_id, sequence, known_attempt, known_owner = known
    if known_attempt != attempt_id:
        raise not_found("attempt_not_found", f"task {task_id} has no attempt {attempt_id}", task_id=task_id)
    book, activity = _load(tx, run_id, sequence)
    if book is None or activity is None:
        raise not_found("task_not_found", f"there is no activity task {task_id}", task_id=task_id)
    with saving(tx, book):
        enforce_deadlines(book)
        current = book.steps[sequence]
        if known_owner != owner:
            raise conflict(
                "lease_owner_mismatch", f"task {task_id} is leased by another worker", lease_owner=known_owner
            )
        if not isinstance(current, ActivityCall):
            raise not_found("task_not_found", f"there is no activity task {task_id}", task_id=task_id)
        if current.attempt.attempt_id != attempt_id:
            raise standing.stale(book, current, task_id, _ended_as(tx, run_id, task_id))
        yield book, current


_ENDINGS = {"failure": "failed", "timeout": "timed_out"}


def _ended_as(tx: Transaction, run_id: str, task_id: str) -> str:
    """Give the status of an attempt that another one has followed."""
    event = tx.retry_of(run_id, task_id)
    return _ENDINGS.get("" if event is None else event.facts["retry_reason"], "lost")


def _told_of_follower(call: Call, refusal: Refusal) -> dict[str, Any]:
    """Tell whoever looks after an attempt that another one has followed that it must stop; raise any other refusal."""
    if refusal.reason != standing.STALE:
        raise refusal  # the fields of its request may have been refused, too
    attempt_id, owner = call.body["activity_attempt_id"], call.body["lease_owner"]
    return standing.told_of_follower(refusal, call.path["task_id"], attempt_id, owner)


def _number(fields: Fields, name: str) -> float | int | None:
    value = fields.body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.wrong(name, "must be a number")
        return None
    return value
