"""What an ended child still allows: one verdict, and the order of what counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core.attempt import (
    DEADLINE_REFUSAL,
    MAX_MESSAGE_BYTES,
    MAX_TYPE_BYTES,
    Abandon,
    Acknowledge,
    ChildEnd,
    KeepCapacity,
    NotStarted,
    Publish,
    Raised,
    Returned,
    Standing,
    StopCause,
    Unproven,
    WasStopped,
    bounded_text,
    decide,
    failed,
)
from proctor.core.authority import AttemptDeadlines, Authority, Bound, Exchange, Leases, authority_of
from proctor.core.wire.cancellation import CancellationContext

SERVER_TIME = datetime(2026, 10, 2, tzinfo=UTC)
CONTEXT = CancellationContext("Q", SERVER_TIME, {})
PROOF: dict[str, Any] = {"pid": 1}


def authority(**deadlines: float) -> Authority:
    """Give an authority from 100 s on, a lease to 120 s, answers 1 s under way."""
    return authority_of(
        Exchange(100.0, 101.0, SERVER_TIME),
        leases=Leases(SERVER_TIME + timedelta(seconds=20)),
        deadlines=AttemptDeadlines(
            **{name: SERVER_TIME + timedelta(seconds=seconds) for name, seconds in deadlines.items()}
        ),
    )


ENDS: list[ChildEnd] = [
    Returned("blob"),
    Raised("ValueError", "no", non_retryable=False),
    NotStarted("worker_shutdown"),
    *(WasStopped(cause, PROOF) for cause in StopCause),
]


@pytest.mark.parametrize("standing", [Standing(authority(), "lost", CONTEXT), Standing(authority(), confirmed=True)])
def test_an_unproven_stop_beats_everything(standing: Standing) -> None:
    error = RuntimeError("still there")

    assert decide(Unproven(error), standing, now=100.0) == KeepCapacity(error)


@pytest.mark.parametrize("end", ENDS)
def test_a_cancellation_is_acknowledged_however_the_child_ended(end: ChildEnd) -> None:
    assert decide(end, Standing(authority(), "lost", CONTEXT), now=100.0) == Acknowledge(CONTEXT)


@pytest.mark.parametrize("end", ENDS)
def test_a_lost_claim_publishes_nothing_however_the_child_ended(end: ChildEnd) -> None:
    standing = Standing(authority(start_to_close=1), "workflow_claim_mismatch", confirmed=True)

    assert decide(end, standing, now=110.0) == Abandon("workflow_claim_mismatch")


def test_a_result_is_published_after_one_more_renewal() -> None:
    before = decide(Returned("blob"), Standing(authority()), now=105.0)
    after = decide(Returned("blob"), Standing(authority(), confirmed=True), now=105.0)

    report = {"outcome": "completed", "result": {"codec": "avro", "blob": "blob"}, "payload_codec": "avro"}
    assert before == Publish(report, renew_first=True)
    assert after == Publish(report, renew_first=False)


def test_a_result_at_a_deadline_is_sent_without_the_renewal_that_would_be_refused() -> None:
    verdict = decide(Returned("blob"), Standing(authority(start_to_close=5)), now=105.0)

    assert isinstance(verdict, Publish)
    assert verdict.renew_first is False


@pytest.mark.parametrize(
    ("cause", "name", "bound"),
    [
        (StopCause.ATTEMPT_TIMEOUT, "start_to_close", Bound.START_TO_CLOSE),
        (StopCause.TOTAL_TIMEOUT, "schedule_to_close", Bound.SCHEDULE_TO_CLOSE),
        (StopCause.HEARTBEAT_TIMEOUT, "heartbeat", Bound.HEARTBEAT),
    ],
)
def test_a_timeout_is_reported_once_the_server_must_agree(cause: StopCause, name: str, bound: Bound) -> None:
    verdict = decide(WasStopped(cause, PROOF), Standing(authority(**{name: 5})), now=104.0)

    assert verdict == Publish({"outcome": "timed_out"}, renew_first=False, not_before=106.0, timeout=bound)


def test_of_several_due_deadlines_the_servers_precedence_is_reported() -> None:
    standing = Standing(authority(start_to_close=5, schedule_to_close=5))

    verdict = decide(WasStopped(StopCause.ATTEMPT_TIMEOUT, PROOF), standing, now=105.0)

    assert isinstance(verdict, Publish)
    assert verdict.timeout is Bound.SCHEDULE_TO_CLOSE


def test_a_timeout_the_server_does_not_count_is_not_reported() -> None:
    verdict = decide(WasStopped(StopCause.HEARTBEAT_TIMEOUT, PROOF), Standing(authority()), now=104.0)

    assert isinstance(verdict, Abandon)


def test_a_dead_mans_stop_at_a_deadline_of_the_attempt_is_a_timeout() -> None:
    verdict = decide(WasStopped(StopCause.AUTHORITY_LOST, PROOF), Standing(authority(heartbeat=5)), now=105.0)

    assert isinstance(verdict, Publish)
    assert verdict.timeout is Bound.HEARTBEAT


def test_a_dead_mans_stop_at_the_lease_publishes_nothing() -> None:
    verdict = decide(WasStopped(StopCause.AUTHORITY_LOST, PROOF), Standing(authority(heartbeat=50)), now=120.0)

    assert verdict == Abandon("authority_spent")


def test_a_deadline_refusal_that_our_clock_confirms_is_a_timeout() -> None:
    standing = Standing(authority(start_to_close=5), DEADLINE_REFUSAL)

    verdict = decide(WasStopped(StopCause.ATTEMPT_TIMEOUT, PROOF), standing, now=105.5)

    assert verdict == Publish(
        {"outcome": "timed_out"}, renew_first=False, not_before=106.0, timeout=Bound.START_TO_CLOSE
    )


def test_a_deadline_refusal_that_our_clock_contradicts_loses_the_claim() -> None:
    standing = Standing(authority(start_to_close=15), DEADLINE_REFUSAL)

    verdict = decide(WasStopped(StopCause.AUTHORITY_LOST, PROOF), standing, now=105.5)

    assert verdict == Abandon(DEADLINE_REFUSAL)


def test_a_memory_stop_is_a_failure_that_may_be_retried() -> None:
    verdict = decide(WasStopped(StopCause.MEMORY, PROOF), Standing(authority(), confirmed=True), now=105.0)

    assert isinstance(verdict, Publish)
    assert verdict.report["exception_type"] == "MemoryLimitExceeded"
    assert verdict.report["non_retryable"] is False


@pytest.mark.parametrize("cause", [StopCause.SHUTDOWN, StopCause.OWNER_DEATH, StopCause.CANCELLED])
def test_a_stop_of_our_own_publishes_nothing(cause: StopCause) -> None:
    assert isinstance(decide(WasStopped(cause, PROOF), Standing(authority(), confirmed=True), now=105.0), Abandon)


def test_a_child_that_never_started_publishes_nothing() -> None:
    assert decide(NotStarted("worker_shutdown"), Standing(authority()), now=100.0) == Abandon("worker_shutdown")


def test_a_failure_without_a_message_still_says_something() -> None:
    report = failed(Raised("  ", " ", non_retryable=True))

    assert report == {
        "outcome": "failed",
        "message": "local activity failed with Exception",
        "exception_type": "Exception",
        "non_retryable": True,
    }


@given(st.text(), st.text())
def test_failure_reports_are_bounded_and_have_a_utf8_form(name: str, message: str) -> None:
    report = failed(Raised(name * 300, message * 20_000, non_retryable=False))

    assert 0 < len(report["exception_type"].encode()) <= MAX_TYPE_BYTES
    assert 0 < len(report["message"].encode()) <= MAX_MESSAGE_BYTES


@given(st.text(alphabet=st.characters(), max_size=50), st.integers(min_value=3, max_value=60))
def test_a_bounded_text_is_a_prefix_and_a_mark(text: str, limit: int) -> None:
    cut = bounded_text(text, limit)

    clean = text.encode("utf-8", "replace").decode()
    assert len(cut.encode()) <= limit
    assert cut == clean or (cut.endswith("…") and clean.startswith(cut[:-1]))


@given(
    st.sampled_from(ENDS),
    st.none() | st.sampled_from(["run_closed", DEADLINE_REFUSAL]),
    st.none() | st.just(CONTEXT),
    st.booleans(),
    st.dictionaries(st.sampled_from(["start_to_close", "schedule_to_close", "heartbeat"]), st.floats(1, 30)),
    st.floats(100, 140),
)
def test_a_result_is_published_only_by_a_child_that_returned_on_a_claim_that_is_ours(
    end: ChildEnd,
    lost: str | None,
    cancellation: CancellationContext | None,
    confirmed: bool,
    deadlines: dict[str, float],
    now: float,
) -> None:
    verdict = decide(end, Standing(authority(**deadlines), lost, cancellation, confirmed), now=now)

    if isinstance(verdict, Publish):
        assert cancellation is None
        if verdict.report["outcome"] == "timed_out":
            assert verdict.not_before is not None
            assert lost in (None, DEADLINE_REFUSAL)
        else:
            assert lost is None
            assert isinstance(end, Returned) == (verdict.report["outcome"] == "completed")
