"""Leased workflow tasks on the wire: history pages, renewal, completion, failure, cancellation (worker.md §2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, book_of_task, saving, worker_event
from proctor.server.operations.pages import PAGE_DEFAULT, PAGE_MAX, next_page_token, read_page_token
from proctor.server.rules import cancellation, limits, portable, sticky, tasks
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands import answers
from proctor.server.rules.commands.batch import apply_commands, apply_terminal, parse_commands
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.commands.groups import numbers_of_first_group
from proctor.server.rules.fields import LARGEST, Fields
from proctor.server.rules.refusal import Answer, conflict, not_found
from proctor.server.rules.registration import is_stale
from proctor.server.rules.rows import Boundary, Claim, Event
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.sessions import leases
from proctor.server.transaction import Transaction


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
                "next_history_page_token": next_page_token(book, events),
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
    claim = sticky.read_claim(fields)
    fields.check()
    items = fields.objects("commands", low=1, high=LARGEST)
    settings = tx.settings
    # Too many commands are not even looked at: all other work would wait.
    too_many = limits.excess(settings.limits, len(items))
    for name in ("message_stream_cursors", "message_stream_waits"):
        if call.body.get(name):
            fields.wrong(name, "is not supported by this server")
    items = items if too_many is None else []
    commands = parse_commands(fields, items, Grammar(settings.max_payload_bytes, call.minor))
    first, span = numbers_of_first_group(commands)
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id, sequence=first, span=span)
    with saving(tx, book):
        task = tasks.owned(book, task_id, owner, epoch)
        if too_many is not None:
            raise too_many
        fields.check()
        if book is None:
            raise not_found("task_not_found", "the run is gone")
        registration = tx.registration(call.namespace, owner)
        if any(command.type == "record_local_activity" for command in commands):
            portable.require("local_activities", minor=call.minor, task=task, registration=registration)
        if any(command.type == "schedule_activity" and command.facts["worker_session"] for command in commands):
            leases.check_floor(call.minor, tx.settings.protocol, rejected=task)
            portable.require(leases.CAPABILITY, minor=call.minor, task=task, registration=registration)
        if claim is not None:
            sticky.check_claim(claim, book.run, task, registration, call.minor)
        answers.check(task, commands)
        created: list[str] = []
        if task.update_id is None:
            book.early_signals = _early_signals(tx, book, commands)
            apply_commands(book, task, commands)
        if claim is not None and registration is not None:
            tx.save_registration(sticky.with_metrics(registration, claim))
        if task.update_id is not None:
            if claim is not None:
                book.update_run(affinity=sticky.affinity(claim, book.now))
            created = answers.apply(book, task, commands[0])
        elif not apply_terminal(book, task, commands):
            if claim is not None:
                book.update_run(affinity=sticky.affinity(claim, book.now))
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


def _early_signals(tx: Transaction, book: RunBook, commands: Sequence[Command]) -> list[Event]:
    """Read the signals that the waits opened by these commands may take; each has its name's oldest ones left."""
    run = book.run
    if run.last_signal is None:
        return []
    names = Counter(command.facts["signal_name"] for command in commands if command.type == "open_signal_wait")
    found: list[Event] = []
    for name, waits in names.items():
        after = run.taken_signals.get(name, 0)
        if after < run.last_signal.event_sequence:
            found += tx.signals(run.run_id, name, after=after, limit=waits)
    return sorted(found, key=lambda event: event.sequence)


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
        # A worker that waits instead of answering an update would be asked again and again without the pause.
        if tasks.is_waiting_for_history(failure) and task.update_id is None:
            created = tasks.finish_claim(book, task, again=False)
            next_task = created[0] if created else None
            return Answer({**body, "outcome": "waiting_for_history", "next_task_id": next_task})
        tasks.fail(book, task, failure)
        return Answer({**body, "outcome": "failed"})


def _check_alive(tx: Transaction, namespace: str, claim: Claim) -> None:
    registration = tx.registration(namespace, claim.worker_id)
    stale_seconds = tx.settings.worker_stale_seconds
    if (
        registration is None
        or registration.token != claim.registration_token
        or is_stale(registration, now=tx.now, stale_seconds=stale_seconds)
    ):
        raise conflict(
            "stale_worker_registration",
            f"the registration behind this claim is gone, or was not heard of for more than {stale_seconds} s",
        )


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
    boundary = Boundary(
        sequence=sequence,
        call_kind=kind,
        sequence_span=span,
        operation_sequence=start,
        operation_sequence_span=1 if start is None else length or 1,
    )
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id, sequence=boundary.awaited.start, span=len(boundary.awaited))
    with saving(tx, book):
        if book is not None and book.run.cancellation is not None and book.run.closed_reason == "cancelled":
            raise conflict("run_cancelled", "the run has ended as cancelled", run_status=book.run.status)
        task = tasks.owned(book, task_id, owner, epoch)
        if book is None or task.claim is None:
            raise not_found("task_not_found", "the run is gone")
        cancellation.check_cooperative(task)
        _check_alive(tx, call.namespace, task.claim)
        return cancellation.deliver(
            book,
            task,
            request_id=request_id,
            boundary=boundary,
        )
