"""The control plane: starting, finding and ending runs (control-plane.md §2, §3, §9); `inspection` shows them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from proctor.server.operations.calls import Call, keep, saving
from proctor.server.rules import cancellation
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.markers import MAX_ATTRIBUTES, MAX_ATTRIBUTES_BYTES
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Answer, conflict, not_found
from proctor.server.rules.rows import Run
from proctor.server.rules.runs import begin, close, new_run
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
    if len(attributes or {}) > MAX_ATTRIBUTES or len(msgspec.json.encode(attributes)) > MAX_ATTRIBUTES_BYTES:
        fields.wrong(
            "search_attributes", f"are more than {MAX_ATTRIBUTES}, or larger than {MAX_ATTRIBUTES_BYTES} bytes"
        )
    # Of no effect here, where nothing is scheduled ahead of its turn; a mistake in them is told all the same.
    fields.optional_integer("priority", low=0, high=9)
    fields.optional_text("fairness_key")
    fields.optional_integer("fairness_weight", low=1, high=1_000)
    fields.optional_object("observability_context")
    pinned = (fields.optional_text("build_id"), fields.optional_text("compatibility"))
    blob = fields.payload("input", limit=tx.settings.max_payload_bytes)
    fields.check()
    current = tx.current_run(call.namespace, workflow_id)
    if current is not None:
        current = fresh(tx, current)
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
        compatibility=next((build.strip() for build in pinned if build is not None), None),
    )
    book = tx.new_book(run)
    begin(book)
    tx.add_payload(run.run_id, blob)
    keep(tx, book)
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
        "compatibility": run.compatibility,
        "payload_codec": run.payload_codec,
        "outcome": outcome,
    }


def fresh(tx: Transaction, run: Run) -> Run:
    """Enforce the deadlines of a run before anyone looks at it."""
    # The row may be older than what following up on another run has made of it meanwhile.
    book = tx.book(tx.run(run.run_id) or run)
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
        return fresh(tx, current)
    run = tx.run(run_id)
    if run is None or (run.namespace, run.workflow_id) != (call.namespace, workflow_id):
        raise not_found(
            "run_not_found", f"workflow {workflow_id} has no run {run_id}", workflow_id=workflow_id, run_id=run_id
        )
    return fresh(tx, run)


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
    keep(tx, book)
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
    cancellation.check_supported(tx.settings)
    book = _current(tx, call)
    with saving(tx, book):
        return cancellation.request(book, reason=reason, cleanup_timeout_seconds=timeout or 600)
