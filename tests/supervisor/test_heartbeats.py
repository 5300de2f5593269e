"""Heartbeats never block their handler, cost the owner a bounded rate of wake-ups, and the newest always arrives."""

from __future__ import annotations

import json
import time

import trio

from handlers import beating
from proctor_supervisor import Completed, Heartbeat, Outcome, SupervisorOptions, Task, open_supervisor

PRELOAD = ["handlers.beating"]
COALESCE_SECONDS = 0.005  # how long the owner lets beats gather


class _CountTurns(trio.abc.Instrument):
    """Counts how often this program's loop wakes up to run a task."""

    def __init__(self) -> None:
        self.turns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.turns += 1


def _value(outcome: Outcome) -> list[float]:
    assert isinstance(outcome, Completed), outcome
    found: list[float] = json.loads(outcome.result)
    return found


async def test_ten_thousand_beats_a_second_cost_the_owner_a_bounded_number_of_wake_ups() -> None:
    beats: list[Heartbeat] = []
    count = _CountTurns()
    async with open_supervisor(SupervisorOptions(children=1, preload=PRELOAD)) as supervisor:
        await supervisor.run(Task.call(beating.beat_at_a_rate, 1, 1e6))
        trio.lowlevel.add_instrument(count)
        outcome = await supervisor.run(Task.call(beating.beat_at_a_rate, 10_000, 10_000), on_heartbeat=beats.append)
        trio.lowlevel.remove_instrument(count)

    seconds, _ = _value(outcome)
    windows = seconds / COALESCE_SECONDS
    assert outcome.heartbeats == 10_000
    assert len(beats) <= windows + 2, "more than one callback in a window"
    # Two turns of one task for each window, and what one attempt costs anyhow.
    assert count.turns <= 2 * windows + 50
    assert beats[-1].payload == b"9999"
    assert len(beats) + sum(beat.superseded for beat in beats) == 10_000
    assert outcome.heartbeats_dropped == 10_000 - len(beats)


async def test_beats_do_not_block_while_the_owner_does_not_read_and_the_newest_comes_with_the_outcome() -> None:
    beats: list[Heartbeat] = []
    async with open_supervisor(SupervisorOptions(children=1, preload=PRELOAD)) as supervisor:

        def block(beat: Heartbeat) -> None:
            if not beats:
                time.sleep(0.3)  # this program is busy: it reads nothing meanwhile
            beats.append(beat)

        with trio.fail_after(20):
            outcome = await supervisor.run(Task.call(beating.beat_while_nobody_reads, 20_000, 1000), on_heartbeat=block)

    assert outcome.heartbeats == 20_000
    assert outcome.heartbeats_dropped == 20_000 - len(beats)
    assert outcome.heartbeats_dropped > 10_000
    assert beats[-1].payload == b"x" * 1000
    assert isinstance(outcome, Completed)


async def test_a_beat_over_the_limit_is_a_typed_error_and_nothing_is_sent() -> None:
    beats: list[Heartbeat] = []
    async with open_supervisor(SupervisorOptions(children=1, preload=PRELOAD)) as supervisor:
        outcome = await supervisor.run(Task.call(beating.beat_too_large), on_heartbeat=beats.append)

    assert "heartbeat details of 5000 bytes are over the limit of 4092" in str(_value(outcome))
    assert [beat.payload for beat in beats] == [b"small"]
    assert outcome.heartbeats == 1
