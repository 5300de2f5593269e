"""Which deadline wins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proctor_supervisor.deadman import Watch
from proctor_supervisor.outcome import StopReason

_INSTANT = st.floats(0, 100, allow_nan=False)


def test_no_deadline_is_never_due() -> None:
    assert Watch(0.0).first_due(last_beat=0.0, now=1e9) is None


def test_the_earliest_deadline_is_next() -> None:
    watch = Watch(0.0, attempt_at=5.0, total_at=9.0, authority_at=7.0, heartbeat_timeout=6.0)

    assert watch.first_due(last_beat=0.0, now=1.0) == (5.0, StopReason.ATTEMPT_TIMEOUT)


def test_of_several_passed_deadlines_the_gravest_wins() -> None:
    watch = Watch(0.0, attempt_at=5.0, total_at=9.0, authority_at=7.0, heartbeat_timeout=6.0)

    assert watch.first_due(last_beat=0.0, now=6.5) == (6.0, StopReason.HEARTBEAT_TIMEOUT)
    assert watch.first_due(last_beat=0.0, now=8.0) == (7.0, StopReason.AUTHORITY_LOST)
    assert watch.first_due(last_beat=6.0, now=5.5) == (5.0, StopReason.ATTEMPT_TIMEOUT)


def test_silence_counts_from_the_start_and_from_each_beat() -> None:
    watch = Watch(10.0, heartbeat_timeout=2.0)

    assert watch.first_due(last_beat=0.0, now=10.0) == (12.0, StopReason.HEARTBEAT_TIMEOUT)
    assert watch.first_due(last_beat=11.5, now=11.6) == (13.5, StopReason.HEARTBEAT_TIMEOUT)


def test_a_beat_from_the_future_is_not_believed() -> None:
    watch = Watch(10.0, heartbeat_timeout=2.0)

    assert watch.first_due(last_beat=1e12, now=11.0) == (13.0, StopReason.HEARTBEAT_TIMEOUT)


@given(_INSTANT, _INSTANT, _INSTANT, _INSTANT, _INSTANT, _INSTANT)
def test_a_due_deadline_is_reported_exactly_when_one_has_passed(
    attempt: float, total: float, authority: float, silence: float, beat: float, now: float
) -> None:
    watch = Watch(0.0, attempt, total, authority, silence)

    due = watch.first_due(beat, now)

    assert due is not None
    passed = min(attempt, total, authority, min(beat, now) + silence) <= now
    assert (due[0] <= now) == passed
