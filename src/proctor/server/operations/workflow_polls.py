"""The poll for workflow tasks: which task a worker gets, and what the task tells it (worker.md §2.1)."""

from __future__ import annotations

from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, book_of_task, release_expired, resolve_overdue, saving, worker_event
from proctor.server.operations.pages import PAGE_DEFAULT, PAGE_MAX, next_page_token
from proctor.server.rules import cancellation, tasks
from proctor.server.rules.book import RunBook
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.local.timeouts import time_out_elapsed
from proctor.server.rules.refusal import Answer, Refusal, conflict
from proctor.server.rules.registration import may_replay
from proctor.server.rules.rows import Registration, Task
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.validations import CAPABILITY as VALIDATIONS
from proctor.server.transaction import Transaction

POLL_DEFAULT_SECONDS = 30
POLL_MAX_SECONDS = 60
STALE = "stale_worker_registration"

# Task fields of the contract that this server never has a value for; they are present and null on the wire.
_UNUSED_TASK_FIELDS = dict.fromkeys(
    (
        "connection",
        "open_wait_id",
        "workflow_signal_id",
        "signal_name",
        "signal_wait_id",
        "signal_arguments",
        "activity_execution_id",
        "activity_attempt_id",
        "activity_type",
        "child_call_id",
        "child_workflow_run_id",
        "workflow_sequence",
        "workflow_event_type",
        "timer_id",
        "condition_wait_id",
        "condition_key",
        "condition_definition_fingerprint",
    )
)


def read_poll(call: Call) -> tuple[float, tuple[str, str]]:
    """Check a poll request; give how many seconds it may be parked, and the queue it waits for."""
    fields = Fields(call.body)
    fields.text("worker_id")
    queue = fields.text("task_queue")
    fields.optional_text("poll_request_id")
    fields.optional_text("build_id")
    seconds = fields.optional_integer("timeout_seconds", low=0, high=POLL_MAX_SECONDS)
    fields.optional_integer("history_page_size", low=1, high=PAGE_MAX)
    if set(fields.texts("task_kinds")) - {"workflow", "update_validation"}:
        fields.wrong("task_kinds", "may hold workflow and update_validation")
    fields.check()
    return float(POLL_DEFAULT_SECONDS if seconds is None else seconds), (call.namespace, queue)


def poll(tx: Transaction, call: Call) -> Answer:
    """Lease a task to this worker, repeat the lease of the same request id, or answer `empty` at once."""
    worker_id, queue = str(call.body["worker_id"]), str(call.body["task_queue"])
    registration = polling_worker(tx, call, worker_id, queue)
    if call.incarnation not in (None, registration.token):
        # The process that parked this poll was replaced under its id; it may be unable to say that it is gone.
        return Answer({"task": None, "poll_status": STALE})
    kinds = task_kinds(call)
    if "update_validation" in kinds:
        check_validates(registration)
    held = repeated(tx, call)
    if held is not None:
        return held
    resolve_overdue(tx)
    release_expired(tx)
    if not registration.workflow_types:
        return Answer({"task": None, "poll_status": "no_workflow_capability"}, incarnation=registration.token)
    blocked = False
    for candidate in tx.ready_tasks(call.namespace, queue, registration.workflow_types):
        leased = _try_lease(tx, call, registration, candidate)
        if leased is None:
            blocked = True
            continue
        book, task = leased
        request_id = call.body.get("poll_request_id")
        if request_id is not None:
            bound = {"task_queue": queue, "request_id": str(request_id), "task_kinds": ",".join(kinds)}
            tx.bind_poll(task, worker_id=worker_id, **bound)
        return Answer({"task": _task_body(tx, call, book, task), "poll_status": "leased"})
    status = "compatibility_blocked" if blocked else "empty"
    return Answer({"task": None, "poll_status": status}, incarnation=registration.token)


def task_kinds(call: Call) -> list[str]:
    """Give the kinds of tasks that a poll asks for, in the order that does not depend on the worker."""
    return sorted(set(call.body.get("task_kinds") or ["workflow"]))


def check_validates(registration: Registration) -> None:
    """Refuse a poll for validations by a worker that did not register for them."""
    if VALIDATIONS not in registration.capabilities:
        raise conflict(
            "update_validation_capability_not_advertised",
            f"worker {registration.worker_id} is registered without the capability {VALIDATIONS}",
            task=None,
            poll_status="unsupported",
        )


