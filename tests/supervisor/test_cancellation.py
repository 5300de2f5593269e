"""Whatever is cancelled, and at whichever await: the child is gone first, and the slot is given back once."""

from __future__ import annotations

import os

import trio

from handlers import beating, blocking, hostile
from processes import state
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Outcome,
    Stopped,
    StopPolicy,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

LONG = 60.0  # far beyond what any of these stops takes
QUICK = StopPolicy(notice_grace=0.05, raise_grace=0.05)
PRELOAD = ["handlers.blocking", "handlers.hostile"]


async def test_cancelling_all_round_an_open_supervisor_still_proves_each_stop() -> None:
    """The supervisor goes on serving inside a cancelled scope until its last child is gone."""
    control = AttemptControl()
    with trio.fail_after(5), trio.CancelScope() as around:
        options = SupervisorOptions(children=1, stop=QUICK, preload=PRELOAD)
        async with open_supervisor(options) as supervisor, trio.open_nursery() as nursery:

            async def run() -> None:
                task = Task.call(hostile.swallow_everything)
                await supervisor.run(task, control=control, on_heartbeat=lambda _beat: around.cancel())

            nursery.start_soon(run)

    assert around.cancelled_caught
    assert supervisor.running == 0
    assert control.pid is not None
    assert state(control.pid) == ""


async def test_a_caller_outside_the_cancelled_scope_gets_a_stop_with_its_graces() -> None:
    outcomes: list[Outcome] = []
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as around:
                async with open_supervisor(SupervisorOptions(children=1, stop=QUICK, preload=PRELOAD)) as supervisor:

                    async def run(supervisor: Supervisor = supervisor) -> None:
                        task = Task.call(hostile.swallow_everything)
                        outcomes.append(await supervisor.run(task, on_heartbeat=lambda _beat: around.cancel()))

                    nursery.start_soon(run)
                    await trio.sleep_forever()

    (outcome,) = outcomes
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.SHUTDOWN
    assert [str(taken.step) for taken in outcome.proof.steps] == ["notice", "raise", "kill"]
    assert outcome.proof.evidence == "reaped"


class _CancelAtStep(trio.abc.Instrument):
    """Cancels `scope` just before the task that is named `name` takes its step number `step`."""

    def __init__(self, name: str, step: int, scope: trio.CancelScope) -> None:
        self._name = name
        self._left = step
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name == self._name:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def test_a_caller_cancelled_at_each_of_its_awaits_leaves_no_child_and_no_slot(supervisor: Supervisor) -> None:
    """Also where it waits for a slot, for a child, or while a large task is put into shared memory."""
    for payload in (10, 400_000):
        for step in range(1, 12):
            control = AttemptControl()
            with trio.fail_after(LONG), trio.CancelScope() as scope:
                instrument = _CancelAtStep("the caller", step, scope)

                async def call(control: AttemptControl = control, payload: int = payload) -> None:
                    task = Task.call(blocking.echo, "x" * payload)
                    assert isinstance(await supervisor.run(task, control=control), Completed)

                trio.lowlevel.add_instrument(instrument)
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(call, name="the caller")
                finally:
                    trio.lowlevel.remove_instrument(instrument)

            assert supervisor.running == 0, (payload, step)
            if control.pid is not None:
                assert state(control.pid) == "", (payload, step)
    assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


async def test_supervisors_opened_closed_and_cancelled_side_by_side_do_not_disturb_each_other() -> None:
    completed = 0

    async def own(number: int) -> None:
        nonlocal completed
        with trio.CancelScope() as scope:
            async with open_supervisor(SupervisorOptions(children=2, stop=QUICK)) as mine:
                for turn in range(3):
                    if number % 2 and turn == number // 2:
                        scope.cancel()
                    assert isinstance(await mine.run(Task.call(blocking.pid)), Completed)
                    completed += 1
            assert mine.running == 0

    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(own, number)

    assert completed == 3 * 3 + 0 + 1 + 2


async def test_an_opening_supervisor_cancelled_at_each_of_its_awaits_leaves_nothing_behind() -> None:
    for step in range(1, 10):  # what is left behind fails this test when it ends
        with trio.fail_after(LONG), trio.CancelScope() as scope:
            instrument = _CancelAtStep("the opener", step, scope)

            async def opening() -> None:
                async with open_supervisor(SupervisorOptions(children=1)):
                    await trio.lowlevel.checkpoint()

            trio.lowlevel.add_instrument(instrument)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(opening, name="the opener")
            finally:
                trio.lowlevel.remove_instrument(instrument)


async def test_a_cancellation_between_a_large_result_and_its_reading_leaves_no_descriptor(
    supervisor: Supervisor,
) -> None:
    await supervisor.run(Task.call(blocking.blob, 400_000))  # whatever is opened once is open now
    before = _shared_memory()
    for _ in range(3):
        with trio.fail_after(10), trio.CancelScope() as scope:
            task = Task.call(beating.beat_beside_a_large_result)
            await supervisor.run(task, on_heartbeat=lambda _beat, scope=scope: scope.cancel())  # type: ignore[misc]
        assert scope.cancelled_caught

    assert _shared_memory() == before


def _shared_memory() -> int:
    links = []
    for name in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{name}"):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum("memfd" in link for link in links)
