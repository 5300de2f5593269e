"""What happens is told, in order, to whoever listens; a slow listener costs nobody anything."""

from __future__ import annotations

import os
import signal

import pytest
import trio
import trio.testing

from handlers import blocking, hostile
from proctor_supervisor import (
    AttemptControl,
    EventStream,
    StopReason,
    Supervisor,
    SupervisorEvent,
    SupervisorOptions,
    Task,
    TaskRefused,
    open_supervisor,
)


async def _collect(stream: EventStream, until: str) -> list[SupervisorEvent]:
    found = []
    with trio.fail_after(10):
        async for event in stream:
            found.append(event)
            if event.kind == until:
                return found
    raise AssertionError("the stream ended")


async def test_the_life_of_a_stopped_attempt_is_told_in_order(supervisor: Supervisor) -> None:
    control = AttemptControl()
    task = Task(handler=hostile.family, attempt_id="a-1")
    with supervisor.events() as stream:
        await supervisor.run(
            task, control=control, on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED)
        )
        told = await _collect(stream, "reaped")

    assert [event.kind for event in told] == [
        "started", "heartbeat", "notice", "raised", "killed", "descendants", "reaped",
    ]  # fmt: skip
    assert {event.attempt_id for event in told} == {"a-1"}
    assert {event.pid for event in told} == {control.pid}
    assert len(told[-2].facts["pids"]) >= 3
    assert told[-1].facts["outcome"] == "Stopped"


async def test_refusals_and_restarts_are_told(supervisor: Supervisor) -> None:
    with supervisor.events() as stream:
        with pytest.raises(TaskRefused):
            await supervisor.run(Task(handler="nonsense", attempt_id="a-2"))
        assert (await _collect(stream, "refused"))[-1].attempt_id == "a-2"

        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        assert (await _collect(stream, "restarted"))[-1].pid == supervisor.pid


async def test_a_slow_listener_loses_the_oldest_and_is_told_how_many() -> None:
    async with open_supervisor(SupervisorOptions(children=1, isolation="reuse")) as supervisor:
        with supervisor.events(limit=4) as stream:
            for number in range(10):
                await supervisor.run(Task(handler=blocking.pid, attempt_id=str(number)))

            kept = await _collect(stream, "reaped")

    assert stream.dropped == 16
    assert [(event.kind, event.attempt_id) for event in kept] == [("started", "8"), ("reaped", "8")]


async def test_several_readers_of_one_stream_share_its_events(supervisor: Supervisor) -> None:
    found: list[SupervisorEvent] = []

    async def read_two(stream: EventStream) -> None:
        for _ in range(2):
            found.append(await anext(stream))

    with supervisor.events() as stream, trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read_two, stream)
            await trio.testing.wait_all_tasks_blocked()  # all of them wait
            for _ in range(3):
                await supervisor.run(Task.call(blocking.pid))

    assert [event.kind for event in found].count("started") == 3
    assert len(found) == 6
