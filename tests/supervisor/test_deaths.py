"""Whoever dies, nothing is left, and what happened has a name."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from handlers import blocking, hostile
from processes import MARK, await_none, marked, new_mark, parent, state, wait_for_exit
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Failed,
    Heartbeat,
    Outcome,
    Stopped,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

GONE = ("", "Z")  # an orphan may wait for its new parent to collect it; it runs no more
TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def _owner(mark: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {MARK: mark, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-m", "handlers.owner_program", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        try:
            yield owner
        finally:
            owner.kill()


def _await_running(owner: subprocess.Popen[str], count: int) -> None:
    assert owner.stdout is not None
    for _ in range(count):
        assert owner.stdout.readline().startswith("running")


def test_a_killed_owner_leaves_nothing() -> None:
    mark = new_mark()
    with _owner(mark) as owner:
        _await_running(owner, 2)
        assert len(marked(mark)) >= 1 + 1 + 2 * 4  # owner, supervisor, and two families of four

        owner.kill()
        assert await_none(mark, within=2.0) == []


def test_a_killed_owner_leaves_nothing_although_a_fork_of_it_lives_on() -> None:
    """The fork holds the other end of the control socket, so the supervisor process sees no end of it."""
    mark = new_mark()
    with _owner(mark, "fork") as owner:
        _await_running(owner, 2)
        (fork,) = [pid for pid in marked(mark) if parent(pid) == owner.pid and _runs_owner_program(pid)]
        try:
            owner.kill()
            others = [pid for pid in marked(mark) if pid not in (fork, owner.pid)]
            assert others
            assert all(wait_for_exit(pid, within=2.0) for pid in others)
            assert state(fork) not in GONE
        finally:
            os.kill(fork, signal.SIGKILL)


def _runs_owner_program(pid: int) -> bool:
    return b"handlers.owner_program" in Path(f"/proc/{pid}/cmdline").read_bytes()


_PRELOADS_FOR_EVER = """
import trio
from proctor_supervisor import SupervisorOptions, open_supervisor

async def main():
    async with open_supervisor(SupervisorOptions(preload=["handlers.imports_for_ever"])):
        print("opened")

