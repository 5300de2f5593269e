"""Which answers and failures are tried again, and after how long (transport.md §4). Pure.

The identical request is sent again, so every operation behind it must be safe to repeat; the protocol's
idempotency keys make it so. The ``Retry-After`` header is not read: the body's `retry_after_seconds` is the
contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRIES = 3
_FIRST_DELAY = 0.1
_MAX_DELAY = 5.0
_JITTER = 0.25
_WAIT_REASONS = frozenset(
    {"backend_unavailable", "storage_pressure", "storage_admission_unavailable", "backend_lock_pressure"}
)

_QUERY_IS_OVER = frozenset({"query_worker_timeout", "query_worker_execution_timeout", "query_task_not_claimed"})
"""A query whose budget is used up: the same request would admit another one."""


def backoff(failures: int, *, jitter: float) -> float:
    """Give the seconds before the next try after `failures` failed ones; `jitter` is uniform in [0, 1)."""
    delay = min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** (failures - 1))
    return delay * (1 - _JITTER + 2 * _JITTER * jitter)


def stated_delay(status: int, body: object) -> float | None:
    """Give the seconds that a retryable refusal asks to wait; None when it asks for nothing readable."""
    if status not in (429, 503) or not isinstance(body, Mapping):
        return None
    after = body.get("retry_after_seconds")
    if not isinstance(after, int) or isinstance(after, bool) or not 1 <= after <= 60:
        return None
    return float(after)


def delay_after_answer(status: int, body: object, *, failures: int, poll: bool, jitter: float) -> float | None:
    """Give the seconds before the same request is sent again, or None when this answer is final.

    A complete refusal that says "wait" (503 with identity) does not use up the tries; the caller's deadline
    bounds it. A poll refused for capacity is final here: the poller waits and starts a new poll.
    """
    if status != 429 and status < 500:
        return None
    if poll and status == 429:
        return None
    if status == 504 and isinstance(body, Mapping) and body.get("reason") in _QUERY_IS_OVER:
        return None
    stated = stated_delay(status, body)
    if stated is not None and status == 503 and _asks_to_wait(body, poll=poll):
        return min(stated, _MAX_DELAY)
    if failures >= TRIES:
        return None
    return stated if stated is not None and status == 429 else backoff(failures, jitter=jitter)


def _asks_to_wait(body: Any, *, poll: bool) -> bool:
    if body.get("retryable") is not True or body.get("reason") not in _WAIT_REASONS:
        return False
    return not poll or body.get("retry_same_poll_request_id") is True
