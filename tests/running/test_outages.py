"""What the log says of failing polls: each trouble once a minute, and the end of what was told."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock

from proctor.errors import ProctorError, ServerRefused, ServerUnreachable
from proctor.running.outages import REPEAT_SECONDS, PollOutage

UNREACHABLE = ServerUnreachable("nobody answers")


def refused(reason: str) -> ServerRefused:
    return ServerRefused(f"refused: {reason}", status=503, reason=reason, body={})


def said(*moves: tuple[float, ProctorError | None], clock: MockClock) -> list[tuple[str, object]]:
    """Give what is logged when polls fail (or are answered: None) after so many seconds each."""
    outage = PollOutage()
    with capture_logs() as lines:
        for seconds, problem in moves:
            clock.jump(seconds)
            if problem is None:
                outage.answered()
            else:
                outage.failed(problem)
    assert {line["log_level"] for line in lines} <= {"warning"}
    return [(line["event"], line.get("problem", line.get("after"))) for line in lines]


async def test_one_trouble_of_many_pollers_is_one_line_and_so_is_its_end(mock_clock: MockClock) -> None:
    moves = [*[(0.0, UNREACHABLE)] * 6, (7.0, None), (0.0, None)]

    assert said(*moves, clock=mock_clock) == [("polls_fail", "nobody answers"), ("polls_answered_again", 7.0)]


async def test_another_trouble_is_told_at_once(mock_clock: MockClock) -> None:
    moves = [(0.0, UNREACHABLE), (1.0, refused("storage_pressure")), (1.0, refused("other")), (1.0, UNREACHABLE)]

    told = said(*moves, clock=mock_clock)

    assert [problem for _, problem in told] == ["nobody answers", "refused: storage_pressure", "refused: other"]


async def test_a_lasting_trouble_is_told_again_after_a_minute(mock_clock: MockClock) -> None:
    almost = REPEAT_SECONDS - 1
    moves = [(0.0, UNREACHABLE), (almost, UNREACHABLE), (1.0, UNREACHABLE), (almost, UNREACHABLE), (1.0, None)]

    assert [event for event, _ in said(*moves, clock=mock_clock)] == [
        "polls_fail",
        "polls_fail",
        "polls_answered_again",
    ]


async def test_polls_that_fail_now_and_then_do_not_fill_the_log(mock_clock: MockClock) -> None:
    moves = [(1.0, problem) for _ in range(20) for problem in (UNREACHABLE, None)]

    assert said(*moves, clock=mock_clock) == [("polls_fail", "nobody answers"), ("polls_answered_again", 1.0)]


@pytest.mark.parametrize("polls", [1, 3])
async def test_polls_that_are_answered_say_nothing(polls: int, mock_clock: MockClock) -> None:
    assert said(*[(1.0, None)] * polls, clock=mock_clock) == []
