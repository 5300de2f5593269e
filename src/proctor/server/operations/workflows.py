"""The control plane: starting, describing, listing, reading and ending runs (control-plane.md §2 to §5, §9)."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, saving
from proctor.server.operations.workflow_tasks import page_token, read_page_token
from proctor.server.rules import cancellation
from proctor.server.rules.book import RunBook
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.refusal import Answer, conflict, invalid, not_found
from proctor.server.rules.rows import Event, Run
from proctor.server.rules.runs import begin, close, instant_or_none, new_run, status_bucket
from proctor.server.transaction import Transaction

_WORKFLOW_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_POLICIES = ("fail", "use-existing")
_REFUSED_START_FIELDS = (
    "workflow_execution_timeout",
    "workflow_run_timeout",
    "workflow_task_timeout",
    "retry_policy",
    "idempotency_key",
    "request_id",
)
MAX_MEMO_BYTES = 262_144

# 100 years: further out an instant no longer fits, and nobody means it.
_LONGEST_TIMEOUT = 3_155_760_000


def start(tx: Transaction, call: Call) -> Answer:
    """Start a run, or give the open one when the caller allows that."""
    fields = Fields(call.body)
    for name in _REFUSED_START_FIELDS:
        if name in call.body:
            fields.wrong(name, "is not a field of this operation")
    workflow_id = fields.optional_text("workflow_id", limit=128) or f"wf-{tx.new_id().lower()}"
    if not _WORKFLOW_ID.fullmatch(workflow_id):
        fields.wrong("workflow_id", "is 1 to 128 of A-Z a-z 0-9 . _ : -")
    workflow_type = fields.text("workflow_type")
    queue = fields.optional_text("task_queue") or "default"
    duplicate_policy = fields.choice("duplicate_policy", _POLICIES, default="fail")
    execution_timeout = fields.optional_integer("execution_timeout_seconds", low=1, high=_LONGEST_TIMEOUT)
    run_timeout = fields.optional_integer("run_timeout_seconds", low=1, high=_LONGEST_TIMEOUT)
    memo = fields.optional_object("memo")
    if len(msgspec.json.encode(memo)) > MAX_MEMO_BYTES:
        fields.wrong("memo", f"is larger than {MAX_MEMO_BYTES} bytes")
    attributes = fields.optional_object("search_attributes")
    blob = fields.payload("input", limit=tx.settings.max_payload_bytes)
    fields.check()
    current = tx.current_run(call.namespace, workflow_id)
    if current is not None:
        current = _fresh(tx, current)
        if not current.is_closed and duplicate_policy == "use-existing":
            return Answer(_started(current, "returned_existing_active"))
        raise conflict(
            "duplicate_not_allowed" if current.is_closed else "instance_already_started",
            f"the workflow id {workflow_id} is already taken by a run that is {current.status}; "
            "choose another id" + ("" if current.is_closed else ", or ask with duplicate_policy use-existing"),
            workflow_id=workflow_id,
            run_id=current.run_id,
            run_status=current.status,
        )
    run = new_run(
        namespace=call.namespace,
        workflow_id=workflow_id,
        run_id=tx.new_id(),
        run_number=1,
        workflow_type=workflow_type,
        task_queue=queue,
        now=tx.now,
        execution_timeout_seconds=execution_timeout,
        run_timeout_seconds=run_timeout,
        memo=memo,
        search_attributes=attributes,
    )
    book = tx.new_book(run)
    begin(book)
    tx.add_payload(run.run_id, blob)
    tx.save(book)
    return Answer(_started(book.run, "started_new"), status=201)


def _started(run: Run, outcome: str) -> dict[str, Any]:
    return {
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "workflow_type": run.workflow_type,
        "namespace": run.namespace,
        "task_queue": run.task_queue,
        "status": run.status,
        "business_key": None,
        "payload_codec": run.payload_codec,
        "outcome": outcome,
    }


def _fresh(tx: Transaction, run: Run) -> Run:
    """Enforce the deadlines of a run before anyone looks at it."""
    book = tx.book(run)
    with saving(tx, book):
        enforce_deadlines(book)
    return book.run


def find_run(tx: Transaction, call: Call) -> Run:
    """Give the run that the path names: a given one, or the newest of the workflow."""
    workflow_id = call.path["workflow_id"]
    current = tx.current_run(call.namespace, workflow_id)
    if current is None:
        raise not_found(
            "instance_not_found",
            f"there is no workflow {workflow_id} in namespace {call.namespace}",
            workflow_id=workflow_id,
        )
    run_id = call.path.get("run_id")
    if run_id is None or run_id == current.run_id:
        return _fresh(tx, current)
    run = tx.run(run_id)
    if run is None or (run.namespace, run.workflow_id) != (call.namespace, workflow_id):
        raise not_found(
            "run_not_found", f"workflow {workflow_id} has no run {run_id}", workflow_id=workflow_id, run_id=run_id
        )
    return _fresh(tx, run)


def _current(tx: Transaction, call: Call) -> RunBook:
    """Give the book of the newest run; a path that names an older run is refused."""
    run = find_run(tx, call)
    current = tx.current_run(call.namespace, run.workflow_id)
    if current is not None and current.run_id != run.run_id:
        raise conflict(
            "selected_run_not_current",
            f"run {run.run_id} is not the current run of {run.workflow_id}",
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            current_run_id=current.run_id,
        )
    return tx.book(run)


def describe(tx: Transaction, call: Call) -> Answer:
    """Describe a run, by default the newest of the workflow."""
    return Answer(_description(tx, find_run(tx, call)))


def _description(tx: Transaction, run: Run) -> dict[str, Any]:
    given, produced = tx.payloads(run.run_id)
    active = not run.is_closed
    cooperative = None if run.cancellation is None else cancellation.observation(run.cancellation)
    return {
        **_summary(run),
        "input": given,
        "output": produced,
        "input_envelope": envelope(given),
        "output_envelope": envelope(produced),
        "payload_codec": run.payload_codec,
        "memo": run.memo or {},
        "search_attributes": run.search_attributes or {},
        "run_count": run.run_number,
        "execution_timeout_seconds": run.execution_timeout_seconds,
        "run_timeout_seconds": run.run_timeout_seconds,
        "execution_deadline_at": instant_or_none(run.execution_deadline_at),
        "run_deadline_at": instant_or_none(run.run_deadline_at),
        "last_progress_at": format_instant(run.last_progress_at),
        "total_history_events": run.last_event,
        "wait_kind": "workflow_task_failure" if run.last_task_failure and active else None,
        "wait_reason": run.last_task_failure if active else None,
        "workflow_task_failures": run.task_failures,
        "cancellation_request": cooperative,
        "actions": {
            "can_signal": active,
            "can_query": False,
            "can_update": False,
            "can_cancel": active,
            "can_terminate": active,
            "can_repair": False,
            "can_archive": False,
        },
    }


def _summary(run: Run) -> dict[str, Any]:
    return {
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "workflow_type": run.workflow_type,
        "namespace": run.namespace,
        "task_queue": run.task_queue,
        "business_key": None,
        "status": run.status,
        "status_bucket": status_bucket(run.status),
        "is_terminal": run.is_closed,
        "closed_reason": run.closed_reason,
        "run_number": run.run_number,
        "is_current_run": True,
        "compatibility": None,
        "started_at": format_instant(run.started_at),
        "closed_at": instant_or_none(run.closed_at),
    }


def list_workflows(tx: Transaction, call: Call) -> Answer:
    """List workflows by their newest run, newest first."""
    query = call.query
    size = _page_size(query.get("page_size"), default=50, high=200)
    bucket = query.get("status") or None
    if bucket not in (None, "running", "completed", "failed"):
        raise invalid({"status": ["must be running, completed or failed"]})
    found = tx.list_runs(
        call.namespace,
        workflow_type=query.get("workflow_type") or None,
        bucket=bucket,
        before=query.get("next_page_token") or None,
        limit=size + 1,
    )
    page = found[:size]
    return Answer(
        {
            "workflows": [_summary(_fresh(tx, run)) for run in page],
            "workflow_count": len(page),
            "next_page_token": page[-1].run_id if len(found) > size else None,
        }
    )


def list_runs(tx: Transaction, call: Call) -> Answer:
    """List the runs of a workflow, oldest first."""
    workflow_id = find_run(tx, call).workflow_id
    runs = tx.runs_of(call.namespace, workflow_id)
    rows = [{**_summary(run), "is_current_run": run is runs[-1]} for run in runs]
    return Answer({"workflow_id": workflow_id, "run_count": len(rows), "runs": rows})


def history(tx: Transaction, call: Call) -> Answer:
    """Give one page of a run's history."""
    run = find_run(tx, call)
    size = _page_size(call.query.get("page_size"), default=100, high=1_000)
    token = call.query.get("next_page_token")
    after = read_page_token(token) if token else 0
    events = tx.history(run.run_id, after=after, limit=size)
    last = events[-1].sequence if events else run.last_event
    return Answer(
        {
            "workflow_id": run.workflow_id,
            "run_id": run.run_id,
            "events": [_control_event(event) for event in events],
            "next_page_token": page_token(last) if last < run.last_event else None,
        }
    )


