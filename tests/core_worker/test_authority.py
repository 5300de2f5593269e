"""The authority budget: every bound counts, the round trip is ours to pay, a deadline has passed only for
certain.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proctor.core.authority import (
    DEADLINE_BOUNDS,
    OPERATION_LIMIT_SECONDS,
    AttemptDeadlines,
    Authority,
    Bound,
    Exchange,
    Leases,
    authority_of,
)

SERVER_TIME = datetime(2026, 10, 2, 12, 0, 0, tzinfo=UTC)
EXCHANGE = Exchange(started=100.0, received=101.0, server_time=SERVER_TIME)


def at(seconds: float) -> datetime:
    return SERVER_TIME + timedelta(seconds=seconds)


def authority(
    *,
    attempt: float = 10,
    workflow: float | None = None,
    cleanup: float | None = None,
    start_to_close: float | None = None,
    schedule_to_close: float | None = None,
    heartbeat: float | None = None,
    exchange: Exchange = EXCHANGE,
) -> Authority:
    def optional(seconds: float | None) -> datetime | None:
        return None if seconds is None else at(seconds)

    return authority_of(
        exchange,
        leases=Leases(at(attempt), optional(workflow), optional(cleanup)),
        deadlines=AttemptDeadlines(optional(start_to_close), optional(schedule_to_close), optional(heartbeat)),
    )


def test_authority_counts_from_the_start_of_the_request() -> None:
    assert authority(attempt=10).until == 110.0


def test_a_deadline_has_certainly_passed_only_counted_from_the_answer() -> None:
    assert authority(start_to_close=3).certainly_passed_at(Bound.START_TO_CLOSE) == 104.0
    assert authority(start_to_close=3).earliest(Bound.START_TO_CLOSE) == 103.0


@pytest.mark.parametrize("name", ["attempt", "workflow", "cleanup", "start_to_close", "schedule_to_close", "heartbeat"])
def test_each_bound_alone_can_end_authority(name: str) -> None:
    far = dict.fromkeys(("attempt", "workflow", "cleanup", "start_to_close", "schedule_to_close", "heartbeat"), 500.0)

    assert authority(**{**far, name: 7.0}).until == 107.0  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["start_to_close", "schedule_to_close", "heartbeat"])
def test_a_deadline_of_the_attempt_does_not_take_the_claim_away(name: str) -> None:
    bounded = authority(attempt=20, **{name: 2.0})  # type: ignore[arg-type]

    assert bounded.until == 102.0
    assert bounded.claim_until == 120.0


@pytest.mark.parametrize("name", ["attempt", "workflow", "cleanup"])
def test_a_lease_or_the_cleanup_deadline_does_take_the_claim_away(name: str) -> None:
    bounded = authority(**{"attempt": 20.0, "workflow": 20.0, "cleanup": 20.0, name: 2.0})  # type: ignore[arg-type]

    assert bounded.claim_until == 102.0


def test_an_operation_takes_at_most_five_seconds_and_at_most_what_is_left() -> None:
    bounded = authority(attempt=10)

    assert bounded.operation_budget(100.0) == OPERATION_LIMIT_SECONDS == 5.0
    assert bounded.operation_budget(107.5) == 2.5
    assert bounded.operation_budget(110.0) == 0.0
    assert bounded.operation_budget(1000.0) == 0.0


def test_publishing_may_use_the_lease_after_a_deadline() -> None:
    bounded = authority(attempt=10, start_to_close=2)

    assert bounded.operation_budget(103.0) == 0.0
    assert bounded.publication_budget(103.0) == 5.0
    assert bounded.publication_budget(109.0) == 1.0


def test_of_equal_bounds_the_servers_precedence_is_named() -> None:
    assert authority(start_to_close=2, schedule_to_close=2, heartbeat=2).binding is Bound.SCHEDULE_TO_CLOSE
    assert authority(start_to_close=2, heartbeat=2).binding is Bound.HEARTBEAT
    assert authority(attempt=2, start_to_close=2).binding is Bound.START_TO_CLOSE
    assert authority(attempt=2, workflow=1).binding is Bound.WORKFLOW_LEASE


def test_no_deadline_is_due_before_its_earliest_instant() -> None:
    bounded = authority(start_to_close=3, heartbeat=5)

    assert bounded.due_deadline(102.999) is None
    assert bounded.due_deadline(103.0) is Bound.START_TO_CLOSE
    assert bounded.due_deadline(105.0) is Bound.HEARTBEAT


def test_a_lease_is_never_a_due_deadline() -> None:
    assert authority(attempt=1).due_deadline(500.0) is None


def test_timezones_are_only_another_spelling_of_an_instant() -> None:
    lease = at(10).astimezone(timezone(timedelta(hours=-7)))

    spelled = authority_of(EXCHANGE, leases=Leases(lease), deadlines=AttemptDeadlines())

    assert spelled.until == 110.0


def test_an_answer_cannot_arrive_before_its_request() -> None:
    with pytest.raises(ValueError, match="cannot arrive"):
        Exchange(started=2.0, received=1.0, server_time=SERVER_TIME)


seconds = st.floats(min_value=-1000, max_value=1000, allow_nan=False).map(lambda value: round(value, 6))
optional_seconds = st.none() | seconds


@st.composite
def stories(draw: st.DrawFn) -> tuple[Authority, float, dict[Bound, float]]:
    """Give an authority, the true offset of the server's clock, and the true local instants of its bounds."""
    started = draw(st.floats(min_value=0, max_value=1e6).map(lambda value: round(value, 6)))
    there = draw(st.floats(min_value=0, max_value=30).map(lambda value: round(value, 6)))
    back = draw(st.floats(min_value=0, max_value=30).map(lambda value: round(value, 6)))
    exchange = Exchange(started, started + there + back, SERVER_TIME)
    offset = started + there  # the local instant at which the server's clock showed SERVER_TIME
    given_bounds = {
        "attempt": draw(seconds),
        "workflow": draw(optional_seconds),
        "cleanup": draw(optional_seconds),
        "start_to_close": draw(optional_seconds),
        "schedule_to_close": draw(optional_seconds),
        "heartbeat": draw(optional_seconds),
    }
    names = {"attempt": Bound.ATTEMPT_LEASE, "workflow": Bound.WORKFLOW_LEASE}
    truth = {
        names.get(name) or Bound(name): offset + value for name, value in given_bounds.items() if value is not None
    }
    return authority(**given_bounds, exchange=exchange), offset, truth  # type: ignore[arg-type]