trio.run(main)
"""


def test_an_owner_killed_during_an_import_without_end_leaves_nothing(tmp_path: Path) -> None:
    mark = new_mark()
    importing = tmp_path / "importing"
    os.mkfifo(importing)
    environment = os.environ | {MARK: mark, "PYTHONPATH": str(TESTS), "IMPORTING": str(importing)}
    with subprocess.Popen([sys.executable, "-c", _PRELOADS_FOR_EVER], env=environment) as owner:
        try:
            assert importing.read_text() == "importing"
        finally:
            owner.kill()
    assert await_none(mark, within=2.0) == []


def test_an_owner_killed_at_any_instant_leaves_nothing() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(12):
        mark = new_mark()
        with _owner(mark) as owner:
            # Importing takes most of the first 0.3 s; the draw covers start, fork, dispatch and running.
            wait_for_exit(owner.pid, within=draw.uniform(0.1, 0.7))
            owner.kill()
            assert await_none(mark, within=2.0) == [], f"seed {seed}"


def test_a_frozen_owner_cannot_keep_a_child_beyond_its_authority() -> None:
    mark = new_mark()
    with _owner(mark, "1.0") as owner:
        _await_running(owner, 2)
        os.kill(owner.pid, signal.SIGSTOP)
        families = set(marked(mark)) - {owner.pid}
        working = [pid for pid in families if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(working) == 4

        start = time.monotonic()
        assert all(wait_for_exit(pid, within=start + 3.0 - time.monotonic()) for pid in working)
        assert state(owner.pid) == "T"


async def test_a_dead_supervisor_takes_its_children_along_and_service_goes_on() -> None:
    control = AttemptControl()
    outcomes: list[Outcome] = []
    async with open_supervisor(SupervisorOptions(children=2)) as supervisor:
        first = supervisor.pid
        assert first is not None

        def kill(_beat: Heartbeat) -> None:
            os.kill(first, signal.SIGKILL)

        with trio.fail_after(20):
            outcomes.append(await supervisor.run(Task.call(blocking.sleep, 600), on_heartbeat=kill, control=control))
            outcomes.append(await supervisor.run(Task.call(blocking.pid)))

        assert supervisor.pid != first

    died, served = outcomes
    assert isinstance(died, Failed)
    assert died.kind == "supervisor_died"
    assert control.pid is not None
    assert state(control.pid) in GONE
    assert isinstance(served, Completed)


async def test_what_the_children_of_a_dead_supervisor_had_started_is_killed_too() -> None:
    pids: list[int] = []
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        zygote = supervisor.pid
        assert zygote is not None

        def kill(beat: Heartbeat) -> None:
            pids.extend(int(pid) for pid in beat.payload.decode().split(","))
            os.kill(zygote, signal.SIGKILL)

        with trio.fail_after(20):
            outcome = await supervisor.run(Task.call(hostile.family), on_heartbeat=kill)

        assert isinstance(outcome, Failed)
        assert len(pids) == 3
        assert [state(pid) for pid in pids if state(pid) not in GONE] == []


async def test_somebody_elses_wait_in_the_owner_takes_nothing_away() -> None:
    stop = threading.Event()

    def steal() -> None:
        while not stop.is_set():
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, open_supervisor(SupervisorOptions(children=1)) as supervisor:
            nursery.start_soon(trio.to_thread.run_sync, steal)
            outcomes = [await supervisor.run(Task.call(hostile.exit_now, 3)) for _ in range(3)]
            stop.set()
            # On leaving, the thief may have collected the supervisor process itself; that costs nothing either.

    assert [(outcome.kind, outcome.exit_code) for outcome in outcomes if isinstance(outcome, Failed)] == [
        ("exited", 3)
    ] * 3


async def test_a_stop_under_a_dying_supervisor_is_proven_by_the_pidfd() -> None:
    control = AttemptControl()
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        pid = supervisor.pid
        assert pid is not None

        def stop_and_kill(_beat: Heartbeat) -> None:
            os.kill(pid, signal.SIGSTOP)  # so that it cannot obey before it dies
            control.request_stop(StopReason.CANCELLED)
            os.kill(pid, signal.SIGKILL)

        with trio.fail_after(20):
            outcome = await supervisor.run(
                Task.call(hostile.swallow_everything), on_heartbeat=stop_and_kill, control=control
            )

    assert isinstance(outcome, Stopped)
    assert (outcome.proof.evidence, outcome.proof.signal) == ("pidfd", None)
    assert state(outcome.pid) in GONE


@pytest.mark.parametrize("round_number", range(3))
async def test_children_killed_at_any_instant_have_one_outcome_each(round_number: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    async with open_supervisor(SupervisorOptions(children=2)) as supervisor:
        for _ in range(20):
            control = AttemptControl()

            async def kill_later(control: AttemptControl = control) -> None:
                await trio.sleep(draw.uniform(0, 0.006))
                if control.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(control.pid, signal.SIGKILL)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_later)
                outcome = await supervisor.run(Task.call(blocking.echo, "x" * 200_000), control=control)

            assert isinstance(outcome, Completed | Failed), f"seed {seed}"
            if isinstance(outcome, Failed):
                assert (outcome.kind, outcome.signal) == ("signalled", signal.SIGKILL), f"seed {seed}"
            assert supervisor.running == 0, f"seed {seed}"


async def test_callers_cancelled_at_any_instant_leave_no_child_and_no_slot_behind(supervisor: Supervisor) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(40):
        control = AttemptControl()
        with trio.move_on_after(draw.uniform(0, 0.01)):
            await supervisor.run(Task.call(blocking.sleep, draw.uniform(0, 0.01)), control=control)

        assert supervisor.running == 0, f"seed {seed}"
        if control.pid is not None:
            assert state(control.pid) == "", f"seed {seed}"


async def test_an_idle_child_killed_by_a_stranger_is_replaced(supervisor: Supervisor) -> None:
    assert supervisor.pid is not None
    await supervisor.run(Task.call(blocking.pid))
    for pid in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)

    with trio.fail_after(10):
        outcome = await supervisor.run(Task.call(blocking.pid))

    assert isinstance(outcome, Completed), "nothing of the task had run in the dead child"