def _control_event(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "sequence": event.sequence,
        "event_type": event.event_type,
        "timestamp": format_instant(event.recorded_at),
        "payload": msgspec.Raw(event.payload),
        "workflow_task_id": event.workflow_task_id,
        "workflow_command_id": event.workflow_command_id,
    }


def _page_size(text: str | None, *, default: int, high: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= high:
        raise invalid({"page_size": [f"must be within 1..{high}"]})
    return int(text)


def cancel(tx: Transaction, call: Call) -> Answer:
    """Close the run as cancelled at once; workflow code gets no cleanup (that is `request-cancellation`)."""
    return _close_now(tx, call, status="cancelled", event_type="WorkflowCancelled")


def terminate(tx: Transaction, call: Call) -> Answer:
    """Close the run as terminated at once."""
    return _close_now(tx, call, status="terminated", event_type="WorkflowTerminated")


def _close_now(tx: Transaction, call: Call, *, status: str, event_type: str) -> Answer:
    fields = Fields(call.body)
    reason = fields.optional_text("reason", limit=1_000)
    request_id = fields.optional_text("request_id")
    fields.check()
    book = _current(tx, call)
    run = book.run
    if run.is_closed:
        raise conflict(
            "run_not_active",
            f"the run is closed ({run.status})",
            run_status=run.status,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
        )
    command_id = book.new_id()
    close(
        book,
        status=status,
        reason=status,
        event_type=event_type,
        payload={"workflow_command_id": command_id, "reason": reason},
        command_id=command_id,
    )
    tx.save(book)
    return Answer(
        {
            "workflow_id": run.workflow_id,
            "run_id": run.run_id,
            "outcome": status,
            "command_status": "accepted",
            "command_id": command_id,
            "request_id": request_id,
            "run_status": book.run.status,
            "reason": None,
        }
    )


def request_cancellation(tx: Transaction, call: Call) -> Answer:
    """Ask for cooperative cancellation: one request with a deadline, delivered to the workflow code."""
    fields = Fields(call.body)
    reason = fields.optional_text("reason", limit=1_000)
    timeout = fields.optional_integer("cleanup_timeout_seconds", low=1, high=3_600)
    fields.check()
    book = _current(tx, call)
    with saving(tx, book):
        return cancellation.request(book, reason=reason, cleanup_timeout_seconds=timeout or 600)
