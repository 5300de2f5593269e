"""Polled query tasks and what the server says of a claim on one (worker.md §4).

A query has one budget, which no answer ever prolongs: `QueryClaim.until` turns it into a local instant, and a later
look at the claim can only bring that instant forward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from proctor.core.authority import Exchange
from proctor.core.wire.fields import Fields, shown
from proctor.core.wire.questions import SECTION, QuestionClaim, read_common

_CANONICAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_TIMING = ("lease_expires_at", "query_admitted_at", "query_deadline_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryClaim(QuestionClaim):
    """One leased query. `timing` holds the instants of the claim as the server wrote them, which must never change."""

    timing: Mapping[str, str]
    ends_at: datetime

    def until(self, exchange: Exchange, *, observed: bool) -> float:
        """Give the local instant at which the budget is used up, as one exchange shows it.

        A poll may have been parked for most of the budget, so only the round trip of a look at the claim (`observed`)
        is charged in full.
        """
        return exchange.earliest(self.ends_at) if observed else exchange.latest(self.ends_at)


def read_query_poll(body: object, *, worker_id: str, task_queue: str, observable: bool) -> QueryClaim | None:
    """Validate a query poll answer; None when nothing was leased.

    `observable` says that the server offers `query_task_authority`, and then owes the whole timing in canonical form.
    Raises ProtocolBreach(rule="worker §4...") for a claim that cannot be worked on safely.
    """
    fields = Fields(body, what="query poll", section=SECTION)
    task = fields.present("task", "task")
    if task is None:
        return None
    fields = Fields(task, what="query poll", section=SECTION)
    common = read_common(
        fields,
        "task",
        kind="query",
        attempt="query_task_attempt",
        asked="query",
        worker_id=worker_id,
        task_queue=task_queue,
    )
    timing = {name: fields.text(name, "timing") for name in _TIMING if observable or name in fields.body}
    fields.text("lease_expires_at", "timing")
    if observable:
        for name in (*_TIMING, "server_time"):
            _require_canonical(fields, name)
    instants = {name: fields.to_instant(name, text, "timing") for name, text in timing.items()}
    lease = instants["lease_expires_at"]
    deadline = instants.get("query_deadline_at", lease)
    if deadline < instants.get("query_admitted_at", deadline):
        fields.breach("timing", "ends before it was admitted")
    if observable and lease > deadline:
        fields.breach("timing", "is leased beyond its deadline")
    return QueryClaim(**common, timing=timing, ends_at=min(lease, deadline))


def read_query_status(body: object, *, claim: QueryClaim) -> datetime:
    """Validate a look at a claim, which may only say that it goes on as it was; give the server's time."""
    fields = Fields(body, what="query status", section=SECTION)
    fields.exactly("query_task_id", claim.task_id, "status")
    fields.exactly("query_task_attempt", claim.attempt, "status")
    fields.exactly("lease_owner", claim.lease_owner, "status")
    for name, text in claim.timing.items():
        fields.exactly(name, text, "status")
    fields.exactly("can_continue", True, "status")
    fields.exactly("query_task_status", "leased", "status")
    fields.exactly("reason", None, "status")
    _require_canonical(fields, "server_time")
    return fields.instant("server_time", "status")


def _require_canonical(fields: Fields, name: str) -> None:
    text = fields.text(name, "timing")
    if _CANONICAL.fullmatch(text) is None:
        fields.breach("timing", f"has {name} {shown(text)}, not UTC with six digits and Z")