TOLERANCE = 1e-5


@given(stories())
def test_authority_never_outlives_any_true_bound(story: tuple[Authority, float, dict[Bound, float]]) -> None:
    bounded, _, truth = story

    assert bounded.until <= min(truth.values()) + TOLERANCE


@given(stories())
def test_a_deadline_called_passed_has_truly_passed(story: tuple[Authority, float, dict[Bound, float]]) -> None:
    bounded, _, truth = story

    for bound, instant in truth.items():
        certain = bounded.certainly_passed_at(bound)
        assert certain is not None
        assert certain >= instant - TOLERANCE


@given(stories(), st.floats(min_value=-1e3, max_value=2e6))
def test_budgets_are_bounded_and_shrink_with_time(
    story: tuple[Authority, float, dict[Bound, float]], now: float
) -> None:
    bounded, _, _ = story

    for budget in (bounded.operation_budget, bounded.publication_budget):
        assert 0 <= budget(now) <= OPERATION_LIMIT_SECONDS
        assert budget(now + 1) <= budget(now)
    assert bounded.operation_budget(now) <= bounded.publication_budget(now)
    if bounded.operation_budget(now) > 0:
        assert now + bounded.operation_budget(now) <= bounded.until + TOLERANCE


@given(stories(), st.floats(min_value=-1e3, max_value=2e6))
def test_a_due_deadline_is_one_of_the_attempts_own_and_could_have_passed(
    story: tuple[Authority, float, dict[Bound, float]], now: float
) -> None:
    bounded, _, _ = story
    due = bounded.due_deadline(now)
    assume(due is not None)
    assert due is not None
    earliest = bounded.earliest(due)

    assert due in DEADLINE_BOUNDS
    assert earliest is not None
    assert earliest <= now
