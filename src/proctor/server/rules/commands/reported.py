"""The grammar of `record_local_activity`: a local call that has already ended, with all its attempts (commands.md §3).

Everything is bounded and cross-checked here, so that what is recorded afterwards cannot contradict itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proctor.core.external import Payload
from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.commands.options import RetryPolicy, Timeouts, read_retry_policy, read_timeouts
from proctor.server.rules.fields import Fields

MAX_ATTEMPTS = 100
MAX_HEARTBEATS = 1_000
OUTCOMES = ("completed", "failed", "timed_out", "cancelled")
TIMEOUT_KINDS = ("start_to_close", "schedule_to_close", "heartbeat")

_ATTEMPT_KEYS = frozenset(
    {
        "attempt_number",
        "outcome",
        "attempt_id",
        "duration_ms",
        "message",
        "exception_type",
        "non_retryable",
        "timeout_kind",
        "retry_reason",
        "backoff_seconds",
        "heartbeats",
    }
)
_RETRY_REASONS = {"failed": ("failure", "cold_replay"), "timed_out": ("timeout", "cold_replay")}
# The fields that put a call into a parallel group or a selection; a reported call cannot be in one.
_GROUP_PREFIXES = ("parallel_group_", "selection_")


class Beat(Struct, frozen=True):
    """One heartbeat, `elapsed_ms` after the start of its attempt."""

    elapsed_ms: int
    details: dict[str, Any] | None


class Ended(Struct, frozen=True, kw_only=True):
    """How an attempt, or the whole call, ended."""

    outcome: str
    message: str | None = None
    exception_type: str | None = None
    non_retryable: bool = False
    timeout_kind: str | None = None


class ReportedAttempt(Struct, frozen=True, kw_only=True):
    """One attempt as the worker tells it; every one but the last says why it was retried and after how long."""

    attempt_id: str | None
    ended: Ended
    duration_ms: int
    retry_reason: str | None
    backoff_seconds: int
    heartbeats: tuple[Beat, ...]


class ReportedCall(Struct, frozen=True, kw_only=True):
    """A whole local call. `result` is None unless the outcome is `completed`."""

    activity_type: str
    arguments: Payload | None
    result: Payload | None
    ended: Ended
    attempts: tuple[ReportedAttempt, ...]
    policy: RetryPolicy
    timeouts: Timeouts


def read(reader: Fields, grammar: Grammar) -> ReportedCall:
    """Read the command; under protocol 1.18 a missing list of attempts stands for one attempt."""
    limit, minor = grammar.limit, grammar.minor
    for name, value in reader.body.items():
        if name.startswith(_GROUP_PREFIXES) and value is not None:
            reader.wrong(name, "does not belong to record_local_activity")
    arguments = reader.payload("arguments", limit=limit)
    result = reader.payload("result", limit=limit)
    ended = _read_ended(reader, limit, whole_call=True)
    if (result is not None) != (ended.outcome == "completed") and "result" not in _short_names(reader):
        reader.wrong("result", "is required" if ended.outcome == "completed" else "belongs to a completed call only")
    if reader.body.get("payload_codec", "avro") != "avro":
        reader.wrong("payload_codec", "only avro is supported")
    policy = read_retry_policy(reader, most_attempts=MAX_ATTEMPTS, bounded_backoff=True)
    return ReportedCall(
        activity_type=reader.text("activity_type").strip(),
        arguments=arguments,
        result=result,
        ended=ended,
        attempts=_read_attempts(reader, ended, policy, limit=limit, minor=minor),
        policy=policy,
        timeouts=read_timeouts(reader),
    )


def _short_names(reader: Fields) -> set[str]:
    return {name.removeprefix(reader.prefix) for name in reader.errors if name.startswith(reader.prefix)}


def _read_ended(reader: Fields, limit: int, *, whole_call: bool) -> Ended:
    outcome = reader.body.get("outcome")
    if outcome not in OUTCOMES:
        reader.wrong("outcome", f"must be one of {', '.join(OUTCOMES)}")
        return Ended(outcome="failed")
    message = reader.optional_text("message", limit=limit)
    if outcome != "completed" and message is None and "message" not in _short_names(reader):
        reader.wrong("message", "is required unless the outcome is completed")
    kind = reader.body.get("timeout_kind")
    if (kind is not None) != (outcome == "timed_out"):
        reader.wrong("timeout_kind", "is required for timed_out and belongs to nothing else")
    elif kind is not None and kind not in TIMEOUT_KINDS:
        reader.wrong("timeout_kind", f"must be one of {', '.join(TIMEOUT_KINDS)}")
    if whole_call and outcome == "completed" and reader.body.get("non_retryable") is not None:
        reader.wrong("non_retryable", "must be absent when the outcome is completed")
    final = reader.body.get("non_retryable")
    if "non_retryable" in reader.body and not isinstance(final, bool) and not (whole_call and final is None):
        reader.wrong("non_retryable", "must be true or false")
    return Ended(
        outcome=outcome,
        message=None if message is None else message.strip(),
        exception_type=reader.optional_text("exception_type"),
        non_retryable=final is True,
        timeout_kind=kind if isinstance(kind, str) else None,
    )


def _read_attempts(
    reader: Fields, ended: Ended, policy: RetryPolicy, *, limit: int, minor: int
) -> tuple[ReportedAttempt, ...]:
    if minor < 19 and reader.body.get("attempts") is None:
        only = ReportedAttempt(
            attempt_id=None, ended=ended, duration_ms=0, retry_reason=None, backoff_seconds=0, heartbeats=()
        )
        return (only,)
    items = reader.objects("attempts", low=1, high=MAX_ATTEMPTS)
    if len(items) > policy.max_attempts:
        reader.wrong("attempts", f"are {len(items)}, the retry policy allows {policy.max_attempts}")
    attempts = tuple(
        _read_attempt(
            Fields(item, f"{reader.prefix}attempts.{position}.", reader.errors),
            position,
            ended if position == len(items) - 1 else None,
            policy,
            limit,
        )
        for position, item in enumerate(items)
    )
    names = [attempt.attempt_id for attempt in attempts if attempt.attempt_id is not None]
    if len(set(names)) != len(names):
        reader.wrong("attempts", "must not repeat an attempt_id")
    if sum(len(attempt.heartbeats) for attempt in attempts) > MAX_HEARTBEATS:
        reader.wrong("attempts", f"may hold {MAX_HEARTBEATS} heartbeats in all")
    return attempts


def _read_attempt(
    fields: Fields, position: int, whole: Ended | None, policy: RetryPolicy, limit: int
) -> ReportedAttempt:
    """Read one attempt; `whole` is how the call ended when this is its last attempt."""
    for name in sorted(set(fields.body) - _ATTEMPT_KEYS):
        fields.wrong(name, "is unknown")
    number = fields.integer("attempt_number", low=1)
    if number != position + 1:
        fields.wrong("attempt_number", f"must be {position + 1}")
    ended = _read_ended(fields, limit, whole_call=False)
    reason, pause = fields.body.get("retry_reason"), fields.body.get("backoff_seconds")
    if whole is not None:
        if ended.outcome != whole.outcome:
            fields.wrong("outcome", "of the last attempt must be that of the command")
        if "non_retryable" in fields.body and ended.non_retryable != whole.non_retryable:
            fields.wrong("non_retryable", "of the last attempt must be that of the command")
        for name, value in (("retry_reason", reason), ("backoff_seconds", pause)):
            if value is not None:
                fields.wrong(name, "does not belong to the last attempt")
        pause = 0
    else:
        pause = fields.integer("backoff_seconds", low=0)
        _check_retried(fields, position, ended, reason, pause, policy)
    attempt_id = fields.optional_text("attempt_id")
    if attempt_id is not None and len(attempt_id.encode()) > 255:
        fields.wrong("attempt_id", "must have at most 255 bytes")
    return ReportedAttempt(
        attempt_id=attempt_id,
        ended=ended,
        duration_ms=fields.optional_integer("duration_ms", low=0) or 0,
        retry_reason=reason if isinstance(reason, str) else None,
        backoff_seconds=pause,
        heartbeats=_read_heartbeats(fields),
    )


def _check_retried(
    fields: Fields, position: int, ended: Ended, reason: object, pause: int, policy: RetryPolicy
) -> None:
    allowed = _RETRY_REASONS.get(ended.outcome)
    if allowed is None:
        fields.wrong("outcome", "of an attempt that was retried must be failed or timed_out")
    elif reason not in allowed:
        fields.wrong("retry_reason", f"must be one of {', '.join(allowed)}")
    if ended.non_retryable:
        fields.wrong("non_retryable", "cannot be true for an attempt that was retried")
    if position < len(policy.backoff_seconds) and pause != policy.backoff_seconds[position]:
        fields.wrong("backoff_seconds", f"must be the policy's {policy.backoff_seconds[position]}")


def _read_heartbeats(fields: Fields) -> tuple[Beat, ...]:
    if fields.body.get("heartbeats") is None:
        return ()
    beats: list[Beat] = []
    for index, item in enumerate(fields.objects("heartbeats", low=0, high=MAX_HEARTBEATS)):
        beat = Fields(item, f"{fields.prefix}heartbeats.{index}.", fields.errors)
        for name in sorted(set(item) - {"elapsed_ms", "details"}):
            beat.wrong(name, "is unknown")
        elapsed = beat.integer("elapsed_ms", low=0)
        if beats and elapsed < beats[-1].elapsed_ms:
            beat.wrong("elapsed_ms", "must not decrease within an attempt")
        beats.append(Beat(elapsed, beat.optional_object("details")))
    return tuple(beats)


def ended_facts(ended: Ended) -> Mapping[str, Any]:
    """Give the payload fields that tell a failure, as retries and terminal events carry them."""
    facts: dict[str, Any] = {"message": ended.message}
    if ended.timeout_kind is not None:
        return facts | {"timeout_kind": ended.timeout_kind}
    return facts | {"exception_type": ended.exception_type, "non_retryable": ended.non_retryable}
