"""Long polls and the deadline sweep: nobody ticks, nothing is missed, the dead get no task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import trio

from proctor.server.transaction import Consequences, history_bell
from proctor.server.waiting import first_of, sweep
from server.wire import START, Reply, Wire, Worker, instant, retries, running_server


@pytest.fixture
async def swept() -> AsyncIterator[Wire]:
    async with running_server(sweeping=True) as wire:
        yield wire


async def parked(wire: Wire, nursery: trio.Nursery, poll: Callable[[], Awaitable[Reply]], seconds: int) -> list[Reply]:
    """Start a poll and return when it is parked; its answer will be in the list."""
    replies: list[Reply] = []

    async def run() -> None:
        replies.append(await poll())

    nursery.start_soon(run)
    await wire.clock.sleeper(wire.clock.now() + timedelta(seconds=seconds))
    return replies


async def test_a_parked_poll_gets_work_that_arrives(wire: Wire, worker: Worker) -> None:
    async with trio.open_nursery() as nursery:
        replies = await parked(wire, nursery, lambda: worker.try_poll(timeout_seconds=30), 30)
        await wire.start()
    assert replies[0].ok()["task"]["workflow_id"] == "wf"


async def test_a_parked_poll_ends_when_its_time_is_up(wire: Wire, worker: Worker) -> None:
    async with trio.open_nursery() as nursery:
        replies = await parked(wire, nursery, lambda: worker.try_poll(timeout_seconds=7), 7)
        wire.clock.advance(6.999)
        await wire.settle()
        assert replies == []
        wire.clock.advance(0.001)
    assert (replies[0].ok()["task"], replies[0].body["poll_status"]) == (None, "empty")


async def test_one_task_goes_to_one_of_many_parked_polls(wire: Wire) -> None:
    workers = [Worker(wire, f"w{number}") for number in range(5)]
    for worker in workers:
        await worker.register()
    replies: list[Reply] = []
    async with trio.open_nursery() as nursery:
        for number, worker in enumerate(workers):

            async def run(worker: Worker = worker, seconds: int = 30 + number) -> None:
                replies.append(await worker.try_poll(timeout_seconds=seconds))

            nursery.start_soon(run)
            await wire.clock.sleeper(START + timedelta(seconds=30 + number))
        await wire.start()
        await wire.start("second")
        for _ in workers:
            await wire.settle()
        assert len(replies) == 2
        wire.stopping.set()
    tasks = [reply.ok()["task"] for reply in replies]
    assert sorted(task["workflow_id"] for task in tasks if task) == ["second", "wf"]
    assert len(tasks) == 5


async def test_a_client_that_left_takes_no_task(wire: Wire, worker: Worker) -> None:
    left = trio.Event()
    headers = {"X-Durable-Workflow-Protocol-Version": "1.20"}
    body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 30}
    async with trio.open_nursery() as nursery:

        def poll() -> Awaitable[Reply]:
            return wire.request("POST", "/api/worker/workflow-tasks/poll", body, headers=headers, left=left)

        replies = await parked(wire, nursery, poll, 30)
        left.set()
    assert replies[0].status == 499
    await wire.start()
    assert (await worker.poll()).task["workflow_task_attempt"] == 1


async def test_a_client_that_left_gives_its_task_back(wire: Wire, worker: Worker) -> None:
    """The lease is committed before anyone can look at the client again, so it is taken back."""
    await wire.start()
    left = trio.Event()
    left.set()
    await worker.try_poll(left_client=left)
    claim = await worker.poll()
    assert claim.task["workflow_task_attempt"] == 2
    assert claim.task["lease_expires_at"] == instant(10)


async def test_a_poll_of_a_replaced_process_takes_no_task(wire: Wire, worker: Worker) -> None:
    """Its connection may look alive for long; the new process under the same id must get the work."""
    async with trio.open_nursery() as nursery:
        replies = await parked(wire, nursery, lambda: worker.try_poll(timeout_seconds=30), 30)
        await worker.register()
        await wire.start()
    assert (replies[0].ok()["task"], replies[0].body["poll_status"]) == (None, "stale_worker_registration")
    assert (await worker.poll()).task["workflow_task_attempt"] == 1


async def test_a_stopping_server_answers_parked_polls_at_once(wire: Wire, worker: Worker) -> None:
    async with trio.open_nursery() as nursery:
        replies = await parked(wire, nursery, lambda: worker.try_poll(timeout_seconds=30), 30)
        wire.stopping.set()
    assert replies[0].ok()["task"] is None


async def test_a_retry_wakes_a_parked_poll_when_it_is_due(swept: Wire) -> None:
    worker = Worker(swept)
    await worker.register()
    await swept.start()
    attempt = await (await worker.poll()).prepared(retry_policy=retries(2, 5))
    (await attempt.outcome("failed", message="no")).ok()
    async with trio.open_nursery() as nursery:
        replies = await parked(swept, nursery, lambda: worker.try_poll(timeout_seconds=30), 30)
        await swept.clock.sleeper(START + timedelta(seconds=5))
        swept.clock.advance(5)
    assert replies[0].ok()["task"]["resume_source_kind"] == "activity_retry"


async def test_an_ended_lease_wakes_a_parked_poll(swept: Wire) -> None:
    worker = Worker(swept)
    await worker.register()
    await swept.start()
    await worker.poll()
    async with trio.open_nursery() as nursery:
        replies = await parked(swept, nursery, lambda: worker.try_poll(timeout_seconds=30), 30)
        await swept.clock.sleeper(START + timedelta(seconds=10))
        swept.clock.advance(10)
    assert replies[0].ok()["task"]["workflow_task_attempt"] == 2


async def test_a_renewed_lease_moves_the_sweep(swept: Wire) -> None:
    worker = Worker(swept)
    await worker.register()
    await swept.start()
    claim = await worker.poll()
    await swept.clock.sleeper(START + timedelta(seconds=10))
    swept.clock.advance(6)
    (await claim.post("/heartbeat")).ok()
    swept.clock.advance(4)
    await swept.clock.sleeper(START + timedelta(seconds=16))
    (await claim.post("/heartbeat")).ok()


@pytest.mark.parametrize(
    ("timeouts", "kind"),
    [
        ({"run_timeout_seconds": 5}, "run"),
        ({"execution_timeout_seconds": 5}, "execution"),
        ({"execution_timeout_seconds": 5, "run_timeout_seconds": 5}, "execution"),
    ],
)
async def test_a_run_is_timed_out_without_anyone_asking(swept: Wire, timeouts: dict[str, Any], kind: str) -> None:
    run_id = (await swept.start(**timeouts))["run_id"]
    closed = trio.Event()

    def hear(consequences: Consequences) -> None:
        if history_bell(run_id) in consequences.queues:
            closed.set()

    swept.store.listen(hear)
    await swept.clock.sleeper(START + timedelta(seconds=5))
    swept.clock.advance(5)
    await closed.wait()
    event = (await swept.events())[-1]
    assert (event["event_type"], event["payload"]["timeout_kind"]) == ("WorkflowTimedOut", kind)
    description = await swept.describe()
    assert (description["status"], description["closed_reason"]) == ("failed", "timed_out")


async def test_an_earlier_deadline_wakes_the_sweep(swept: Wire) -> None:
    await swept.start("late", run_timeout_seconds=100)
    await swept.clock.sleeper(START + timedelta(seconds=100))
    await swept.start("early", run_timeout_seconds=50)
    await swept.clock.sleeper(START + timedelta(seconds=50))


async def test_the_sweep_says_when_it_is_needed_next(wire: Wire, worker: Worker) -> None:
    assert await wire.store.transact(sweep) is None
    await wire.start(run_timeout_seconds=60)
    assert await wire.store.transact(sweep) == START + timedelta(seconds=60)
    await worker.poll()
    assert await wire.store.transact(sweep) == START + timedelta(seconds=10)
    wire.clock.advance(10)
    assert await wire.store.transact(sweep) == START + timedelta(seconds=60)


async def test_first_of_cancels_the_losers() -> None:
    cancelled = trio.Event()

    async def loser() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    assert await first_of(loser, trio.lowlevel.checkpoint) == 1
    assert cancelled.is_set()
