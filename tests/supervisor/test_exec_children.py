"""Where forking is unsafe children are exec'd, and keep every promise."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from handlers import blocking, hostile
from processes import state
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Deadlines,
    Failed,
    Outcome,
    StartRefused,
    Stopped,
    StopPolicy,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)


@pytest.fixture(params=["handlers.starts_thread", "handlers.opens_socket"])
async def fallen_back(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Supervisor]:
    options = SupervisorOptions(
        children=2,
        preload=["handlers.blocking", "handlers.hostile", request.param],
        stop=StopPolicy(notice_grace=0.05, raise_grace=0.05),
    )
    with caplog.at_level(logging.WARNING, "proctor_supervisor"):
        async with open_supervisor(options) as opened:
            assert not opened.forks
            assert request.param in caplog.text
            yield opened
            assert opened.running == 0


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


async def test_an_execd_child_is_as_bare_as_a_forked_one(fallen_back: Supervisor) -> None:
    seen = _value(await fallen_back.run(Task.call("handlers.blocking:surroundings")))

    # A mapping keeps a descriptor of its own: the notice board is the one more that an exec'd child has.
    apart = ("/proc/", "/memfd:proctor-board")
    channels = [int(name) for name, target in seen["descriptors"].items() if not target.startswith(apart)]
    own = [number for number in channels if number > 5]  # what the unsafe module itself opened in this child
    assert sorted(set(channels) - set(own)) == [0, 1, 2, 3, 4, 5]
    assert len(own) <= 1
    assert seen["unusual_signals"] == []
    assert seen["main_thread"]
    assert seen["session"]


async def test_results_heartbeats_and_output_arrive(fallen_back: Supervisor) -> None:
    outcome = await fallen_back.run(Task.call(blocking.beat, 10, "done"))
    said = await fallen_back.run(Task.call(blocking.say, "out", "err"))
    large = await fallen_back.run(Task.call(blocking.echo, "x" * 1_000_000))

    assert (_value(outcome), outcome.heartbeats) == ("done", 10)
    assert (said.output.stdout, said.output.stderr) == ("out\n", "err\n")
    assert len(_value(large)) == 1_000_000


async def test_stops_are_the_same(fallen_back: Supervisor) -> None:
    control = AttemptControl()
    with trio.fail_after(20):
        family = await fallen_back.run(
            Task.call(hostile.family),
            control=control,
            on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED),
        )
        stuck = await fallen_back.run(
            Task(
                handler=hostile.backtrack,
                deadlines=Deadlines(attempt=trio.current_time() + 1),
                stop=StopPolicy(notice_grace=0, raise_grace=0, stack_budget=5),
            )
        )

    assert isinstance(family, Stopped)
    assert len(family.proof.descendants) >= 3
    assert isinstance(stuck, Stopped)
    assert stuck.proof.signal == signal.SIGKILL
    assert "re/__init__.py" in stuck.proof.last_stack_line
    assert stuck.proof.stop_seconds < 4, "the dump was waited for instead of being recognised as complete"
    assert state(stuck.pid) == ""


async def test_a_death_has_its_own_outcome(fallen_back: Supervisor) -> None:
    outcome = await fallen_back.run(Task.call(hostile.exit_now, 3))

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.exit_code) == ("exited", 3)


async def test_strict_refuses_and_names_the_module() -> None:
    with pytest.raises(StartRefused) as refused:
        async with open_supervisor(SupervisorOptions(preload=["handlers.starts_thread"], strict=True)):
            pytest.fail("it opened")

    assert (refused.value.module, refused.value.unsafe) == ("handlers.starts_thread", True)