def polling_worker(tx: Transaction, call: Call, worker_id: str, queue: str) -> Registration:
    """Give the registration of a polling worker, or refuse one that is unknown or registered for something else."""
    registration = tx.registration(call.namespace, worker_id)
    if registration is None:
        raise Refusal(
            412,
            "worker_not_registered",
            f"worker {worker_id} is not registered; register it before polling",
            {"task": None, "worker_id": worker_id},
        )
    if registration.task_queue != queue:
        raise conflict(
            "task_queue_mismatch",
            f"worker {worker_id} is registered for queue {registration.task_queue}, not {queue}",
            task=None,
        )
    build_id = call.body.get("build_id")
    if build_id is not None and build_id != registration.build_id:
        raise conflict("build_id_mismatch", f"worker {worker_id} is registered with another build id", task=None)
    return registration


def replays(tx: Transaction, registration: Registration, run_id: str) -> bool:
    """Say whether a worker may replay a run: it must be of the build that the run is pinned to."""
    run = tx.run(run_id)
    return run is not None and may_replay(registration, run)


def repeated(tx: Transaction, call: Call) -> Answer | None:
    """Give the lease that the request id of a poll has got and still holds; refuse it with other task kinds."""
    request_id, kinds = call.body.get("poll_request_id"), ",".join(task_kinds(call))
    if request_id is None:
        return None
    bound = tx.polled_task(call.namespace, str(call.body["worker_id"]), str(call.body["task_queue"]), str(request_id))
    if bound is None:
        return None
    known_kinds, task_id, epoch = bound
    if known_kinds != kinds:
        raise conflict(
            "poll_request_task_kinds_conflict",
            "this poll_request_id was used with other task kinds",
            task=None,
            poll_status="conflict",
            poll_request_id=request_id,
            requested_task_kinds=kinds.split(","),
            bound_task_kinds=known_kinds.split(","),
        )
    book = book_of_task(tx, call, task_id)
    if book is None:
        return None
    with saving(tx, book):
        task = book.tasks[task_id]
        still_held = task.status == "leased" and task.attempt == epoch and task.claim is not None
        if not still_held or task.lease_expires_at is None or task.lease_expires_at <= tx.now:
            return None
        return Answer({"task": _task_body(tx, call, book, task), "poll_status": "leased"})


def _try_lease(tx: Transaction, call: Call, registration: Registration, candidate: Task) -> tuple[RunBook, Task] | None:
    book = tx.book_of_task(call.namespace, candidate.task_id)
    if book is None:
        return None
    with saving(tx, book):
        enforce_deadlines(book)
        task = book.tasks[candidate.task_id]
        minor = min(call.minor, int(registration.protocol.partition(".")[2]))
        if task.status != "ready" or tasks.why_not_leasable(book, registration, minor) is not None:
            return None
        time_out_elapsed(book)
        task = tasks.lease(book, task, registration, f"1.{minor}")
    return book, task


def _task_body(tx: Transaction, call: Call, book: RunBook, task: Task) -> dict[str, Any]:
    run = book.run
    size = call.body.get("history_page_size") or PAGE_DEFAULT
    events = tx.history(run.run_id, after=0, limit=size)
    body: dict[str, Any] = {
        "task_kind": "workflow",
        "task_id": task.task_id,
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "workflow_task_attempt": task.attempt,
        "workflow_type": run.workflow_type,
        "payload_codec": run.payload_codec,
        "arguments": envelope(tx.payloads(run.run_id)[0]),
        "run_status": run.status,
        "task_queue": task.task_queue,
        "lease_owner": None if task.claim is None else task.claim.worker_id,
        "lease_expires_at": instant_or_none(task.lease_expires_at),
        "server_time": format_instant(tx.now),
        "last_history_sequence": run.last_event,
        "total_history_events": run.last_event,
        "next_history_page_token": next_page_token(book, events),
        "history_events": [worker_event(event) for event in events],
        "compatibility": run.compatibility,
        "sticky_replay_mode": task.sticky_replay_mode,
        "sticky_worker_id": None if task.affinity is None else task.affinity.worker_id,
        "sticky_until": None if task.affinity is None else format_instant(task.affinity.until),
        "resume_source_kind": task.resume_source_kind,
        "resume_source_id": task.resume_source_id,
        "workflow_command_id": task.workflow_command_id,
        "workflow_wait_kind": None if task.update_id is None else "update",
        "workflow_update_id": task.update_id,
        **_UNUSED_TASK_FIELDS,
    }
    if run.cancellation is not None:
        body["cancellation_request"] = cancellation.observation(run.cancellation)
    return body


def undo_poll(tx: Transaction, namespace: str, task_id: str, epoch: int) -> None:
    """Take back a lease whose answer could not be delivered because the client had left."""
    book = tx.book_of_task(namespace, task_id)
    if book is not None:
        with saving(tx, book):
            task = book.tasks[task_id]
            if task.status == "leased" and task.attempt == epoch:
                tasks.release(book, task)
