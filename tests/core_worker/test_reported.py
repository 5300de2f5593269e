"""One command tells a whole local activity: bounded, consistent, and in the form that the server takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core.authority import Bound
from proctor.core.codec import envelope
from proctor.core.reported import MAX_HEARTBEATS, AttemptEnd, Report, timed_out
from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.commands.reported import read
from proctor.server.rules.fields import Fields

FAILED = AttemptEnd("failed", 5, None, "no disk", "OSError")
DONE = AttemptEnd("completed", 5, envelope("x"))


def report(**options: Any) -> Report:
    descriptor = {"type": "record_local_activity", "activity_type": "act", "arguments": envelope([1]), **options}
    return Report(descriptor, task_id="T")


def retries(attempts: int, *gaps: int, never: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "retry_policy": {
            "max_attempts": attempts,
            "backoff_seconds": list(gaps),
            "non_retryable_error_types": list(never),
        }
    }


def refused(command: dict[str, Any], minor: int = 19) -> dict[str, Any]:
    fields = Fields(command)
    read(fields, Grammar(limit=2 * 1024 * 1024, minor=minor))
    return fields.errors


def run(told: Report, *ends: AttemptEnd, beats: int = 0) -> list[int | None]:
    delays = []
    for end in ends:
        told.begin()
        for number in range(beats):
            told.beat(number / 10, {"n": number})
        delays.append(told.end(end, elapsed_total=1))
    return delays


@pytest.mark.parametrize(
    "ends",
    [
        [DONE],
        [FAILED],
        [FAILED, DONE],
        [FAILED, timed_out(Bound.HEARTBEAT, 3), FAILED],
        [timed_out(Bound.SCHEDULE_TO_CLOSE, 9)],
        [AttemptEnd("cancelled", 0, None, "the run is cancelled", "ActivityCancelled", True)],
        [AttemptEnd("failed", 1, None, "", "", True)],
    ],
)
@pytest.mark.parametrize("minor", [18, 19])
def test_every_kind_of_call_is_taken_by_the_rules_of_the_server(ends: list[AttemptEnd], minor: int) -> None:
    told = report(**retries(max(len(ends), 1), *[2] * (len(ends) - 1)), start_to_close_timeout=5)

    delays = run(told, *ends, beats=3)

    assert delays == [2] * (len(ends) - 1) + [None]
    assert refused(told.command(), minor) == {}


def test_a_listed_error_type_is_not_retried_and_says_so() -> None:
    told = report(**retries(3, never=("OSError",)))

    assert run(told, FAILED) == [None]
    assert told.command()["non_retryable"] is True
    assert refused(told.command()) == {}


def test_a_retry_that_could_only_begin_after_the_total_time_is_skipped() -> None:
    told = report(**retries(3, 10, 10), schedule_to_close_timeout=8)

    assert run(told, FAILED) == [None]
    assert told.command()["outcome"] == "failed"


def test_too_many_heartbeats_are_dropped_oldest_first_and_counted() -> None:
    told = report(**retries(2, 0))
    run(told, FAILED, DONE, beats=MAX_HEARTBEATS)

    attempts = told.command()["attempts"]
    assert told.dropped == MAX_HEARTBEATS
    assert [len(one["heartbeats"]) for one in attempts] == [0, MAX_HEARTBEATS]
    assert refused(told.command()) == {}


def test_heartbeats_that_are_too_large_together_are_dropped_too() -> None:
    told = report()
    told.begin()
    for _ in range(400):
        told.beat(1, {"text": "x" * 3000})
    told.end(DONE, elapsed_total=1)

    assert told.dropped > 200
    assert len(str(told.command())) < 700_000


@given(st.lists(st.floats(min_value=-5, max_value=1e6)))
def test_the_instants_of_heartbeats_never_decrease(instants: list[float]) -> None:
    told = report()
    told.begin()
    for at in instants:
        told.beat(at, {})
    told.end(DONE, elapsed_total=1)

    assert refused(told.command()) == {}
