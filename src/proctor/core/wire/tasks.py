"""Polled workflow tasks, history pages and claim renewals (worker.md §2.1 to §2.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from proctor.core.wire.cancellation import CancellationObservation, read_observation
from proctor.core.wire.fields import Fields, shown
from proctor.core.wire.prepare import ClaimIdentity

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """One leased workflow task. `arguments` is the wire field as it came."""

    claim: ClaimIdentity
    workflow_id: str
    workflow_type: str
    payload_codec: str
    arguments: object
    history: tuple[Event, ...]
    next_page_token: str | None
    cancellation: CancellationObservation | None
    update_id: str | None
    cancel_requested: bool = False
    """The legacy flag of 1.18 and 1.19 (cancellation.md §1)."""
    command_id: str | None = None
    refers: bool = False
    """Whether arguments or history may hold references to external payloads."""


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """One page of a run's history; no token means it was the last."""

    events: tuple[Event, ...]
    next_page_token: str | None


def read_poll(body: object, *, worker_id: str, refers: bool = False) -> WorkflowTask | None:
    """Validate a workflow-task poll answer; None when nothing was leased.

    Raises ProtocolBreach(rule="worker §2.1...") for a task that cannot be worked on safely.
    """
    fields = Fields(body, what="workflow-task poll", section="worker §2.1")
    task = fields.present("task", "task")
    if task is None:
        return None
    fields = Fields(task, what="workflow-task poll", section="worker §2.1")
    kind = fields.body.get("task_kind", "workflow")
    if kind != "workflow":
        fields.breach("task", f"leases a task of kind {shown(kind)} that was not asked for")
    epoch = fields.integer("workflow_task_attempt", "task", least=1) if "workflow_task_attempt" in task else 1
    owner = fields.body.get("lease_owner", worker_id)
    if owner != worker_id:
        fields.breach("task", f"leases the task to {shown(owner)}, not to this worker")
    claim = ClaimIdentity(fields.text("task_id", "task"), fields.text("run_id", "task"), worker_id, epoch)
    page = _page(fields, rule="task")
    cancellation = fields.body.get("cancellation_request")
    return WorkflowTask(
        claim=claim,
        workflow_id=fields.text_or_none("workflow_id", "task") or "",
        workflow_type=fields.text("workflow_type", "task"),
        payload_codec=fields.text("payload_codec", "task"),
        arguments=fields.body.get("arguments"),
        history=page.events,
        next_page_token=page.next_page_token,
        cancellation=None if cancellation is None else read_observation(cancellation),
        update_id=fields.text_or_none("workflow_update_id", "task"),
        cancel_requested=fields.body.get("cancel_requested") is not None and fields.boolean("cancel_requested", "task"),
        command_id=fields.text_or_none("workflow_command_id", "task"),
        refers=refers,
    )


def poll_status(body: object) -> str | None:
    """Give what a poll answer says of itself; only ever a hint."""
    status = body.get("poll_status") if isinstance(body, Mapping) else None
    return status if isinstance(status, str) else None


def read_history_page(body: object, *, claim: ClaimIdentity) -> HistoryPage:
    """Validate one history page of a claim (worker.md §2.2)."""
    fields = Fields(body, what="history", section="worker §2.2")
    if "task_id" in fields.body:
        fields.exactly("task_id", claim.task_id, "page")
    if "workflow_task_attempt" in fields.body:
        fields.exactly("workflow_task_attempt", claim.epoch, "page")
    return _page(fields, rule="page")


def _page(fields: Fields, *, rule: str) -> HistoryPage:
    events = fields.present("history_events", rule)
    if not isinstance(events, list) or not all(isinstance(event, Mapping) for event in events):
        fields.breach(rule, f"has history_events {shown(events)}, not a list of objects")
    token = fields.text_or_none("next_history_page_token", rule)
    return HistoryPage(tuple(events), token or None)


def read_claim_renewal(
    body: object, *, claim: ClaimIdentity, known: CancellationObservation | None
) -> CancellationObservation | None:
    """Validate a workflow-task heartbeat answer and give the cancellation it shows (worker.md §2.3).

    `known` is what this claim has seen before: the request may appear, never change or vanish.
    """
    fields = Fields(body, what="workflow-task heartbeat", section="worker §2.3")
    fields.exactly("task_id", claim.task_id, "renewal")
    fields.exactly("lease_owner", claim.lease_owner, "renewal")
    fields.exactly("workflow_task_attempt", claim.epoch, "renewal")
    fields.exactly("renewed", True, "renewal")
    stated = fields.body.get("cancellation_request")
    observed = None if stated is None else read_observation(stated)
    if known is not None and (observed is None or not observed.same_request(known)):
        fields.breach("renewal", "changes the cancellation request that this claim has already seen")
    return observed


def read_claim_lease(body: object) -> datetime:
    """Give the end of the lease that a validated claim renewal states (worker.md §2.3)."""
    return Fields(body, what="workflow-task heartbeat", section="worker §2.3").instant("lease_expires_at", "renewal")


def append_page(history: Sequence[Event], page: HistoryPage, *, seen_tokens: set[str]) -> tuple[Event, ...]:
    """Append one page; a token that was used before would page for ever and is a breach (worker.md §2.2)."""
    if page.next_page_token is not None:
        if page.next_page_token in seen_tokens:
            Fields({}, what="history", section="worker §2.2").breach("page", "repeats a page token")
        seen_tokens.add(page.next_page_token)
    return (*history, *page.events)
