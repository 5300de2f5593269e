"""The retry rules as plain functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.transport.retrying import TRIES, backoff, delay_after_answer, stated_delay

WAIT: dict[str, Any] = {"reason": "backend_unavailable", "retryable": True, "retry_after_seconds": 2}


def test_the_backoff_doubles_to_five_seconds() -> None:
    assert [backoff(failures, jitter=0.5) for failures in range(1, 9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_the_jitter_is_a_quarter(failures: int, jitter: float) -> None:
    middle = backoff(failures, jitter=0.5)

    assert 0.75 * middle - 1e-9 <= backoff(failures, jitter=jitter) <= 1.25 * middle + 1e-9


@pytest.mark.parametrize("after", [0, 61, -1, True, "5", 1.5, None])
def test_an_unusable_wait_is_no_wait(after: object) -> None:
    assert stated_delay(503, {"retry_after_seconds": after}) is None


def test_a_wait_belongs_to_two_statuses_only() -> None:
    assert stated_delay(429, {"retry_after_seconds": 60}) == 60
    assert stated_delay(503, {"retry_after_seconds": 1}) == 1
    assert stated_delay(500, {"retry_after_seconds": 1}) is None
    assert stated_delay(429, None) is None


def delay(status: int, body: object, *, failures: int = 1, poll: bool = False) -> float | None:
    return delay_after_answer(status, body, failures=failures, poll=poll, jitter=0.5)


@pytest.mark.parametrize("status", [200, 201, 400, 401, 404, 409, 422])
def test_success_and_refusals_are_final(status: int) -> None:
    assert delay(status, WAIT) is None


def test_server_errors_are_tried_three_times_in_all() -> None:
    assert delay(500, None, failures=1) == pytest.approx(0.1)
    assert delay(504, {}, failures=2) == pytest.approx(0.2)
    assert delay(500, None, failures=TRIES) is None


def test_a_complete_wait_is_obeyed_however_often() -> None:
    assert delay(503, WAIT, failures=100) == 2
    assert delay(503, {**WAIT, "retry_after_seconds": 30}, failures=100) == 5


@pytest.mark.parametrize("changes", [{"retryable": 1}, {"retryable": False}, {"reason": "other"}])
def test_an_incomplete_wait_uses_up_the_tries(changes: dict[str, Any]) -> None:
    assert delay(503, {**WAIT, **changes}, failures=TRIES) is None


def test_a_poll_waits_only_when_it_is_told_to_ask_the_same_again() -> None:
    assert delay(503, WAIT, failures=TRIES, poll=True) is None
    assert delay(503, {**WAIT, "retry_same_poll_request_id": True}, failures=TRIES, poll=True) == 2
    assert delay(429, {"retry_after_seconds": 2}, poll=True) is None
