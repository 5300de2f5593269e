"""A stop is physical, whatever the handler does, and its proof says what happened."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking, coroutines, hostile
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


def _stopped(outcome: Outcome, reason: StopReason) -> Stopped:
    assert isinstance(outcome, Stopped), outcome
    assert outcome.reason is reason
    proof = outcome.proof
    assert proof.pid == outcome.pid
    assert proof.evidence == "reaped"
    assert proof.started_at > 0
    assert not Path(f"/proc/{proof.pid}").exists()
    return outcome


def _steps(stopped: Stopped) -> list[str]:
    return [str(taken.step) for taken in stopped.proof.steps]


async def _stop_when_running(
    supervisor: Supervisor, task: Task, reason: StopReason = StopReason.CANCELLED
) -> tuple[Outcome, list[int]]:
    """Run `task`, stop it at its first heartbeat or line of output; give the outcome and the pids a heartbeat named."""
    control = AttemptControl()
    pids: list[int] = []

    def on_heartbeat(beat: Heartbeat) -> None:
        pids.extend(int(pid) for pid in re.findall(rb"\d+", beat.payload))
        control.request_stop(reason, "a test")

    with trio.fail_after(20):
        outcome = await supervisor.run(
            task,
            on_heartbeat=on_heartbeat,
            on_output=lambda _line: control.request_stop(reason, "a test"),
            control=control,
        )
    return outcome, pids


async def test_a_handler_that_obeys_the_notice_is_not_forced(supervisor: Supervisor, tmp_path: Path) -> None:
    task = Task(
        handler=blocking.beat_and_wait, payload=f'[["{tmp_path}/note"],{{}}]'.encode(), stop=StopPolicy(notice_grace=10)
    )
    outcome, _ = await _stop_when_running(supervisor, task)

    stopped = _stopped(outcome, StopReason.CANCELLED)
    assert _steps(stopped) == ["notice"]
    assert (stopped.proof.exit_code, stopped.proof.signal, stopped.proof.sent_by_us) == (0, None, False)
    assert (tmp_path / "note").read_text() == "noticed cancelled"


@pytest.mark.parametrize("handler", [blocking.sleep_with_cleanup, coroutines.sleep_async])
async def test_finally_blocks_run_when_the_exception_is_raised(
    supervisor: Supervisor, tmp_path: Path, handler: Callable[..., Any]
) -> None:
    task = Task(
        handler=handler, payload=f'[["{tmp_path}/note"],{{}}]'.encode(), stop=StopPolicy(notice_grace=0, raise_grace=10)
    )
    outcome, _ = await _stop_when_running(supervisor, task)

    stopped = _stopped(outcome, StopReason.CANCELLED)
    assert _steps(stopped) == ["raise"]
    assert (tmp_path / "note").read_text() == "cleaned up"
    assert stopped.proof.detail == "a test"


async def test_a_handler_that_swallows_everything_is_killed(supervisor: Supervisor) -> None:
    outcome, _ = await _stop_when_running(supervisor, Task.call(hostile.swallow_everything))

    stopped = _stopped(outcome, StopReason.CANCELLED)
    assert _steps(stopped) == ["notice", "raise", "kill"]
    assert (stopped.proof.signal, stopped.proof.sent_by_us) == (signal.SIGKILL, True)


async def test_the_last_stack_shows_where_a_c_call_holds_the_lock(supervisor: Supervisor) -> None:
    # The handler announces itself just before the call; the grace of the notice is the time it needs to enter it.
    task = Task(handler=hostile.backtrack, stop=StopPolicy(notice_grace=0.5, raise_grace=0, stack_budget=5))
    outcome, _ = await _stop_when_running(supervisor, task)

    stopped = _stopped(outcome, StopReason.CANCELLED)
    assert _steps(stopped) == ["notice", "kill"]
    assert "re/__init__.py" in stopped.proof.last_stack_line
    assert "in backtrack" in stopped.proof.last_stack
    assert stopped.proof.stop_seconds < 4, "the dump was waited for instead of being recognised as complete"


async def test_a_stack_that_has_arrived_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor_supervisor.owner.link._PING_SECONDS", 600)  # nothing else wakes the other side up
    stop = StopPolicy(notice_grace=0.01, raise_grace=0.01, stack_budget=60)
    async with open_supervisor(SupervisorOptions(children=1, stop=stop, preload=["handlers.hostile"])) as supervisor:
        outcome, _ = await _stop_when_running(supervisor, Task.call(hostile.swallow_everything))

    stopped = _stopped(outcome, StopReason.CANCELLED)
    assert _steps(stopped) == ["notice", "raise", "kill"]
    assert "in swallow_everything" in stopped.proof.last_stack


async def test_the_whole_family_goes(supervisor: Supervisor) -> None:
    outcome, pids = await _stop_when_running(supervisor, Task.call(hostile.family))

    stopped = _stopped(outcome, StopReason.CANCELLED)
    assert len(pids) == 3
    assert set(pids) <= {one.pid for one in stopped.proof.descendants}
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_a_frozen_child_is_killed_all_the_same(supervisor: Supervisor) -> None:
    outcome, _ = await _stop_when_running(supervisor, Task.call(hostile.freeze))

    assert _steps(_stopped(outcome, StopReason.CANCELLED))[-1] == "kill"


async def test_a_result_after_the_notice_wins_over_a_cancellation(supervisor: Supervisor) -> None:
    task = Task(handler=blocking.answer_notice_with_result, stop=StopPolicy(notice_grace=10))
    outcome, _ = await _stop_when_running(supervisor, task)

    assert isinstance(outcome, Completed)


@pytest.mark.parametrize(
    ("deadlines", "reason"),
    [
        ({"attempt": 0.2}, StopReason.ATTEMPT_TIMEOUT),
        ({"total": 0.2}, StopReason.TOTAL_TIMEOUT),
        ({"authority": 0.2}, StopReason.AUTHORITY_LOST),
    ],
)
async def test_the_supervisor_holds_each_deadline(
    supervisor: Supervisor, deadlines: dict[str, float], reason: StopReason
) -> None:
    now = trio.current_time()
    task = Task(
        handler=blocking.sleep,
        payload=b"[[600],{}]",
        deadlines=Deadlines(**{name: now + seconds for name, seconds in deadlines.items()}),
    )
    with trio.fail_after(20):
        stopped = _stopped(await supervisor.run(task), reason)

    first_step = stopped.proof.steps[0].at - time.monotonic() + trio.current_time()
    assert first_step >= now + 0.2
    assert (_steps(stopped) == ["kill"]) == (reason is StopReason.AUTHORITY_LOST)


async def test_a_result_after_its_deadline_is_dropped(supervisor: Supervisor) -> None:
    task = Task(
        handler=blocking.answer_notice_with_result,
        deadlines=Deadlines(attempt=trio.current_time() + 0.2),
        stop=StopPolicy(notice_grace=10),
    )
    stopped = _stopped(await supervisor.run(task), StopReason.ATTEMPT_TIMEOUT)

    assert _steps(stopped) == ["notice"]


async def test_a_result_next_to_its_deadline_is_one_outcome_and_gives_one_slot_back(supervisor: Supervisor) -> None:
    came_to = set()
    for step in range(16):
        end = trio.current_time() + 0.044 + step * 0.001
        task = Task(handler=blocking.sleep, payload=b"[[0.05],{}]", deadlines=Deadlines(attempt=end))
        outcome = await supervisor.run(task)

        assert supervisor.running == 0
        if isinstance(outcome, Stopped):
            assert outcome.reason is StopReason.ATTEMPT_TIMEOUT
        came_to.add(type(outcome))

    assert came_to <= {Completed, Stopped}


async def test_silence_is_a_timeout_and_beats_are_not(supervisor: Supervisor) -> None:
    silent = Task(handler=blocking.sleep, payload=b"[[600],{}]", deadlines=Deadlines(heartbeat_timeout=0.2))
    _stopped(await supervisor.run(silent), StopReason.HEARTBEAT_TIMEOUT)

    lively = Task(handler=blocking.beat_for, payload=b"[[0.6,0.02],{}]", deadlines=Deadlines(heartbeat_timeout=0.3))
    assert isinstance(await supervisor.run(lively), Completed)


async def test_extended_authority_lets_the_attempt_live(supervisor: Supervisor) -> None:
    control = AttemptControl()
    start = trio.current_time()

    async def extend() -> None:
        for turn in range(1, 8):
            await trio.sleep_until(start + turn * 0.1)
            control.extend_authority(trio.current_time() + 0.5)

    task = Task(handler=blocking.sleep, payload=b"[[0.7],{}]", deadlines=Deadlines(authority=start + 0.5))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(extend)
        outcome = await supervisor.run(task, control=control)

    assert isinstance(outcome, Completed)


async def test_authority_that_ends_during_a_stop_leaves_no_grace(supervisor: Supervisor) -> None:
    now = trio.current_time()
    task = Task(
        handler=hostile.swallow_everything,
        deadlines=Deadlines(attempt=now + 0.1, authority=now + 0.3),
        stop=StopPolicy(notice_grace=60),
    )
    with trio.fail_after(20):
        stopped = _stopped(await supervisor.run(task), StopReason.ATTEMPT_TIMEOUT)

    assert _steps(stopped) == ["notice", "kill"]


async def test_a_deadline_that_has_passed_already_stops_before_the_handler_begins(supervisor: Supervisor) -> None:
    task = Task(handler=blocking.sleep, payload=b"[[600],{}]", deadlines=Deadlines(attempt=trio.current_time() - 1))

    stopped = _stopped(await supervisor.run(task), StopReason.ATTEMPT_TIMEOUT)

    assert stopped.heartbeats == 0


async def test_a_stop_asked_for_before_the_start_is_kept(supervisor: Supervisor) -> None:
    control = AttemptControl()
    control.request_stop(StopReason.SHUTDOWN)

    stopped = _stopped(await supervisor.run(Task.call(blocking.sleep, 600), control=control), StopReason.SHUTDOWN)

    assert stopped.heartbeats == 0


async def test_cancelling_the_caller_stops_the_child_first(supervisor: Supervisor) -> None:
    control = AttemptControl()
    with trio.fail_after(20):
        with trio.CancelScope() as scope:
            await supervisor.run(
                Task.call(hostile.swallow_everything), on_heartbeat=lambda _beat: scope.cancel(), control=control
            )

    assert scope.cancelled_caught
    assert control.pid is not None
    assert not Path(f"/proc/{control.pid}").exists()
    assert supervisor.running == 0


async def test_cancelling_while_waiting_for_a_slot_takes_nothing(supervisor: Supervisor) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(supervisor.run, Task.call(blocking.sleep, 600))
        while supervisor.running < 2:
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await supervisor.run(Task.call(blocking.pid))
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_leaving_the_supervisor_stops_what_still_runs() -> None:
    outcomes: list[Outcome] = []

    async def run(supervisor: Supervisor, running: trio.Event) -> None:
        outcomes.append(await supervisor.run(Task.call(hostile.family), on_heartbeat=lambda _beat: running.set()))

    async with trio.open_nursery() as nursery:
        options = SupervisorOptions(children=1, stop=StopPolicy(notice_grace=0.05, raise_grace=0.05))
        async with open_supervisor(options) as supervisor:
            running = trio.Event()
            nursery.start_soon(run, supervisor, running)
            await running.wait()

    stopped = _stopped(outcomes[0], StopReason.SHUTDOWN)
    assert len(stopped.proof.descendants) >= 3


async def test_leaving_the_supervisor_gives_each_attempt_its_own_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor_supervisor.owner.supervisor._PROOF_MARGIN", 0.1)
    hasty = StopPolicy(notice_grace=0, raise_grace=0, stack_budget=0, kill_budget=0.1)
    outcomes: list[Outcome] = []

    async def run(supervisor: Supervisor, running: trio.Event) -> None:
        task = Task(handler=blocking.answer_notice_late, payload=b"[[0.5],{}]", stop=StopPolicy(notice_grace=60))
        outcomes.append(await supervisor.run(task, on_heartbeat=lambda _beat: running.set()))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, open_supervisor(SupervisorOptions(stop=hasty)) as supervisor:
            running = trio.Event()
            nursery.start_soon(run, supervisor, running)
            await running.wait()

    assert isinstance(outcomes[0], Completed), outcomes[0]
    assert outcomes[0].result == b'"finished late"'


async def test_a_foreign_kill_is_not_ours(supervisor: Supervisor) -> None:
    control = AttemptControl()

    def kill(_beat: Heartbeat) -> None:
        assert control.pid is not None
        os.kill(control.pid, signal.SIGKILL)

    outcome = await supervisor.run(Task.call(blocking.sleep, 600), on_heartbeat=kill, control=control)

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.signal) == ("signalled", signal.SIGKILL)


@pytest.mark.parametrize(
    ("handler", "arguments", "kind", "code", "number"),
    [
        (hostile.exit_now, (3,), "exited", 3, None),
        (hostile.exit_now, (0,), "exited", 0, None),
        (hostile.segfault, (), "signalled", None, signal.SIGSEGV),
    ],
)
async def test_each_death_has_its_own_outcome(
    supervisor: Supervisor,
    handler: Callable[..., Any],
    arguments: tuple[Any, ...],
    kind: str,
    code: int | None,
    number: int | None,
) -> None:
    outcome = await supervisor.run(Task.call(handler, *arguments))

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.exit_code, outcome.signal) == (kind, code, number)


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, "1"])
def test_a_policy_takes_finite_seconds_only(value: Any) -> None:
    with pytest.raises(ValueError, match="notice_grace must be a finite number of seconds"):
        StopPolicy(notice_grace=value)
