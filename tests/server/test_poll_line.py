"""Many parked polls and little work: one task calls one of them, a call that comes to nothing goes to the next."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from proctor.server import polling
from proctor.server.operations import workflow_polls
from proctor.server.operations.calls import Call
from proctor.server.rules.refusal import Answer
from proctor.server.transaction import Consequences, Transaction
from proctor.server.waiting import QueueBell
from server.wire import Reply, Wire, Worker, running_server

QUEUE = ("default", "q")


class Looks:
    """Counts how often polls look for work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = workflow_polls.poll

        def counted(tx: Transaction, call: Call) -> Answer:
            self.count += 1
            return real(tx, call)

        monkeypatch.setitem(polling._OPERATIONS, "workflow", counted)


async def held(wire: Wire, nursery: trio.Nursery, workers: list[Worker], seconds: int = 30) -> list[Reply]:
    """Let every worker poll and return when all polls are parked."""
    replies: list[Reply] = []

    async def run(worker: Worker) -> None:
        replies.append(await worker.try_poll(timeout_seconds=seconds))

    for worker in workers:
        nursery.start_soon(run, worker)
        await wire.settle()
    await wire.settle()
    return replies


async def registered(wire: Wire, count: int, **changes: Any) -> list[Worker]:
    workers = [Worker(wire, f"w{changes.get('supported_workflow_types', ['t'])[0]}{number}") for number in range(count)]
    for worker in workers:
        await worker.register(**changes)
    return workers


async def test_one_task_costs_one_look_whoever_waits(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    workers = await registered(wire, 200)
    async with trio.open_nursery() as nursery:
        replies = await held(wire, nursery, workers)
        assert looks.count == 200
        for number in range(1, 6):
            await wire.start(f"wf-{number}")
            while len(replies) < number:
                await wire.settle()
            await wire.settle()
            await wire.settle()
            assert looks.count == 200 + number
        wire.stopping.set()
    # Who waits longest is called first.
    assert [reply.ok()["task"]["lease_owner"] for reply in replies[:5]] == [f"wt{number}" for number in range(5)]


async def test_tasks_that_come_together_are_all_taken(wire: Wire) -> None:
    workers = await registered(wire, 10)
    async with trio.open_nursery() as nursery:
        replies = await held(wire, nursery, workers)
        async with trio.open_nursery() as starting:
            for number in range(8):
                starting.start_soon(wire.start, f"wf-{number}")
        for _ in range(10):
            await wire.settle()
        assert len(replies) == 8
        wire.stopping.set()
    assert len({reply.ok()["task"]["task_id"] for reply in replies[:8]}) == 8


async def test_work_that_the_first_cannot_do_goes_on_to_the_one_who_can(wire: Wire) -> None:
    others = await registered(wire, 20, supported_workflow_types=["other"])
    able = await registered(wire, 1)
    async with trio.open_nursery() as nursery:
        await held(wire, nursery, others)
        replies = await held(wire, nursery, able)
        await wire.start()
        for _ in range(30):
            await wire.settle()
        assert [reply.ok()["task"]["workflow_id"] for reply in replies] == ["wf"]
        wire.stopping.set()


async def test_work_that_nobody_can_do_makes_everybody_look_once(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    others = await registered(wire, 20, supported_workflow_types=["other"])
    async with trio.open_nursery() as nursery:
        await held(wire, nursery, others)
        await wire.start()
        for _ in range(40):
            await wire.settle()
        assert looks.count == 40
        wire.stopping.set()


async def test_a_poll_beyond_capacity_is_refused_exactly(wire: Wire) -> None:
    async with running_server(poll_capacity=2) as small:
        workers = await registered(small, 3)
        async with trio.open_nursery() as nursery:
            await held(small, nursery, workers[:2])
            reply = await workers[2].try_poll(timeout_seconds=30)
            body = reply.refused(429, "long_poll_capacity_exhausted")
            assert (
                body.items()
                >= {
                    "task": None,
                    "poll_status": "long_poll_capacity_exhausted",
                    "task_kind": "workflow_task",
                    "task_queue": "q",
                    "namespace": "default",
                    "wait_pool": "worker",
                    "retryable": True,
                }.items()
            )
            assert 1 <= body["retry_after_seconds"] <= 60
            assert reply.headers["retry-after"] == str(body["retry_after_seconds"])
            # Not held, not refused; nor is a poll of the other pool.
            assert await workers[2].idle()
            await small.start()
            await small.settle()
            assert (await workers[2].try_poll(timeout_seconds=0)).ok()["task"] is None
            small.stopping.set()


class TestLine:
    """The line alone."""

    def test_a_call_that_is_not_followed_goes_to_the_next(self) -> None:
        bell = QueueBell()
        first, second = bell.line(QUEUE), bell.line(QUEUE)
        first.look()
        second.look()
        bell.hear(Consequences(queues={QUEUE}))
        assert (first.is_called, second.is_called) == (True, False)
        first.leave()
        assert second.is_called

    def test_each_ring_calls_one_more(self) -> None:
        bell = QueueBell()
        places = [bell.line(QUEUE) for _ in range(3)]
        for place in places:
            place.look()
        bell.hear(Consequences(queues={QUEUE}))
        bell.hear(Consequences(queues={QUEUE}))
        assert [place.is_called for place in places] == [True, True, False]

    def test_who_has_looked_since_the_ring_is_not_called_again(self) -> None:
        bell = QueueBell()
        first, second = bell.line(QUEUE), bell.line(QUEUE)
        first.look()
        second.look()
        bell.hear(Consequences(queues={QUEUE}))
        first.look()
        first.pass_on()
        assert second.is_called
        second.look()
        second.pass_on()
        assert not first.is_called
        assert not second.is_called

    def test_a_ring_during_a_look_is_not_missed(self) -> None:
        bell = QueueBell()
        only = bell.line(QUEUE)
        only.look()
        bell.hear(Consequences(queues={QUEUE}))
        assert only.is_called

    def test_a_queue_nobody_waits_for_takes_no_memory(self) -> None:
        bell = QueueBell()
        for number in range(100):
            place = bell.line(("default", str(number)))
            place.look()
            place.leave()
        bell.hear(Consequences(queues={QUEUE}))
        assert bell._lines == {}


@pytest.mark.parametrize("request_id", ["same", None])
async def test_a_repeated_poll_takes_the_place_of_the_one_it_repeats(wire: Wire, request_id: str | None) -> None:
    """Its client waits for the second answer only; the first connection may be dead without our knowing."""
    (worker,) = await registered(wire, 1)
    tasks: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:

        async def poll(name: str) -> None:
            body = {
                "worker_id": worker.worker_id,
                "task_queue": "q",
                "poll_request_id": request_id,
                "timeout_seconds": 30,
            }
            tasks[name] = (await wire.worker("/workflow-tasks/poll", body)).ok()["task"]

        for name in ("first", "second", "third"):
            nursery.start_soon(poll, name)
            await wire.parked()
        repeats = request_id is not None
        assert tasks == ({"first": None, "second": None} if repeats else {})
        await wire.start()
        await wire.parked()
        assert tasks["third" if repeats else "first"]["workflow_id"] == "wf"
        wire.stopping.set()
