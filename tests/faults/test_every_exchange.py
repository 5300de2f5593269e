"""Real processes over real sockets: each operation that a worker uses, with each thing that can happen to an exchange.

The same on a mocked clock, with delays past every lease and each field malformed: running/test_every_operation.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from faults.rig import STOPS, Rig, rig
from proctor.harness import Cut, Delay, DropRequest, DropResponse, Duplicate, Fault, Refuse, Rewrite
from proctor_supervisor import SupervisorOptions

FAULTS: tuple[Callable[[], Fault], ...] = (
    DropRequest,
    DropResponse,
    Duplicate,
    lambda: Cut("request"),
    lambda: Cut("answer"),
    lambda: Delay(0.05, "request"),
    lambda: Delay(0.05, "answer"),
)
LOCAL = ("poll_workflow_task", "workflow_task_history", "checkpoint", "prepare", "control", "heartbeat", "outcome",
         "complete_workflow_task")  # fmt: skip
GROUP = ("checkpoint", "checkpoint_group", "prepare", "control", "outcome", "complete_workflow_task")
ORDINARY = ("poll_workflow_task", "heartbeat_workflow_task", "complete_workflow_task")
QUEUED = ("poll_activity_task", "heartbeat_activity_task", "complete_activity_task", "complete_workflow_task")


async def spoil(here: Rig, kind: str, operations: tuple[str, ...], *faults: Callable[[], Fault]) -> None:
    """Do each fault to all the operations of a run, until each has been spoilt by it."""
    for make in faults:
        fault = make()
        rules = [here.proxy.add(fault, operation) for operation in operations]
        try:
            with trio.fail_after(20):
                await here.spoilt_runs(kind, rules)
        except BaseException as exc:
            exc.add_note(f"with {fault}; the last exchanges:")
            for exchange in here.proxy.exchanges[-30:]:
                exc.add_note(str(exchange))
            raise


async def test_prepared_local_activities() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker()
        await spoil(here, "local", LOCAL, *FAULTS)


async def test_lists_of_prepared_local_activities() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker(supervisor=SupervisorOptions(children=2, stop=STOPS, preload=["faults.work"]))
        await spoil(here, "group", GROUP, *FAULTS)


async def test_the_ordinary_profile() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker(profile="ordinary")
        await spoil(here, "local", ORDINARY, *FAULTS)


async def test_queued_activities() -> None:
    async with rig(workflow_task_lease_seconds=2.0) as here:
        await here.start_worker(queued_activities=1)
        await spoil(here, "queued", QUEUED, *FAULTS)


async def test_the_life_of_a_registration() -> None:
    async with rig() as here:
        for fault in (DropRequest(), DropResponse(), Duplicate(), Cut("answer")):
            operations = ("cluster_info", "register_worker", "deregister_worker")
            rules = [here.proxy.add(fault, operation) for operation in operations]
            seen = len(here.told)
            worker = await here.start_worker()
            worker.drain()
            await here.event("deregistered", after=seen)
            assert [rule.used_up for rule in rules] == [True] * 3, str(fault)


async def test_an_operation_that_is_refused_for_now_is_made_again() -> None:
    refusals = (lambda: Refuse("backend_unavailable"), lambda: Refuse("storage_pressure"))
    async with rig(workflow_task_lease_seconds=6.0) as here:
        await here.start_worker()
        await spoil(here, "local", ("prepare", "outcome"), *refusals)
        assert all(event["outcome"] == "completed" for event in here.told if event["event"] == "attempt_ended")


async def test_an_answer_that_says_nothing_readable_costs_at_most_another_attempt() -> None:
    def garbled(body: Any) -> Any:
        return {name: {"malformed": [True]} for name in body}

    async with rig(workflow_task_lease_seconds=1.0) as here:
        await here.start_worker()
        for operation in ("checkpoint", "prepare", "control", "outcome"):
            await spoil(here, "local", (operation,), lambda: Rewrite(garbled))
