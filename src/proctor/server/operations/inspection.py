"""The control plane: describing, listing and reading runs (control-plane.md §2, §4, §5)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.ids import is_ulid
from proctor.server.operations.calls import Call, Waiting
from proctor.server.operations.pages import foreign_token, page_token, read_page_token
from proctor.server.operations.workflow_polls import POLL_DEFAULT_SECONDS
from proctor.server.operations.workflows import find_run, fresh
from proctor.server.rules import cancellation
from proctor.server.rules.bundles import bundle
from proctor.server.rules.fields import envelope
from proctor.server.rules.refusal import Answer, invalid
from proctor.server.rules.rows import Event, Run
from proctor.server.rules.runs import instant_or_none, status_bucket
from proctor.server.transaction import Transaction, history_bell

_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


def describe(tx: Transaction, call: Call) -> Answer:
    """Describe a run, by default the newest of the workflow."""
    return Answer(_description(tx, find_run(tx, call)))


def _description(tx: Transaction, run: Run) -> dict[str, Any]:
    given, produced = tx.payloads(run.run_id)
    active = not run.is_closed
    newest = tx.current_run(run.namespace, run.workflow_id) or run
    cooperative = None if run.cancellation is None else cancellation.observation(run.cancellation)
    return {
        **_summary(run),
        "input": given,
        "output": produced,
        "input_envelope": envelope(given),
        "output_envelope": envelope(produced),
        "payload_codec": run.payload_codec,
        "is_current_run": run.run_id == newest.run_id,
        "run_count": newest.run_number,
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
        "parent_workflow_id": None if run.parent is None else run.parent.workflow_id,
        "parent_workflow_run_id": None if run.parent is None else run.parent.run_id,
        "continued_from_run_id": run.previous_run_id,
        "continued_to_run_id": run.next_run_id,
        "actions": {
            "can_signal": active,
            "can_query": active or run.status == "completed",
            "can_update": active,
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
        "compatibility": run.compatibility,
        "started_at": format_instant(run.started_at),
        "closed_at": instant_or_none(run.closed_at),
        "memo": run.memo or {},
        "search_attributes": run.search_attributes or {},
    }


def list_workflows(tx: Transaction, call: Call) -> Answer:
    """List workflows by their newest run, newest first."""
    query = call.query
    size = _page_size(query.get("page_size"), default=50, high=200)
    bucket = query.get("status") or None
    if bucket not in (None, "running", "completed", "failed"):
        raise invalid({"status": ["must be running, completed or failed"]})
    if query.get("query"):
        # To leave it out would be to answer another question.
        raise invalid({"query": ["is not supported by this server; ask by workflow_type and status"]})
    before = query.get("next_page_token") or None
    if before is not None and not is_ulid(before):
        raise foreign_token()
    found = tx.list_runs(
        call.namespace,
        workflow_type=query.get("workflow_type") or None,
        bucket=bucket,
        before=before,
        limit=size + 1,
    )
    page = found[:size]
    # A deadline that is noticed in one run may end another that was looked at before.
    for run in page:
        fresh(tx, run)
    page = [tx.run(run.run_id) or run for run in page]
    return Answer(
        {
            "workflows": [_summary(run) for run in page],
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
    """Give one page of a run's history; with `wait_new_event` an empty one only after a while, or of a closed run."""
    size = _page_size(call.query.get("page_size"), default=100, high=1_000)
    token = call.query.get("next_page_token")
    after = read_page_token(token) if token else 0
    waits = _switch(call.query, "wait_new_event")
    run = find_run(tx, call)
    page = _history_page(tx, run, after, size)
    if page.body["events"] or run.is_closed or not waits:
        return page
    until = tx.now + timedelta(seconds=POLL_DEFAULT_SECONDS)

    def look(tx: Transaction, call: Call) -> Answer:
        current = find_run(tx, call)
        found = _history_page(tx, current, after, size)
        if found.body["events"] or current.is_closed or tx.now >= until:
            return found
        return waiting

    waiting = Waiting({}, bell=history_bell(run.run_id), until=until, look=look)
    return waiting


def _history_page(tx: Transaction, run: Run, after: int, size: int) -> Answer:
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


def export(tx: Transaction, call: Call) -> Answer:
    """Give a run with its whole history as one sealed document; of an open run what there is so far."""
    run = find_run(tx, call)
    events = tx.history(run.run_id, after=0, limit=run.last_event)
    return Answer(bundle(run, events, tx.payloads(run.run_id), now=tx.now), sealed=True)


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


def _switch(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name) or "0"
    if text not in _SWITCHES:
        raise invalid({name: ["must be 1 or 0, true or false"]})
    return _SWITCHES[text]


def _page_size(text: str | None, *, default: int, high: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high))) or not 1 <= int(text) <= high:
        raise invalid({"page_size": [f"must be within 1..{high}"]})
    return int(text)
