"""Five hundred kills each of child, supervisor process and owner, at instants drawn over the whole attempt."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from handlers import blocking, hostile
from processes import await_none, new_mark, state
from proctor_supervisor import (
    Completed,
    EventStream,
    Failed,
    Outcome,
    Stopped,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

TESTS = Path(__file__).resolve().parents[1]
PARTS = range(5)  # one hundred draws each, so that they spread over the cores
DRAWS = 100
GONE = ("", "Z")
PRELOAD = ["handlers.blocking", "handlers.hostile"]


def _draw() -> tuple[random.Random, str]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed), f"seed {seed}"


async def _run_and_kill(supervisor: Supervisor, task: Task, delay: float, victim: str) -> tuple[Outcome, int]:
    """Run `task`; `delay` seconds after its dispatch kill its child or the supervisor process. Give outcome and pid."""

    async def kill(stream: EventStream) -> None:
        async for event in stream:
            if event.kind == "started":
                break
        await trio.sleep(delay)
        pid = event.pid if victim == "child" else supervisor.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    with supervisor.events() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill, stream)
            outcome = await supervisor.run(task)
            nursery.cancel_scope.cancel()
    return outcome, outcome.pid


@pytest.mark.parametrize("isolation", ["fresh", "reuse"])
@pytest.mark.parametrize("part", PARTS)
async def test_a_child_killed_at_any_instant(part: int, isolation: str) -> None:
    draw, seed = _draw()
    options = SupervisorOptions(children=1, isolation=isolation, preload=PRELOAD)  # type: ignore[arg-type]
    descriptors = 0
    async with open_supervisor(options) as supervisor:
        for number in range(DRAWS):
            task = Task.call(blocking.echo, "x" * draw.choice([10, 100_000, 400_000]))
            with trio.fail_after(20):
                outcome, pid = await _run_and_kill(supervisor, task, draw.uniform(0, 0.006), "child")

            assert isinstance(outcome, Completed | Failed), seed
            if isinstance(outcome, Failed):
                assert (outcome.kind, outcome.signal) == ("signalled", signal.SIGKILL), seed
                assert state(pid) == "", seed
            assert supervisor.running == 0, seed
            if number == 10:
                descriptors = len(os.listdir("/proc/self/fd"))
        with trio.fail_after(20):
            await supervisor.run(Task.call(blocking.pid))
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 10, seed  # at most one more idle child


@pytest.mark.parametrize("part", PARTS)
async def test_a_supervisor_process_killed_at_any_instant(part: int) -> None:
    draw, seed = _draw()
    async with open_supervisor(SupervisorOptions(children=1, preload=PRELOAD)) as supervisor:
        for _ in range(DRAWS):
            task = draw.choice(
                [Task.call(blocking.echo, "x" * 100_000), Task.call(blocking.sleep, 600), Task.call(hostile.family)]
            )
            with trio.fail_after(20):
                outcome, pid = await _run_and_kill(supervisor, task, draw.uniform(0, 0.012), "supervisor")

            assert isinstance(outcome, Completed | Failed | Stopped), seed
            if isinstance(outcome, Failed):
                assert outcome.kind in ("supervisor_died", "start_failed"), (seed, outcome)
                assert pid == 0 or state(pid) in GONE, seed
            assert supervisor.running == 0, seed


@pytest.mark.parametrize("part", PARTS)
def test_an_owner_killed_at_any_instant(part: int) -> None:
    draw, seed = _draw()
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-m", "handlers.owner_forge"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forge:
        assert forge.stdin is not None
        assert forge.stdout is not None
        for _ in range(DRAWS):
            mark = new_mark()
            print(mark, draw.uniform(0.0, 0.25), file=forge.stdin, flush=True)
            assert forge.stdout.readline() == "killed\n", seed
            assert await_none(mark, within=2.0) == [], seed
