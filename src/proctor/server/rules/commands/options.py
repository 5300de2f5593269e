"""What activities have in common: timeouts, their order, and the retry policy (commands.md §2, §3.3, §4)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from proctor.server.rules.fields import Fields

_POLICY_KEYS = frozenset({"max_attempts", "backoff_seconds", "non_retryable_error_types"})

# A hundred years; longer times would overflow instants, and mean a mistake.
LONGEST_SECONDS = 3_155_760_000


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often and after which pauses (seconds) an activity is tried; without a policy once."""

    max_attempts: int = 1
    backoff_seconds: tuple[int, ...] = ()
    non_retryable_error_types: tuple[str, ...] = ()


class Timeouts(Struct, frozen=True, kw_only=True):
    """The timeouts of an activity, in seconds; None means that there is none."""

    start_to_close: int | None = None
    schedule_to_start: int | None = None
    schedule_to_close: int | None = None
    heartbeat: int | None = None


def read_timeouts(reader: Fields) -> Timeouts:
    """Read the four timeouts and check that none exceeds the one it lies within."""
    timeouts = Timeouts(
        start_to_close=reader.optional_integer("start_to_close_timeout", low=1, high=LONGEST_SECONDS),
        schedule_to_start=reader.optional_integer("schedule_to_start_timeout", low=1, high=LONGEST_SECONDS),
        schedule_to_close=reader.optional_integer("schedule_to_close_timeout", low=1, high=LONGEST_SECONDS),
        heartbeat=reader.optional_integer("heartbeat_timeout", low=1, high=LONGEST_SECONDS),
    )
    for inner, outer in (
        ("start_to_close", "schedule_to_close"),
        ("schedule_to_start", "schedule_to_close"),
        ("heartbeat", "start_to_close"),
    ):
        shorter, longer = getattr(timeouts, inner), getattr(timeouts, outer)
        if shorter is not None and longer is not None and shorter > longer:
            reader.wrong(f"{inner}_timeout", f"must not exceed {outer}_timeout")
    return timeouts


def read_retry_policy(reader: Fields, *, most_attempts: int, bounded_backoff: bool) -> RetryPolicy:
    """Read a retry policy; with `bounded_backoff` there may be no more pauses than retries."""
    raw = reader.optional_object("retry_policy")
    if raw is None:
        return RetryPolicy()
    fields = Fields(raw, f"{reader.prefix}retry_policy.", reader.errors)
    for name in sorted(set(raw) - _POLICY_KEYS):
        fields.wrong(name, "is unknown")
    attempts = fields.optional_integer("max_attempts", low=1, high=most_attempts) or 1
    pauses = _read_backoff(fields, raw)
    if bounded_backoff and len(pauses) > attempts - 1:
        fields.wrong("backoff_seconds", "has more entries than there are retries")
    names = tuple(name.strip() for name in fields.texts("non_retryable_error_types"))
    if len(set(names)) != len(names):
        fields.wrong("non_retryable_error_types", "must not repeat a name")
    return RetryPolicy(max_attempts=attempts, backoff_seconds=pauses, non_retryable_error_types=names)


def _read_backoff(fields: Fields, raw: Mapping[str, object]) -> tuple[int, ...]:
    backoff = raw.get("backoff_seconds")
    if backoff is None:
        return ()
    if not isinstance(backoff, list) or not all(_is_pause(item) for item in backoff):
        fields.wrong("backoff_seconds", "must be a list of integers of at least 0")
        return ()
    return tuple(backoff)


def _is_pause(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LONGEST_SECONDS
