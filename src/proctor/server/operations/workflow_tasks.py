"""Workflow tasks on the wire: poll, history pages, renewal, completion, failure, cancellation (worker.md §2)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, book_of_task, release_expired, resolve_overdue, saving, worker_event
from proctor.server.rules import cancellation, tasks
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.batch import MAX_COMMANDS, apply_commands, apply_terminal, parse_commands
from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.local.timeouts import time_out_elapsed
from proctor.server.rules.refusal import Answer, Refusal, conflict, not_found
from proctor.server.rules.rows import Boundary, Event, Registration, Task
from proctor.server.rules.runs import instant_or_none
from proctor.server.transaction import Transaction

PAGE_DEFAULT = 500
PAGE_MAX = 1_000
POLL_DEFAULT_SECONDS = 30
POLL_MAX_SECONDS = 60
STALE = "stale_worker_registration"

# Task fields of the contract that this server never has a value for; they are present and null on the wire.
_UNUSED_TASK_FIELDS = dict.fromkeys(
    (
        "connection",
        "compatibility",
        "workflow_wait_kind",
        "open_wait_id",
        "workflow_update_id",
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


def page_token(sequence: int) -> str:
    """Give the cursor behind a history sequence."""
    return base64.b64encode(str(sequence).encode()).decode()


def read_page_token(token: object) -> int:
    """Give the history sequence of a cursor; raises the 400 refusal for anything else."""
    try:
        text = base64.b64decode(str(token), validate=True).decode("ascii")
        if isinstance(token, str) and text.isdigit() and len(text) <= 15:
            return int(text)
    except (binascii.Error, ValueError):
        pass
    raise Refusal(400, "invalid_page_token", "the page token is not one this server gave out")


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
    body = call.body
    worker_id, queue = str(body["worker_id"]), str(body["task_queue"])
    registration = polling_worker(tx, call, worker_id, queue)
    if call.incarnation not in (None, registration.token):
        # The process that parked this poll was replaced under its id; it may be unable to say that it is gone.
        return Answer({"task": None, "poll_status": STALE})
    request_id = body.get("poll_request_id")
    kinds = ",".join(sorted(body.get("task_kinds") or ["workflow"]))
    if "update_validation" in kinds:
        raise conflict(
            "update_validation_capability_not_advertised", "this server has no update validation tasks", task=None
        )
    if request_id is not None:
        repeated = _repeat_poll(tx, call, worker_id, queue, str(request_id), kinds)
        if repeated is not None:
            return repeated
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
        if request_id is not None:
            tx.bind_poll(task, worker_id=worker_id, task_queue=queue, request_id=str(request_id), task_kinds=kinds)
        return Answer({"task": _task_body(tx, call, book, task), "poll_status": "leased"})
    status = "compatibility_blocked" if blocked else "empty"
    return Answer({"task": None, "poll_status": status}, incarnation=registration.token)


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


def _repeat_poll(tx: Transaction, call: Call, worker_id: str, queue: str, request_id: str, kinds: str) -> Answer | None:
    bound = tx.polled_task(call.namespace, worker_id, queue, request_id)
    if bound is None:
        return None
    known_kinds, task_id, epoch = bound
    if known_kinds != kinds:
        raise conflict(
            "poll_request_task_kinds_conflict", "this poll_request_id was used with other task kinds", task=None
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
        "next_history_page_token": _next_token(book, events),
        "history_events": [worker_event(event) for event in events],
        "resume_source_kind": task.resume_source_kind,
        "resume_source_id": task.resume_source_id,
        "workflow_command_id": task.workflow_command_id,
        **_UNUSED_TASK_FIELDS,
    }
    if task.sticky_replay_mode is not None:
        body["sticky_replay_mode"] = task.sticky_replay_mode
    if run.cancellation is not None:
        body["cancellation_request"] = cancellation.observation(run.cancellation)
    return body


def _next_token(book: RunBook, events: Sequence[Event]) -> str | None:
    last = events[-1].sequence if events else book.run.last_event
    return page_token(last) if last < book.run.last_event else None


def undo_poll(tx: Transaction, namespace: str, task_id: str, epoch: int) -> None:
    """Take back a lease whose answer could not be delivered because the client had left."""
    book = tx.book_of_task(namespace, task_id)
    if book is not None:
        with saving(tx, book):
            task = book.tasks[task_id]
            if task.status == "leased" and task.attempt == epoch:
                tasks.release(book, task)


def _owner(fields: Fields) -> tuple[str, int]:
    return fields.text("lease_owner"), fields.integer("workflow_task_attempt", low=1)


def history(tx: Transaction, call: Call) -> Answer:
    """Give one page of the history to the holder of the claim."""
    fields = Fields(call.body)
    owner, epoch = _owner(fields)
    size = fields.optional_integer("history_page_size", low=1, high=PAGE_MAX) or PAGE_DEFAULT
    fields.check()
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id)
    with saving(tx, book):
        task = tasks.owned(book, task_id, owner, epoch)
        after = read_page_token(call.body.get("next_history_page_token"))
        if book is None:
            raise not_found("history_not_available", "the run is gone")
        events = tx.history(task.run_id, after=after, limit=size)
        return Answer(
            {
                "task_id": task_id,
                "workflow_task_attempt": epoch,
                "history_events": [worker_event(event) for event in events],
                "total_history_events": book.run.last_event,
                "next_history_page_token": _next_token(book, events),
            }
        )


def heartbeat(tx: Transaction, call: Call) -> Answer:
    """Renew the lease of a claim and tell it about a cancellation request."""
    fields = Fields(call.body)
    owner, epoch = _owner(fields)
    fields.check()
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id)
    with saving(tx, book):
        task = tasks.owned(book, task_id, owner, epoch)
        if book is None:
            raise not_found("task_not_found", "the run is gone")
        task = tasks.renew(book, task)
        body: dict[str, Any] = {
            "task_id": task_id,
            "workflow_task_attempt": epoch,
            "lease_owner": owner,
            "renewed": True,
            "lease_expires_at": instant_or_none(task.lease_expires_at),
            "server_time": format_instant(tx.now),
            "run_status": book.run.status,
            "task_status": task.status,
            "reason": None,
        }
        if book.run.cancellation is not None:
            body["cancellation_request"] = cancellation.observation(book.run.cancellation)
        return Answer(body)


def complete(tx: Transaction, call: Call) -> Answer:
    """Apply the commands of a turn; one terminal command closes the run."""
    fields = Fields(call.body)
    owner, epoch = _owner(fields)
    fields.check()
    items = fields.objects("commands", low=1, high=MAX_COMMANDS)
    for name in ("message_stream_cursors", "message_stream_waits", "sticky_cache"):
        if call.body.get(name):
            fields.wrong(name, "is not supported by this server")
    commands = parse_commands(fields, items, Grammar(tx.settings.max_payload_bytes, call.minor))
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id)
    with saving(tx, book):
        task = tasks.owned(book, task_id, owner, epoch)
        fields.check()
        if book is None:
            raise not_found("task_not_found", "the run is gone")
        apply_commands(book, task, commands)
        created: list[str] = []
        if not apply_terminal(book, task, commands):
            # Markers need no answer: a turn of nothing else, with nothing open, would leave nothing to wake the run.
            created = tasks.finish_claim(book, task, again=not book.awaits_something)
        return Answer(
            {
                "task_id": task_id,
                "workflow_task_attempt": epoch,
                "outcome": "completed",
                "recorded": True,
                "run_id": book.run.run_id,
                "run_status": book.run.status,
                "created_task_ids": created,
                "reason": None,
            }
        )


def fail(tx: Transaction, call: Call) -> Answer:
    """Take a failed task back with a growing pause; a report of waiting for history just ends the claim."""
    fields = Fields(call.body)
    owner, epoch = _owner(fields)
    failure = fields.object("failure")
    if failure and not isinstance(failure.get("message"), str):
        fields.wrong("failure.message", "is required")
    fields.check()
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id)
    with saving(tx, book):
        task = tasks.owned(book, task_id, owner, epoch)
        if book is None:
            raise not_found("task_not_found", "the run is gone")
        body: dict[str, Any] = {
            "task_id": task_id,
            "workflow_task_attempt": epoch,
            "recorded": True,
            "reason": None,
        }
        if tasks.is_waiting_for_history(failure):
            created = tasks.finish_claim(book, task, again=False)
            next_task = created[0] if created else None
            return Answer({**body, "outcome": "waiting_for_history", "next_task_id": next_task})
        tasks.fail(book, task, failure)
        return Answer({**body, "outcome": "failed"})


def deliver_cancellation(tx: Transaction, call: Call) -> Answer:
    """Commit the delivery of a cancellation at an authored call (worker.md §2.7)."""
    if call.minor < 20 or tx.settings.minor < 20:
        raise conflict("cooperative_cancellation_not_supported", "delivering a cancellation needs protocol 1.20")
    fields = Fields(call.body)
    owner, epoch = _owner(fields)
    request_id = fields.text("request_id")
    kind = fields.choice("call_kind", cancellation.CALL_KINDS, default="")
    sequence = fields.integer("sequence", low=1)
    span = fields.optional_integer("sequence_span", low=1, high=cancellation.MAX_SPAN) or 1
    start = fields.optional_integer("operation_sequence", low=1)
    length = fields.optional_integer("operation_sequence_span", low=1, high=cancellation.MAX_SPAN)
    if start is not None and start >= sequence:
        fields.wrong("operation_sequence", "must be below sequence")
    fields.check()
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id, sequence=sequence, span=span)
    with saving(tx, book):
        if book is not None and book.run.cancellation is not None and book.run.closed_reason == "cancelled":
            raise conflict("run_cancelled", "the run has ended as cancelled", run_status=book.run.status)
        task = tasks.owned(book, task_id, owner, epoch)
        if book is None or task.claim is None:
            raise not_found("task_not_found", "the run is gone")
        registration = tx.registration(call.namespace, task.claim.worker_id)
        if registration is None or registration.token != task.claim.registration_token:
            raise conflict("stale_worker_registration", "the registration behind this claim is gone")
        return cancellation.deliver(
            book,
            task,
            request_id=request_id,
            boundary=Boundary(sequence=sequence, call_kind=kind, sequence_span=span),
            operation=None if start is None else (start, length or 1),
        )
