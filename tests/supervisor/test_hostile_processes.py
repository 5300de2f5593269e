"""Handlers that multiply, hide below themselves, or turn against the supervisor process: they go all the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking, breeding
from processes import MARK, marked, new_mark, parent, state, wait_for_exit
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

GONE = ("", "Z")


async def _stop_at_first_beat(supervisor: Supervisor, task: Task) -> tuple[Stopped, list[int]]:
    """Stop `task` at its first heartbeat; give the outcome and the pids the heartbeat named."""
    control = AttemptControl()
    pids: list[int] = []

    def on_heartbeat(beat: Heartbeat) -> None:
        pids.extend(int(pid) for pid in re.findall(rb"\d+", beat.payload))
        control.request_stop(StopReason.CANCELLED)

    with trio.fail_after(30):
        outcome = await supervisor.run(task, on_heartbeat=on_heartbeat, control=control)
    assert isinstance(outcome, Stopped), outcome
    assert outcome.proof.evidence == "reaped"
    return outcome, pids


def _call(handler: Callable[..., Any], *args: object, **kwargs: object) -> Task:
    return Task.call(handler, *args, **kwargs)


async def test_more_descendants_than_a_message_can_name_are_all_killed_and_counted(supervisor: Supervisor) -> None:
    with trio.fail_after(60):
        outcome = await supervisor.run(_call(breeding.many, 700))

    assert isinstance(outcome, Completed)
    assert outcome.descendants_count == 700
    assert len(outcome.descendants) == 500
    assert [one.pid for one in outcome.descendants if state(one.pid) not in GONE] == []


@pytest.mark.parametrize("own_session", [False, True])
async def test_a_process_that_is_another_one_all_the_time_is_caught(
    monkeypatch: pytest.MonkeyPatch, own_session: bool
) -> None:
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    options = SupervisorOptions(children=1, standby=0, stop=StopPolicy(notice_grace=0, raise_grace=0))
    async with open_supervisor(options) as supervisor:
        await _stop_at_first_beat(supervisor, _call(breeding.hop, own_session=own_session))

        left = set(marked(mark)) - {supervisor.pid}
        for pid in left:  # an idle child stays what it is; the other is never two looks long the same
            assert not wait_for_exit(pid, within=0.05)
        assert len(left) <= 1


async def test_a_process_without_its_main_thread_is_no_zombie(supervisor: Supervisor) -> None:
    outcome, pids = await _stop_at_first_beat(supervisor, _call(breeding.headless_process))

    assert len(pids) == 1
    assert pids[0] in {one.pid for one in outcome.descendants}
    assert state(pids[0]) == ""


async def test_a_child_without_its_main_thread_is_stopped(supervisor: Supervisor) -> None:
    outcome, pids = await _stop_at_first_beat(supervisor, _call(breeding.lose_own_head))

    assert pids == [outcome.pid]
    assert outcome.proof.signal == signal.SIGKILL
    assert outcome.proof.sent_by_us


async def test_a_daemon_that_left_the_childs_subtree_is_killed_too(supervisor: Supervisor) -> None:
    _, pids = await _stop_at_first_beat(supervisor, _call(breeding.daemonise_past_the_child))

    assert len(pids) == 1
    assert state(pids[0]) == ""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_processes_of_multiprocessing_go_with_a_stop(supervisor: Supervisor, method: str) -> None:
    outcome, pids = await _stop_at_first_beat(
        supervisor, _call(breeding.with_multiprocessing, method, then_return=False)
    )

    assert len(pids) == 2
    assert set(pids) <= {one.pid for one in outcome.descendants}
    assert [state(pid) for pid in pids] == ["", ""]


async def test_processes_of_multiprocessing_left_behind_do_not_delay_the_result(supervisor: Supervisor) -> None:
    """An ordinary exit of Python would join them."""
    with trio.fail_after(10):
        outcome = await supervisor.run(_call(breeding.with_multiprocessing, "fork", then_return=True))

    assert isinstance(outcome, Completed)
    pids = json.loads(outcome.result)
    assert {one.pid for one in outcome.descendants} == set(pids)
    assert [state(pid) for pid in pids] == ["", ""]


async def test_a_long_chain_of_sessions_goes(supervisor: Supervisor) -> None:
    outcome, pids = await _stop_at_first_beat(supervisor, _call(breeding.below_each_other, 30))

    assert len(pids) == 30
    assert set(pids) <= {one.pid for one in outcome.descendants}
    assert [pid for pid in pids if state(pid)] == []


async def test_a_frozen_descendant_goes(supervisor: Supervisor) -> None:
    _, pids = await _stop_at_first_beat(supervisor, _call(breeding.in_a_stopped_group))

    assert [state(pid) for pid in pids] == [""]


async def test_a_traced_child_stands_still_and_is_not_taken_for_dead(supervisor: Supervisor) -> None:
    task = Task(handler=breeding.be_traced, deadlines=Deadlines(attempt=trio.current_time() + 0.3))
    with trio.fail_after(20):
        outcome = await supervisor.run(task)

    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.ATTEMPT_TIMEOUT
    assert (outcome.proof.signal, outcome.proof.sent_by_us) == (signal.SIGKILL, True)
    assert outcome.descendants == ()


async def test_another_program_in_the_childs_place_is_stopped_and_the_signal_is_ours(supervisor: Supervisor) -> None:
    outcome, _ = await _stop_at_first_beat(supervisor, _call(breeding.become_another_program))

    assert outcome.proof.signal is not None
    assert outcome.proof.sent_by_us
    assert state(outcome.pid) == ""


async def test_a_child_that_kills_its_group_has_killed_itself(supervisor: Supervisor) -> None:
    outcome = await supervisor.run(_call(breeding.kill_own_group))

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.signal, outcome.sent_by_us) == ("signalled", signal.SIGKILL, False)


async def _with_neighbour(handler: Callable[..., Any], *args: object) -> tuple[Outcome, Outcome, Outcome]:
    """Run a hostile handler beside a sleeping one; then one more. Give the three outcomes."""
    outcomes: dict[str, Outcome] = {}
    stop = StopPolicy(notice_grace=0.05, raise_grace=0.05)
    async with open_supervisor(SupervisorOptions(children=2, stop=stop)) as supervisor:

        async def neighbour(running: trio.Event) -> None:
            task = Task.call(blocking.sleep, 600)
            outcomes["neighbour"] = await supervisor.run(task, on_heartbeat=lambda _beat: running.set())

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                running = trio.Event()
                nursery.start_soon(neighbour, running)
                await running.wait()
                outcomes["hostile"] = await supervisor.run(_call(handler, *args))
            outcomes["next"] = await supervisor.run(Task.call(blocking.pid))
    return outcomes["hostile"], outcomes["neighbour"], outcomes["next"]


async def test_a_handler_that_kills_the_supervisor_process_takes_the_attempts_along_and_service_goes_on() -> None:
    hostile, neighbour, following = await _with_neighbour(breeding.signal_parent_and_stay, signal.SIGKILL)

    assert isinstance(hostile, Failed)
    assert hostile.kind == "supervisor_died"
    assert isinstance(neighbour, Failed)
    assert neighbour.kind == "supervisor_died"
    assert isinstance(following, Completed)


async def test_a_handler_that_outlives_the_supervisor_process_it_kills_is_killed_by_the_owner() -> None:
    hostile, neighbour, following = await _with_neighbour(breeding.survive_parent)

    assert isinstance(hostile, Failed)
    assert hostile.kind == "supervisor_died"
    assert hostile.duration < 5, "it was waited for instead of being killed"
    assert state(hostile.pid) in GONE
    assert isinstance(neighbour, Failed)
    assert isinstance(following, Completed)


async def test_a_frozen_supervisor_process_is_replaced_and_nobody_waits_for_ever() -> None:
    """Frozen, it would hold no deadline and report no end."""
    hostile, neighbour, following = await _with_neighbour(breeding.signal_parent, signal.SIGSTOP)

    assert isinstance(hostile, Completed), "its result had arrived"
    assert isinstance(neighbour, Failed)
    assert neighbour.kind == "supervisor_died"
    assert state(neighbour.pid) in GONE
    assert isinstance(following, Completed)
    assert parent(following.pid) == 0


async def test_a_frozen_supervisor_process_is_replaced_also_while_nothing_runs() -> None:
    """Nobody waits for ever for the child that it should have forked."""
    async with open_supervisor(SupervisorOptions(children=1, standby=0)) as supervisor:
        frozen = supervisor.pid
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        with trio.fail_after(30):
            assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)

    assert state(frozen) in GONE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_another_users_process_that_cannot_be_killed_keeps_its_slot_and_harms_no_neighbour() -> None:
    """As after ``sudo`` in a handler: nothing is taken for proven, and the supervisor process lives on."""
    program = subprocess.run(
        [sys.executable, "-m", "handlers.helpless_program"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert program.stdout.splitlines() == ["unconfirmed 1", "Completed True", "proven"], program.stderr
    assert program.returncode == 0, program.stderr
