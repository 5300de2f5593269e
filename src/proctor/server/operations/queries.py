"""Queries on both planes: asking and waiting for the answer, and the query tasks that workers answer (worker.md §4)."""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.operations import asked
from proctor.server.operations.calls import Call, Waiting
from proctor.server.operations.commands import declares, read_name
from proctor.server.operations.workers import active_registrations
from proctor.server.operations.workflow_polls import STALE, polling_worker, replays
from proctor.server.operations.workflows import find_run
from proctor.server.rules import queries, questions
from proctor.server.rules.fields import Fields
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.refusal import Answer, Refusal, not_found
from proctor.server.transaction import Transaction, answer_bell

_MESSAGE_LIMIT = 65_536


def ask(tx: Transaction, call: Call) -> Answer:
    """Admit a query for the current run; its answer is waited for (control-plane.md §7)."""
    fields = Fields(call.body)
    arguments = fields.payload("input", limit=tx.settings.max_payload_bytes)
    name = read_name(call, "query", fields)
    fields.check()
    run = find_run(tx, call)
    queries.check_answerable(run, name)
    if declares(tx, run, "queries", name) is False:
        raise not_found(
            "rejected_unknown_query",
            f"the workflow type {run.workflow_type} declares no query {name!r}",
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            query_name=name,
        )
    queries.check_workers(run, name, active_registrations(tx, call.namespace))
    if tx.count_pending(QueryTask, call.namespace, run.task_queue) >= tx.settings.max_pending_queries:
        raise queries.queue_full(run, name, tx.settings.max_pending_queries)
    task = questions.ask(
        QueryTask,
        run,
        question_id=tx.new_id(),
        name=name,
        arguments=arguments,
        now=tx.now,
        seconds=tx.settings.query_seconds,
    )
    tx.save_question(task)
    return _waiting(task)


def _waiting(task: QueryTask) -> Answer:
    def look(tx: Transaction, call: Call) -> Answer:
        current = tx.question(QueryTask, task.namespace, task.question_id) or task
        if current.is_open and current.deadline_at > tx.now:
            return _waiting(current)
        if current.is_open:
            current = queries.expire(current)
            tx.save_question(current)
        return Answer(queries.answer(current))

    def leave(tx: Transaction, call: Call) -> Answer:
        current = tx.question(QueryTask, task.namespace, task.question_id)
        if current is not None and current.is_open:
            tx.save_question(queries.expire(current))
        return Answer({})

    return Waiting(
        {},
        bell=answer_bell(task.namespace, task.question_id),
        until=task.deadline_at,
        look=look,
        leave=leave,
        passing=True,
    )


def poll(tx: Transaction, call: Call) -> Answer:
    """Lease a query to this worker, repeat the lease of the same request id, or answer `empty` at once."""
    worker_id, queue = str(call.body["worker_id"]), str(call.body["task_queue"])
    registration = polling_worker(tx, call, worker_id, queue)
    if call.incarnation not in (None, registration.token):
        return Answer({"task": None, "poll_status": STALE})
    if not registration.workflow_types:
        return Answer({"task": None, "poll_status": "no_workflow_capability"}, incarnation=registration.token)
    request_id = call.body.get("poll_request_id")
    held = asked.leased_before(tx, QueryTask, registration, request_id)
    if held is not None:
        return _leased(tx, held)
    pending = tx.pending_questions(QueryTask, call.namespace, queue, registration.workflow_types)
    oldest = next((one for one in pending if replays(tx, registration, one.run_id)), None)
    if oldest is None:
        return Answer({"task": None, "poll_status": "empty"}, incarnation=registration.token)
    return _leased(tx, asked.lease(tx, oldest, registration, request_id))


def _leased(tx: Transaction, task: QueryTask) -> Answer:
    run = tx.run(task.run_id)
    if run is None:
        raise not_found("query_task_not_found", "the run of this query is gone", task=None)
    body = {**_timing(tx, task), **asked.task_fields(tx, task, run, asked="query")}
    return Answer({"task": body, "poll_status": "leased"})


def _timing(tx: Transaction, task: QueryTask) -> dict[str, Any]:
    """Give the claim and its budget, which are the same in the task and in every look at it."""
    return {
        "query_task_id": task.question_id,
        "query_task_attempt": task.attempt,
        "lease_owner": task.lease_owner,
        "lease_expires_at": format_instant(task.deadline_at),
        "query_admitted_at": format_instant(task.admitted_at),
        "query_deadline_at": format_instant(task.deadline_at),
        "server_time": format_instant(tx.now),
    }


def status(tx: Transaction, call: Call) -> Answer:
    """Say whether the holder of a query may go on; nothing is renewed."""
    if call.minor < 20:
        raise Refusal(422, "query_task_authority_unavailable", "observing a query task needs worker protocol 1.20")
    attempt = call.query.get("query_task_attempt", "")
    # The numbers of a query string are text.
    given = {**call.query, "query_task_attempt": int(attempt) if attempt.isdecimal() and len(attempt) < 16 else attempt}
    task = _owned(tx, call, Fields(given))
    return Answer({**_timing(tx, task), "can_continue": True, "query_task_status": task.status, "reason": None})


def complete(tx: Transaction, call: Call) -> Answer:
    """Take the answer of a query, once."""
    fields = Fields(call.body)
    payload = fields.payload("result_envelope", limit=tx.settings.max_payload_bytes)
    result = call.body.get("result")
    if len(msgspec.json.encode(result)) > tx.settings.max_payload_bytes:
        fields.wrong("result", f"is larger than {tx.settings.max_payload_bytes} bytes")
    task = queries.complete(_owned(tx, call, fields), result, payload)
    tx.save_question(task)
    return Answer(_reported(task), passing=True)


def fail(tx: Transaction, call: Call) -> Answer:
    """Take the reason for which there is no answer, once."""
    fields = Fields(call.body)
    reader = Fields(fields.object("failure"), "failure.", fields.errors)
    message = reader.optional_text("message", limit=_MESSAGE_LIMIT, blank=True) or "the worker could not answer"
    reason = reader.optional_text("reason") or "query_rejected"
    reader.optional_text("type")
    reader.optional_text("stack_trace", limit=4 * _MESSAGE_LIMIT, blank=True)
    errors = reader.optional_object("validation_errors")
    task = queries.fail(_owned(tx, call, fields), reason=reason, message=message, validation_errors=errors)
    tx.save_question(task)
    return Answer({**_reported(task), "reason": reason})


def _owned(tx: Transaction, call: Call, fields: Fields) -> QueryTask:
    owner, attempt = fields.text("lease_owner"), fields.integer("query_task_attempt", low=1)
    fields.check()
    task_id = call.path["task_id"]
    return queries.owned(tx.question(QueryTask, call.namespace, task_id), task_id, owner, attempt, tx.now)


def _reported(task: QueryTask) -> dict[str, Any]:
    return {
        "query_task_id": task.question_id,
        "query_task_attempt": task.attempt,
        "outcome": task.status,
        "reason": None,
    }
