"""A reused child serves attempts one after the other, and is retired as soon as it is not as good as new."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from handlers import blocking, hostile, traces
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Deadlines,
    Failed,
    Heartbeat,
    Outcome,
    Stopped,
    StopPolicy,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)


@pytest.fixture
async def reusing() -> AsyncIterator[Supervisor]:
    options = SupervisorOptions(
        children=1,
        isolation="reuse",
        attempts_per_child=50,
        reuse_growth_bytes=32 * 1024 * 1024,
        stop=StopPolicy(notice_grace=0.05, raise_grace=0.05),
        preload=["handlers.blocking", "handlers.hostile", "handlers.traces"],
    )
    async with open_supervisor(options) as opened:
        yield opened
        assert opened.running == 0, "a slot was not given back"


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


async def _pid(supervisor: Supervisor) -> int:
    found: int = _value(await supervisor.run(Task.call(blocking.pid)))
    return found


async def test_one_child_serves_many_attempts(reusing: Supervisor) -> None:
    assert len({await _pid(reusing) for _ in range(20)}) == 1


async def test_a_child_is_retired_after_its_number_of_attempts(reusing: Supervisor) -> None:
    pids = [await _pid(reusing) for _ in range(120)]

    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [50, 50, 20]


async def test_each_attempt_has_its_own_heartbeats_output_and_result(reusing: Supervisor) -> None:
    first: list[bytes] = []
    second: list[bytes] = []

    one = await reusing.run(Task.call(blocking.beat, 3, "one"), on_heartbeat=lambda beat: first.append(beat.payload))
    await reusing.run(Task.call(blocking.say, "out", "err"))
    two = await reusing.run(Task.call(blocking.beat, 5, "two"), on_heartbeat=lambda beat: second.append(beat.payload))

    assert (_value(one), one.heartbeats, first[-1]) == ("one", 3, b"2")
    assert (_value(two), two.heartbeats, second[-1]) == ("two", 5, b"4")
    assert two.output.stdout == ""


@pytest.mark.parametrize(
    ("handler", "arguments"),
    [
        (traces.leave_process, ()),
        (traces.leave_thread, ()),
        (traces.ignore_sigterm, ()),
        (traces.grow, (64,)),
        (traces.fail, ()),
        (hostile.exit_now, (0,)),
        (traces.go_elsewhere, ("/",)),
        (traces.go_where_nothing_is, ("/dev/shm",)),
        (traces.hide_new_files, ()),
        pytest.param(
            traces.become_nobody, (), marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another")
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_child_with_traces_is_retired(
    reusing: Supervisor, handler: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    before = await _pid(reusing)

    outcome = await reusing.run(Task.call(handler, *arguments))

    assert outcome.pid == before
    assert await _pid(reusing) != before


async def test_what_a_returning_handler_left_behind_is_killed(reusing: Supervisor) -> None:
    outcome = await reusing.run(Task.call(traces.leave_process))

    assert [one.pid for one in outcome.descendants] == [_value(outcome)]


async def test_a_stop_ends_the_child_and_the_next_attempt_gets_another(reusing: Supervisor) -> None:
    before = await _pid(reusing)
    control = AttemptControl()

    outcome = await reusing.run(
        Task.call(hostile.swallow_everything),
        control=control,
        on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED),
    )

    assert isinstance(outcome, Stopped)
    assert outcome.proof.pid == before
    assert await _pid(reusing) != before


async def test_deadlines_of_an_attempt_end_with_it(reusing: Supervisor) -> None:
    task = Task(handler=blocking.pid, deadlines=Deadlines(attempt=trio.current_time() + 0.4, heartbeat_timeout=0.4))
    first = _value(await reusing.run(task))

    late = await reusing.run(Task.call(blocking.sleep, 0.6))

    assert _value(late) == "slept"
    assert late.pid == first


async def test_each_attempt_is_held_to_its_own_deadline(reusing: Supervisor) -> None:
    before = await _pid(reusing)

    for _ in range(2):
        task = Task(
            handler=blocking.sleep, payload=b"[[600],{}]", deadlines=Deadlines(attempt=trio.current_time() + 0.2)
        )
        outcome = await reusing.run(task)
        assert isinstance(outcome, Stopped)
        assert outcome.reason is StopReason.ATTEMPT_TIMEOUT

    assert await _pid(reusing) != before


async def test_an_attempt_that_returns_next_to_its_deadline_has_one_outcome_and_one_slot(reusing: Supervisor) -> None:
    for step in range(12):
        task = Task(
            handler=blocking.sleep,
            payload=b"[[0.05],{}]",
            deadlines=Deadlines(attempt=trio.current_time() + 0.045 + step * 0.001),
        )
        outcome = await reusing.run(task)

        assert isinstance(outcome, Completed | Stopped)
        assert reusing.running == 0
        assert await _pid(reusing) > 0


async def test_an_idle_child_that_dies_costs_no_attempt(reusing: Supervisor) -> None:
    for _ in range(5):
        victim = await _pid(reusing)
        killed = await reusing.run(Task.call(traces.kill_later, victim))
        # It was told to kill itself after the result was sent, while idle or while the next task arrives.
        assert isinstance(killed, Completed)
        outcome = await reusing.run(Task.call(blocking.echo, "x" * 100_000))
        assert isinstance(outcome, Completed | Failed)
        if isinstance(outcome, Failed):
            assert outcome.kind == "signalled"


async def test_heartbeats_of_one_attempt_never_reach_the_next(reusing: Supervisor) -> None:
    seen: list[Heartbeat] = []
    await reusing.run(Task.call(blocking.beat, 2000, ""))

    await reusing.run(Task.call(blocking.pid), on_heartbeat=seen.append)

    assert seen == []


async def test_children_that_are_all_about_to_retire_cost_no_attempt() -> None:
    """Each is offered again the moment its result is there, and says only then that it goes."""
    outcomes: list[Outcome] = []
    async with open_supervisor(
        SupervisorOptions(children=8, isolation="reuse", preload=["handlers.traces"])
    ) as supervisor:

        async def some() -> None:
            for _ in range(15):
                outcomes.append(await supervisor.run(Task.call(traces.leave_thread)))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(some)

    assert [outcome for outcome in outcomes if not isinstance(outcome, Completed)] == []
