"""Receipts that close an attempt: outcome, cancellation acknowledgement, recovery (prepared-local.md §3.16
to §3.21).

A receipt that keeps the claim is believed only once refreshed history shows the same event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.core.wire.fields import Fields, shown
from proctor.core.wire.prepare import SECTION, AttemptIdentity, ClaimIdentity

_RETRY = "ActivityRetryScheduled"
_OUTCOME_EVENTS = frozenset({"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", _RETRY})
_RECOVERY_EVENTS = frozenset({"ActivityFailed", "ActivityTimedOut", _RETRY})
# A page cursor that every server accepts: base64 of "0", before the first event (worker.md §2.2).
FIRST_PAGE_TOKEN = "MA=="  # noqa: S105


@dataclass(frozen=True, slots=True)
class Closed:
    """The attempt is closed in history. `claim_released`: the hosting task is over, neither complete nor
    fail it.
    """

    event_id: str
    event_type: str
    execution_id: str
    attempt_id: str
    claim_released: bool
    refresh_token: str


def read_outcome(body: object, *, identity: AttemptIdentity) -> Closed:
    """Validate an outcome receipt (rules 16 and 17)."""
    fields = Fields(body, what="outcome", section=SECTION)
    fields.exactly("recorded", True, "16")
    fields.boolean("duplicate", "16")
    fields.exactly("reason", None, "16")
    claim = identity.claim
    fields.exactly("workflow_task_id", claim.task_id, "16")
    fields.exactly("workflow_task_attempt", claim.epoch, "16")
    fields.exactly("activity_execution_id", identity.execution_id, "16")
    fields.exactly("activity_attempt_id", identity.attempt_id, "16")
    fields.exactly("workflow_run_id", claim.run_id, "16")
    fields.exactly("worker_attempt_id", identity.nonce, "16")
    if "lease_owner" in fields.body:
        fields.exactly("lease_owner", claim.lease_owner, "16")
    fields.instant("recorded_at", "17")
    return _closed(fields, identity.execution_id, identity.attempt_id, _OUTCOME_EVENTS, kind_rule="16", rule="17")


def read_acknowledgement(body: object) -> str:
    """Validate an acknowledge-cancellation receipt (rule 19) and give the id of its history event."""
    fields = Fields(body, what="acknowledge-cancellation", section=SECTION)
    fields.exactly("acknowledged", True, "19")
    fields.boolean("duplicate", "19")
    fields.exactly("reason", None, "19")
    return fields.text("history_event_id", "19")


def read_recovery(body: object, *, claim: ClaimIdentity, execution_id: str, attempt_id: str) -> Closed:
    """Validate a recover receipt (rule 20); the ids are those of the interrupted attempt in history."""
    fields = Fields(body, what="recover", section=SECTION)
    fields.exactly("recovered", True, "20")
    fields.boolean("duplicate", "20")
    fields.exactly("reason", None, "20")
    fields.exactly("workflow_task_id", claim.task_id, "20")
    fields.exactly("activity_execution_id", execution_id, "20")
    fields.exactly("activity_attempt_id", attempt_id, "20")
    fields.exactly("callback_stop_state", "unknown", "20")
    return _closed(fields, execution_id, attempt_id, _RECOVERY_EVENTS, kind_rule="20", rule="20")


def _closed(
    fields: Fields, execution_id: str, attempt_id: str, kinds: frozenset[str], *, kind_rule: str, rule: str
) -> Closed:
    event_type = fields.text("event_type", kind_rule)
    if event_type not in kinds:
        fields.breach(kind_rule, f"has event_type {shown(event_type)}")
    released = fields.boolean("claim_released", rule)
    if released is not (event_type == _RETRY):
        fields.breach(rule, f"has claim_released {released} with {event_type}")
    created = fields.texts("created_task_ids", rule)
    if len(created) != (1 if released else 0):
        fields.breach(rule, f"creates {len(created)} tasks with {event_type}")
    event_id = fields.text("event_id", rule)
    token = fields.body.get("history_refresh_page_token", FIRST_PAGE_TOKEN)
    if not isinstance(token, str) or not token.strip():
        fields.breach(rule, f"has history_refresh_page_token {shown(token)}")
    return Closed(event_id, event_type, execution_id, attempt_id, released, token)


def check_outcome_event(history: Sequence[Mapping[str, Any]], closed: Closed, *, sequence: int) -> None:
    """Require the event of an outcome receipt in refreshed history (rule 18)."""
    _recorded_payload(history, closed, sequence=sequence, rule="18")


def check_recovery_event(
    history: Sequence[Mapping[str, Any]], closed: Closed, *, claim: ClaimIdentity, sequence: int
) -> None:
    """Require the event of a recover receipt in refreshed history (rule 21)."""
    payload = _recorded_payload(history, closed, sequence=sequence, rule="21")
    fields = Fields(payload.get("local_recovery"), what="history (local_recovery)", section=f"{SECTION}.21")
    fields.exactly("workflow_task_id", claim.task_id, "claim")
    fields.exactly("workflow_task_attempt", claim.epoch, "claim")
    fields.exactly("lease_owner", claim.lease_owner, "claim")
    fields.exactly("callback_stop_state", "unknown", "claim")


def _recorded_payload(
    history: Sequence[Mapping[str, Any]], closed: Closed, *, sequence: int, rule: str
) -> Mapping[str, Any]:
    fields = Fields({}, what="history", section=SECTION)
    event = next((event for event in history if event.get("id") == closed.event_id), None)
    if event is None:
        fields.breach(rule, f"lacks event {shown(closed.event_id)} of the receipt")
    if (event.get("event_type") or event.get("type")) != closed.event_type:
        fields.breach(rule, f"records event {shown(closed.event_id)} as another kind than {closed.event_type}")
    payload = event.get("payload")
    if not isinstance(payload, Mapping):
        fields.breach(rule, f"records event {shown(closed.event_id)} without a payload")
    recorded = payload.get("sequence", payload.get("workflow_sequence"))
    found = (recorded, payload.get("activity_execution_id"), payload.get("activity_attempt_id"))
    if isinstance(recorded, bool) or found != (sequence, closed.execution_id, closed.attempt_id):
        fields.breach(rule, f"records event {shown(closed.event_id)} for {shown(found)}")
    return payload
