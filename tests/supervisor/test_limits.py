"""Limits end what is over them, by name, and leave the neighbours alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking, greedy, hostile, traces
from processes import state
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Failed,
    Heartbeat,
    Limits,
    Outcome,
    Stopped,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

MIB = 1024 * 1024


@pytest.fixture(params=["fresh", "reuse"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Supervisor]:
    options = SupervisorOptions(
        children=2, isolation=request.param, preload=["handlers.blocking", "handlers.greedy", "handlers.traces"]
    )
    async with open_supervisor(options) as opened:
        yield opened
        assert opened.running == 0


def _task(handler: Any, *arguments: object, **limits: int) -> Task:
    return Task(handler=handler, payload=json.dumps([arguments, {}]).encode(), limits=Limits(**limits))


async def test_too_much_resident_memory_stops_the_attempt_and_no_other(either: Supervisor) -> None:
    outcomes: dict[str, Outcome] = {}

    async def run(name: str, task: Task) -> None:
        outcomes[name] = await either.run(task)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "neighbour", _task(blocking.sleep, 0.5, memory_bytes=512 * MIB))
            nursery.start_soon(run, "greedy", _task(greedy.hold, 256, memory_bytes=96 * MIB))

    assert isinstance(outcomes["neighbour"], Completed)
    greedy_one = outcomes["greedy"]
    assert isinstance(greedy_one, Stopped)
    assert greedy_one.reason is StopReason.MEMORY
    assert "over the limit of 100663296 bytes" in greedy_one.proof.detail


async def test_memory_of_a_grandchild_counts(either: Supervisor) -> None:
    with trio.fail_after(30):
        outcome = await either.run(_task(greedy.hold_in_subprocess, 256, memory_bytes=128 * MIB))

    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.MEMORY


async def test_address_space_is_a_memory_error_in_the_handler(either: Supervisor) -> None:
    outcome = await either.run(_task(greedy.hold, 512, address_space_bytes=64 * MIB))

    assert isinstance(outcome, Failed)
    assert outcome.failure.type_name == "MemoryError"


async def test_processor_time_ends_with_its_signal(either: Supervisor) -> None:
    with trio.fail_after(30):
        outcome = await either.run(_task(greedy.spin, cpu_seconds=1))

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.signal) == ("signalled", signal.SIGXCPU)


async def test_open_files_are_limited(either: Supervisor) -> None:
    outcome = await either.run(_task(greedy.open_files, 100, open_files=40))

    assert isinstance(outcome, Failed)
    assert outcome.failure.type_name == "OSError"


async def test_limits_of_one_attempt_do_not_bind_the_next(either: Supervisor) -> None:
    await either.run(_task(blocking.pid, open_files=40, address_space_bytes=64 * MIB, cpu_seconds=1))

    outcome = await either.run(_task(greedy.open_files, 100))

    assert isinstance(outcome, Completed)


async def test_what_may_be_kept_lives_on_after_a_return(either: Supervisor) -> None:
    outcome = await either.run(Task(handler=traces.leave_process, descendants="keep"))

    assert isinstance(outcome, Completed)
    pid = json.loads(outcome.result)
    try:
        assert outcome.descendants == ()
        assert state(pid) in ("S", "R")
        # A neighbour's leftovers are still killed.
        other = await either.run(Task.call(traces.leave_process))
        assert isinstance(other, Completed)
        assert not Path(f"/proc/{json.loads(other.result)}").exists()
        assert state(pid) in ("S", "R")
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_stop_takes_also_what_a_return_might_have_kept(either: Supervisor) -> None:
    control = AttemptControl()
    pids: list[int] = []

    def on_heartbeat(beat: Heartbeat) -> None:
        pids.extend(int(pid) for pid in beat.payload.decode().split(","))
        control.request_stop(StopReason.CANCELLED)

    with trio.fail_after(20):
        task = Task(handler=hostile.family, descendants="keep")
        outcome = await either.run(task, control=control, on_heartbeat=on_heartbeat)

    assert isinstance(outcome, Stopped)
    assert [state(pid) for pid in pids] == ["", "", ""]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_a_limit_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match="memory_bytes must be a whole number"):
        Limits(memory_bytes=value)
