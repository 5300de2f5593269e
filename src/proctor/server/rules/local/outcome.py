"""outcome: publish what became of an attempt, once (prepared-local.md §2.6).

The first recorded outcome is immutable and its receipt can be asked for again by its owner at any time. A deadline
that has passed wins over what the worker reports.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from proctor.core.external import Payload, digest
from proctor.core.instants import format_instant
from proctor.server.rules.activities import activity_fields
from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import Fields
from proctor.server.rules.local.claims import (
    check_claim,
    check_registration,
    check_run_open,
    passed_deadline,
)
from proctor.server.rules.local.control import cancellation_stop
from proctor.server.rules.local.timeouts import Ending, end_attempt, timeout_ending
from proctor.server.rules.refusal import Answer, Refusal, conflict
from proctor.server.rules.rows import Attempt, Event, Execution, Receipt, Registration, Task
from proctor.server.rules.tasks import HISTORY_START_TOKEN

_ALLOWED = {
    "completed": frozenset({"outcome", "result", "payload_codec"}),
    "failed": frozenset({"outcome", "message", "exception_type", "non_retryable"}),
    "timed_out": frozenset({"outcome"}),
}
DEFAULT_EXCEPTION_TYPE = "RuntimeException"


class Report(Struct, frozen=True, kw_only=True):
    """A checked outcome report."""

    outcome: str
    result: Payload | None = None
    message: str = ""
    exception_type: str = DEFAULT_EXCEPTION_TYPE
    non_retryable: bool = False

    @property
    def fingerprint(self) -> str:
        """Give what two identical reports share. Where the result is kept may differ."""
        result = None if self.result is None else digest(self.result)
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, result=result))).hexdigest()


def read_report(body: dict[str, Any], *, limit: int) -> Report:
    """Read the `report` of an outcome request; anything out of shape is 409 `invalid_local_activity_outcome`."""
    raw = body.get("report")
    outcome = raw.get("outcome") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(outcome, str) or outcome not in _ALLOWED:
        raise _invalid("report.outcome must be completed, failed or timed_out")
    unknown = sorted(set(raw) - _ALLOWED[outcome])
    if unknown:
        raise _invalid(f"a {outcome} report cannot hold {', '.join(unknown)}")
    fields = Fields(raw, "report.")
    if outcome == "timed_out":
        return Report(outcome=outcome)
    if outcome == "completed":
        result = fields.payload("result", limit=limit)
        if raw.get("result") is None:
            fields.wrong("result", "is required")
        if raw.get("payload_codec", "avro") != "avro":
            fields.wrong("payload_codec", "only avro is supported")
        _check(fields)
        return Report(outcome=outcome, result=result)
    message = fields.optional_text("message", limit=limit, blank=True)
    if message is None:
        fields.wrong("message", "is required")
    report = Report(
        outcome=outcome,
        message=message or "",
        exception_type=fields.optional_text("exception_type") or DEFAULT_EXCEPTION_TYPE,
        non_retryable=fields.flag("non_retryable"),
    )
    _check(fields)
    return report


def _check(fields: Fields) -> None:
    """Raise the refusal of a report that is out of shape, or whose result is not stored here."""
    if fields.errors:
        problems = "; ".join(f"{name} {texts[0]}" for name, texts in sorted(fields.errors.items()))
        raise _invalid(problems)
    fields.check()


def _invalid(text: str) -> Refusal:
    return conflict("invalid_local_activity_outcome", text, recorded=False)


def record_outcome(
    book: RunBook,
    task: Task,
    execution: Execution,
    attempt: Attempt,
    registration: Registration | None,
    report: Report,
) -> Answer:
    """Record the outcome, repeat the receipt of the identical report, or raise the first refusal."""
    known = attempt.outcome
    if known is not None:
        if known.fingerprint != report.fingerprint:
            raise conflict(
                "local_activity_outcome_mismatch",
                f"attempt {attempt.attempt_id} already has another outcome ({known.event_type})",
                event_id=known.event_id,
                event_type=known.event_type,
            )
        return _receipt(book, attempt, known, duplicate=True)
    stop = cancellation_stop(book, execution, attempt)
    if stop is not None:
        reason = stop.pop("reason")
        raise conflict(reason, "the attempt is fenced by a cancellation; its outcome is not published", **stop)
    check_registration(attempt.registration_token, registration)
    if attempt.status != "running" and not book.run.is_closed:
        raise conflict("stale_activity_attempt", f"attempt {attempt.attempt_id} is {attempt.status}")
    check_run_open(book)
    task = check_claim(book, task, attempt.lease_owner, attempt.epoch)
    if attempt.lease_expires_at <= book.now:
        raise conflict("workflow_claim_expired", "the lease of this attempt has ended")
    event, ended, created = _decide(book, task, execution, attempt, report)
    receipt = Receipt(
        fingerprint=report.fingerprint,
        event_id=event.id,
        event_type=event.event_type,
        recorded_at=book.now,
        claim_released=bool(created),
        created_task_ids=tuple(created),
        task_id=task.task_id,
        epoch=task.attempt,
        lease_owner=attempt.lease_owner,
    )
    book.put(msgspec.structs.replace(ended, outcome=receipt))
    return _receipt(book, ended, receipt, duplicate=False)


def _decide(
    book: RunBook, task: Task, execution: Execution, attempt: Attempt, report: Report
) -> tuple[Event, Attempt, list[str]]:
    extra = {
        "local_outcome": {
            "version": 1,
            "report_fingerprint": report.fingerprint,
            "workflow_task_attempt": attempt.epoch,
            "submitted_outcome": report.outcome,
        }
    }
    kind = passed_deadline(execution, attempt, book.now)
    if kind is not None:
        ending = timeout_ending(execution, kind)
        return end_attempt(book, task, execution, attempt, ending, status="timed_out", extra=extra)
    if report.outcome == "timed_out":
        raise conflict("local_activity_timeout_not_due", "no deadline of this attempt has passed yet", recorded=False)
    if report.outcome == "failed":
        final = report.non_retryable or report.exception_type in execution.non_retryable_error_types
        ending = Ending(reason="failure", retryable=not final, facts=_failure_facts(report, final=final))
        return end_attempt(book, task, execution, attempt, ending, status="failed", extra=extra)
    return _complete(book, task, execution, attempt, report, extra)


def _failure_facts(report: Report, *, final: bool) -> dict[str, Any]:
    return {
        "message": report.message,
        "exception_type": report.exception_type,
        "exception_class": report.exception_type,
        "failure_category": "activity",
        "non_retryable": final,
        "exception": {
            "class": report.exception_type,
            "type": report.exception_type,
            "message": report.message,
            "non_retryable": final,
        },
    }


def _complete(
    book: RunBook, task: Task, execution: Execution, attempt: Attempt, report: Report, extra: dict[str, Any]
) -> tuple[Event, Attempt, list[str]]:
    ended = msgspec.structs.replace(attempt, status="completed")
    closed = msgspec.structs.replace(execution, status="completed", closed_event_sequence=book.run.last_event + 1)
    event = book.record(
        "ActivityCompleted",
        {
            **activity_fields(closed, ended, task_id=task.task_id),
            "result": report.result,
            "payload_codec": "avro",
            **extra,
        },
        task_id=task.task_id,
    )
    book.put(closed)
    book.put(ended)
    return event, ended, []


def _receipt(book: RunBook, attempt: Attempt, receipt: Receipt, *, duplicate: bool) -> Answer:
    return Answer(
        {
            "recorded": True,
            "duplicate": duplicate,
            "reason": None,
            "event_id": receipt.event_id,
            "event_type": receipt.event_type,
            "workflow_run_id": book.run.run_id,
            "workflow_task_id": attempt.task_id,
            "workflow_task_attempt": attempt.epoch,
            "lease_owner": attempt.lease_owner,
            "activity_execution_id": attempt.execution_id,
            "activity_attempt_id": attempt.attempt_id,
            "worker_attempt_id": attempt.worker_attempt_id,
            "recorded_at": format_instant(receipt.recorded_at),
            "claim_released": receipt.claim_released,
            "created_task_ids": list(receipt.created_task_ids),
            "history_refresh_page_token": HISTORY_START_TOKEN,
        }
    )
