"""Five hundred kills each of child, supervisor process and owner, at instants drawn over the whole attempt."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
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
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

TESTS = Path(__file__).resolve().parents[1]
PARTS = range(10)  # fifty kills each, so that they spread over the cores
KILLS = 50
GONE = ("", "Z")
PRELOAD = ["handlers.blocking", "handlers.hostile"]


def _draw() -> tuple[random.Random, str]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed), f"seed {seed}"


async def _run_and_kill(supervisor: Supervisor, task: Task, delay: float, victim: str) -> tuple[Outcome, bool, str]:
    """Run `task`; `delay` seconds after its dispatch kill its child or the supervisor process.

    Give the outcome, whether the kill was sent while the attempt ran, and its last heartbeat.
    """
    killed = False
    beats = [""]

    async def kill(stream: EventStream) -> None:
        nonlocal killed
        async for event in stream:
            if event.kind == "started":
                break
        await trio.sleep(delay)
        pid = event.pid if victim == "child" else supervisor.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed = True

    with supervisor.events() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill, stream)
            outcome = await supervisor.run(task, on_heartbeat=lambda beat: beats.append(beat.payload.decode()))
            nursery.cancel_scope.cancel()
    return outcome, killed, beats[-1]


async def _length(supervisor: Supervisor, task: Task) -> float:
    """How many seconds `task` takes here and now, when nobody kills it."""
    lengths = []
    for _ in range(5):
        outcome = await supervisor.run(task)
        assert isinstance(outcome, Completed)
        lengths.append(outcome.duration)
    return statistics.median(lengths)


@pytest.mark.parametrize("isolation", ["fresh", "reuse"])
@pytest.mark.parametrize("part", PARTS)
async def test_a_child_killed_at_any_instant(part: int, isolation: str) -> None:
    draw, seed = _draw()
    options = SupervisorOptions(children=1, isolation=isolation, preload=PRELOAD)  # type: ignore[arg-type]
    tasks = [
        *(Task.call(blocking.echo, "x" * size) for size in (10, 100_000, 400_000)),
        Task.call(blocking.beat, 200, "x"),
        Task.call(blocking.sleep, 0.003),
        Task.call(blocking.leave_daemon_behind),
    ]
    descriptors = hits = 0
    async with open_supervisor(options) as supervisor:
        with trio.fail_after(20):
            lengths = [await _length(supervisor, task) for task in tasks]
        while hits < KILLS:  # a kill that comes when the attempt is over is none of them
            task, length = draw.choice(list(zip(tasks, lengths, strict=True)))
            with trio.fail_after(20):
                outcome, _, _ = await _run_and_kill(supervisor, task, draw.uniform(0, length), "child")

            assert isinstance(outcome, Completed | Failed), seed
            if isinstance(outcome, Failed):
                hits += 1
                assert (outcome.kind, outcome.signal, outcome.sent_by_us) == ("signalled", signal.SIGKILL, False), seed
                assert state(outcome.pid) == "", seed
            assert supervisor.running == 0, seed
            if hits == KILLS // 10:
                descriptors = len(os.listdir("/proc/self/fd"))
        with trio.fail_after(20):
            await supervisor.run(Task.call(blocking.pid))
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 10, seed  # at most one more idle child


@pytest.mark.parametrize("part", PARTS)
async def test_a_supervisor_process_killed_at_any_instant(part: int) -> None:
    draw, seed = _draw()
    echo, endless = Task.call(blocking.echo, "x" * 100_000), [Task.call(blocking.sleep, 600), Task.call(hostile.family)]
    kills = 0
    async with open_supervisor(SupervisorOptions(children=1, preload=PRELOAD)) as supervisor:
        with trio.fail_after(20):
            length = await _length(supervisor, echo)
        while kills < KILLS:
            task = draw.choice([echo, *endless])
            delay = draw.uniform(0, length if task is echo else 0.012)
            with trio.fail_after(20):
                outcome, killed, beat = await _run_and_kill(supervisor, task, delay, "supervisor")

            kills += killed
            assert isinstance(outcome, Completed | Failed), seed
            if isinstance(outcome, Failed):
                assert outcome.kind == "supervisor_died", (seed, outcome)
                below = [int(pid) for pid in beat.split(",")] if task.handler is hostile.family and beat else []
                assert [pid for pid in (outcome.pid, *below) if state(pid) not in GONE] == [], seed
            else:
                assert task is echo, seed
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
        for _ in range(KILLS):
            mark = new_mark()
            print(mark, draw.uniform(0.0, 0.25), file=forge.stdin, flush=True)
            assert forge.stdout.readline() == "killed\n", seed
            assert await_none(mark, within=2.0) == [], seed
