"""What the owner itself lacks, or loses, costs attempts at most; the service goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from handlers import blocking
from processes import state
from proctor_supervisor import Completed, Outcome, StartRefused, Supervisor, SupervisorOptions, Task, open_supervisor
from proctor_supervisor.owner import orphans
from proctor_supervisor.platform import linux

TESTS = Path(__file__).resolve().parents[1]


def test_an_owner_without_descriptors_has_typed_failures_and_recovers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "handlers.starved_program"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )

    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert done.returncode == 0
    assert lines[0] == ["Completed"]
    for start in (1, 6):  # twice, so that a loss would add up
        assert lines[start + 3] == ["released"]
        assert lines[start + 4] == ["Completed"]
        starved = {tuple(line) for line in lines[start : start + 3]}
        assert starved <= {("Completed",), ("Failed", "start_failed"), ("Failed", "protocol")}
        assert starved != {("Completed",)}, "nothing was lacking"


async def test_a_killed_supervisor_process_is_replaced_within_a_second() -> None:
    best = 60.0
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        for _ in range(5):  # the quickest of some: other tests compete for the same cores
            with supervisor.events() as stream, trio.fail_after(20):
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGKILL)
                killed = trio.current_time()
                async for event in stream:
                    if event.kind == "restarted":
                        best = min(best, event.at - killed)
                        break
            assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)

    assert best < 1.0


async def test_a_supervisor_process_that_breaks_again_and_again_is_started_less_and_less_often() -> None:
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        with supervisor.events() as stream, trio.fail_after(20):
            began = trio.current_time()
            for _ in range(4):
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGSEGV)
                async for event in stream:
                    if event.kind == "restarted":
                        break
            assert trio.current_time() - began > 0.05 + 0.1 + 0.2 + 0.4
        assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


async def test_where_there_is_no_room_for_another_supervisor_process_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proctor_supervisor.owner.supervisor._PAUSE_MOST", 0.05)
    open_process = trio.lowlevel.open_process
    errors: list[Exception] = [BlockingIOError(11, "no processes left"), RuntimeError("can't start new thread")]

    async def open_or_fail(*args: Any, **kwargs: Any) -> trio.Process:
        if errors:
            raise errors.pop()
        return await open_process(*args, **kwargs)

    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        monkeypatch.setattr(trio.lowlevel, "open_process", open_or_fail)
        assert supervisor.pid is not None
        with supervisor.events() as stream, trio.fail_after(20):
            os.kill(supervisor.pid, signal.SIGKILL)
            async for event in stream:
                if event.kind == "restarted":
                    break
            assert errors == []
            assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


@pytest.mark.parametrize("error", [BlockingIOError(11, "no processes left"), RuntimeError("can't start new thread")])
async def test_no_room_for_the_first_supervisor_process_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_args: Any, **_kwargs: Any) -> trio.Process:
        raise error

    monkeypatch.setattr(trio.lowlevel, "open_process", fail)
    with pytest.raises(StartRefused, match=re.escape(f"{error}. Look at the limits of processes")) as refused:
        async with open_supervisor():
            pytest.fail("it opened")
    assert refused.value.temporary


async def test_an_owner_that_can_start_no_thread_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("can't start new thread")

    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        with trio.fail_after(20), supervisor.events() as stream:
            with monkeypatch.context() as starved:
                starved.setattr(trio.to_thread, "run_sync", fail)
                outcome = await supervisor.run(Task.call(blocking.echo, "x" * 400_000))
                assert isinstance(outcome, Completed)
                assert len(outcome.result) == 400_002
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGKILL)
                await trio.testing.wait_all_tasks_blocked(0.2)
            async for event in stream:
                if event.kind == "restarted":
                    break
            assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


async def test_the_children_of_a_dead_supervisor_process_are_given_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that come while the ends of the old children are being proven wait for the new process."""
    proving, asked = trio.Event(), trio.Event()
    kill_marked = orphans.kill_marked

    async def slow_kill_marked(*args: Any, **kwargs: Any) -> None:
        proving.set()
        await asked.wait()
        await kill_marked(*args, **kwargs)

    outcomes: list[Outcome] = []

    async def attempt(supervisor: Supervisor) -> None:
        outcomes.append(await supervisor.run(Task.call(blocking.pid)))

    monkeypatch.setattr(orphans, "kill_marked", slow_kill_marked)
    async with open_supervisor(SupervisorOptions(children=2, standby=2)) as supervisor:
        try:
            with trio.fail_after(60):
                for _ in range(5):
                    assert supervisor.pid is not None
                    await _await_idle_children(supervisor, 2)
                    await supervisor.run(Task.call(blocking.pid))
                    os.kill(supervisor.pid, signal.SIGKILL)
                    await proving.wait()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(attempt, supervisor)
                        # Until the attempt waits for a child, or for one of the dead.
                        await trio.testing.wait_all_tasks_blocked()
                        asked.set()
                    proving, asked = trio.Event(), trio.Event()
        finally:
            asked.set()  # the end of the supervisor waits for the proof

    assert len(outcomes) == 5
    assert all(isinstance(outcome, Completed) for outcome in outcomes), outcomes


async def test_an_owner_that_collects_orphans_is_left_no_zombie() -> None:
    """The first process of a container, and any subreaper, gets the children of a supervisor process that dies."""
    linux.become_subreaper()
    try:
        async with open_supervisor(SupervisorOptions(children=2, standby=2)) as supervisor:
            for _ in range(3):
                with trio.fail_after(20), supervisor.events() as stream:
                    await supervisor.run(Task.call(blocking.leave_daemon_behind))
                    assert supervisor.pid is not None
                    os.kill(supervisor.pid, signal.SIGKILL)
                    async for event in stream:
                        if event.kind == "restarted":
                            break
            orphaned = [pid for pid in linux.children_of(os.getpid()) if pid != supervisor.pid]
    finally:
        linux.become_subreaper(on=False)

    assert [(pid, state(pid)) for pid in orphaned] == []


async def _await_idle_children(supervisor: Supervisor, wanted: int) -> None:
    """Wait until so many children stand by."""
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    with trio.fail_after(10):
        while len(children.read_text().split()) != wanted:  # noqa: ASYNC110 - the process table raises no event
            await trio.sleep(0.005)


async def test_more_children_stand_by_while_attempts_come_in_crowds_and_fewer_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_supervisor(SupervisorOptions(children=4, standby=1)) as supervisor:
        for _ in range(4):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(supervisor.run, Task.call(blocking.sleep, 0.02))
        await _await_idle_children(supervisor, 4)

        monkeypatch.setattr("proctor_supervisor.owner.pool._CALM_SECONDS", 0.0)
        for _ in range(8):
            await supervisor.run(Task.call(blocking.pid))
        await _await_idle_children(supervisor, 1)
