"""Queries end to end on the wire: routing, leases, the one budget, every refusal, and the asker's answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from proctor.server.rules.book import Settings
from server.wire import EMPTY_LIST, ENVELOPE, WITH_POLICIES, Reply, Wire, Worker, instant, running_server

QUERIES = (*WITH_POLICIES, "query_tasks")
EMPTY = {"codec": "avro", "blob": EMPTY_LIST}


@dataclass
class Question:
    """A query that somebody waits for in another task."""

    answered: trio.Event = field(default_factory=trio.Event)
    replies: list[Reply] = field(default_factory=list)
    left: trio.Event = field(default_factory=trio.Event)

    async def reply(self) -> Reply:
        with trio.fail_after(5):
            await self.answered.wait()
        return self.replies[0]


@dataclass
class Leased:
    """A query task and what its holder may say."""

    worker: Worker
    task: dict[str, Any]

    @property
    def path(self) -> str:
        return f"/query-tasks/{self.task['query_task_id']}"

    @property
    def identity(self) -> dict[str, Any]:
        return {name: self.task[name] for name in ("lease_owner", "query_task_attempt")}

    async def complete(self, **changes: Any) -> Reply:
        body = {**self.identity, "result": 7, "result_envelope": ENVELOPE, **changes}
        return await self.worker.wire.worker(f"{self.path}/complete", body)

    async def fail(self, **failure: Any) -> Reply:
        body = {**self.identity, "failure": {"message": "no", **failure}}
        return await self.worker.wire.worker(f"{self.path}/fail", body)

    async def status(self, *, version: str = "1.20", **changes: Any) -> Reply:
        asked = {**self.identity, **changes}
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        return await self.worker.wire.worker(f"{self.path}/status?{query}", method="GET", version=version)


async def try_poll(worker: Worker, *, request_id: str = "query-poll-1", **changes: Any) -> Reply:
    body = {"worker_id": worker.worker_id, "task_queue": "q", "poll_request_id": request_id, "timeout_seconds": 0}
    return await worker.wire.worker("/query-tasks/poll", body | changes, version=worker.version)


async def poll(worker: Worker, **changes: Any) -> Leased:
    task = (await try_poll(worker, **changes)).ok()["task"]
    assert task is not None
    return Leased(worker, task)


@asynccontextmanager
async def asked(wire: Wire, name: str = "total", workflow_id: str = "wf", **body: Any) -> AsyncIterator[Question]:
    """Ask in another task; the block begins when the question waits for its answer, or has one."""
    question = Question()

    async def ask() -> None:
        path = f"/workflows/{workflow_id}/query/{name}"
        try:
            question.replies.append(await wire.control("POST", path, body, left=question.left))
        except IndexError:
            assert question.left.is_set()  # a client that left gets no answer
        question.answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wire.parked()
        yield question


@pytest.fixture
async def answering(wire: Wire) -> Worker:
    """Give a worker that takes query tasks."""
    worker = Worker(wire, capabilities=QUERIES)
    await worker.register()
    return worker


async def test_a_query_travels_to_a_worker_and_its_answer_back(wire: Wire, answering: Worker) -> None:
    started = await wire.start(input=EMPTY)
    async with asked(wire, input=ENVELOPE) as question:
        leased = await poll(answering)
        events = leased.task.pop("history_events")
        assert [event["event_type"] for event in events] == ["StartAccepted", "WorkflowStarted"]
        assert set(events[0]) >= {"id", "sequence", "payload", "recorded_at"}
        assert leased.task == {
            "query_task_id": leased.task["query_task_id"],
            "query_task_attempt": 1,
            "workflow_id": "wf",
            "run_id": started["run_id"],
            "workflow_type": "t",
            "query_name": "total",
            "payload_codec": "avro",
            "workflow_arguments": EMPTY,
            "query_arguments": ENVELOPE,
            "run_status": "pending",
            "last_history_sequence": 2,
            "compatibility": None,
            "task_queue": "q",
            "lease_owner": "w",
            "lease_expires_at": instant(30),
            "query_admitted_at": instant(0),
            "query_deadline_at": instant(30),
            "server_time": instant(0),
        }
        done = (await leased.complete()).ok()
        assert done["outcome"] == "completed"
        assert done["reason"] is None
        assert (done["query_task_id"], done["query_task_attempt"]) == (leased.task["query_task_id"], 1)
        body = (await question.reply()).ok()
    assert (body["workflow_id"], body["run_id"], body["query_name"]) == ("wf", started["run_id"], "total")
    assert (body["result"], body["result_envelope"], body["reason"]) == (7, ENVELOPE, None)
    assert body["control_plane"]["operation"] == "query"
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


async def test_a_query_without_arguments_reaches_the_worker_with_an_empty_list(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire):
        leased = await poll(answering)
        assert leased.task["query_arguments"] == EMPTY
        await leased.complete()


async def test_a_parked_poll_gets_the_query_that_arrives(wire: Wire, answering: Worker) -> None:
    await wire.start()
    replies: list[Reply] = []

    async def park() -> None:
        replies.append(await try_poll(answering, timeout_seconds=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(park)
        await wire.settle()
        async with asked(wire) as question:
            await wire.settle()  # the poll has been woken and looks again
            leased = Leased(answering, replies[0].ok()["task"])
            await leased.complete()
            (await question.reply()).ok()


async def test_completed_runs_answer_and_those_that_ended_otherwise_refuse(wire: Wire, answering: Worker) -> None:
    await wire.start()
    await (await answering.poll()).complete()
    async with asked(wire) as question:
        leased = await poll(answering)
        assert leased.task["run_status"] == "completed"
        assert leased.task["history_events"][-1]["event_type"] == "WorkflowCompleted"
        await leased.complete()
        (await question.reply()).ok()
    assert (await wire.describe())["actions"]["can_query"] is True
    await wire.start("gone")
    (await wire.control("POST", "/workflows/gone/terminate", {})).ok()
    refused = (await wire.control("POST", "/workflows/gone/query/total", {})).refused(409, "run_not_active")
    assert refused["run_status"] == "terminated"
    assert (await wire.describe("gone"))["actions"]["can_query"] is False


@pytest.mark.parametrize(
    ("reason", "status", "seen"),
    [
        (None, 409, "query_rejected"),
        ("query_workflow_state_unavailable", 409, "query_workflow_state_unavailable"),
        ("rejected_unknown_query", 404, "rejected_unknown_query"),
        ("invalid_query_arguments", 422, "invalid_query_arguments"),
    ],
)
async def test_the_reason_of_a_worker_decides_the_status_of_the_asker(
    wire: Wire, answering: Worker, reason: str | None, status: int, seen: str
) -> None:
    await wire.start()
    async with asked(wire) as question:
        leased = await poll(answering)
        failure = {} if reason is None else {"reason": reason}
        told = (await leased.fail(message="it cannot be told", type="ValueError", stack_trace="…", **failure)).ok()
        assert told["outcome"] == "failed"
        body = (await question.reply()).refused(status, seen)
    assert body["message"] == "it cannot be told"
    assert (body["query_name"], body["result"]) == ("total", None)


async def test_who_can_be_asked_is_known_before_anything_is_admitted(wire: Wire) -> None:
    (await wire.control("POST", "/workflows/wf/query/total", {})).refused(404, "instance_not_found")
    await wire.start()
    (await wire.control("POST", "/workflows/wf/query/total", {})).refused(409, "query_worker_unavailable")
    await Worker(wire, "deaf").register()
    (await wire.control("POST", "/workflows/wf/query/total", {})).refused(409, "query_worker_unavailable")
    await Worker(wire, "other", capabilities=QUERIES).register(supported_workflow_types=["u"])
    (await wire.control("POST", "/workflows/wf/query/total", {})).refused(409, "query_worker_incompatible")
    able = Worker(wire, "able", capabilities=QUERIES)
    await able.register(workflow_command_contracts={"t": {"queries": ["total"]}})
    (await wire.control("POST", "/workflows/wf/query/other", {})).refused(404, "rejected_unknown_query")
    (await wire.control("POST", "/workflows/wf/query/total", {"input": {"codec": "json"}})).refused(
        422, "validation_failed"
    )
    wire.clock.advance(301)  # every worker is stale by now
    (await wire.control("POST", "/workflows/wf/query/total", {})).refused(409, "query_worker_unavailable")


async def test_a_query_that_nobody_takes_ends_with_its_budget(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire) as question:
        wire.clock.advance(29.999)
        await wire.settle()
        assert not question.replies
        wire.clock.advance(0.001)
        (await question.reply()).refused(504, "query_task_not_claimed")
    assert (await try_poll(answering)).ok()["task"] is None


async def test_a_query_that_its_worker_does_not_answer_ends_with_the_same_budget(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire) as question:
        wire.clock.advance(20)
        leased = await poll(answering)
        assert leased.task["lease_expires_at"] == leased.task["query_deadline_at"] == instant(30)
        assert leased.task["server_time"] == instant(20)
        wire.clock.advance(10)
        (await leased.complete()).refused(409, "query_task_timed_out")
        body = (await question.reply()).refused(504, "query_worker_execution_timeout")
        assert "worker w" in body["message"]
    (await leased.complete()).refused(409, "query_task_timed_out")
    (await leased.status()).refused(409, "query_task_timed_out")


async def test_the_claim_is_checked_in_order(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire):
        leased = await poll(answering)
        nowhere = Leased(answering, {**leased.task, "query_task_id": "nothing"})
        (await nowhere.complete()).refused(404, "query_task_not_found")
        (await leased.complete(lease_owner="x", query_task_attempt=9)).refused(409, "lease_owner_mismatch")
        mismatch = (await leased.complete(query_task_attempt=9)).refused(409, "query_task_attempt_mismatch")
        assert mismatch["current_attempt"] == 1
        for body in ({"lease_owner": None}, {"query_task_attempt": True}, {"result_envelope": {"codec": "json"}}):
            (await leased.complete(**body)).refused(422, "validation_failed")
        (await leased.complete()).ok()
        (await leased.complete()).refused(409, "query_task_not_leased")
        (await leased.fail()).refused(409, "query_task_not_leased")


async def test_status_repeats_the_claim_unchanged_and_renews_nothing(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire):
        leased = await poll(answering)
        wire.clock.advance(12)
        seen = (await leased.status()).ok()
        claim = ("query_task_id", "query_task_attempt", "lease_owner", "lease_expires_at")
        for name in (*claim, "query_admitted_at", "query_deadline_at"):
            assert seen[name] == leased.task[name]
        assert (seen["can_continue"], seen["query_task_status"], seen["reason"]) == (True, "leased", None)
        assert seen["server_time"] == instant(12)
        (await leased.status(query_task_attempt="2")).refused(409, "query_task_attempt_mismatch")
        (await leased.status(query_task_attempt="one")).refused(422, "validation_failed")
        (await leased.status(version="1.19")).refused(422, "query_task_authority_unavailable")
        await leased.complete()
        (await leased.status()).refused(409, "query_task_not_leased")


async def test_the_same_poll_request_gives_the_same_lease(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire):
        first = await poll(answering)
        again = await poll(answering)
        assert again.task == first.task
        assert (await try_poll(answering, request_id="query-poll-2")).ok()["task"] is None
        await again.complete()


async def test_a_worker_that_registers_again_or_leaves_gives_its_queries_to_others(
    wire: Wire, answering: Worker
) -> None:
    await wire.start()
    other = Worker(wire, "other", capabilities=QUERIES)
    await other.register()
    async with asked(wire) as question:
        lost = await poll(answering)
        await answering.register()
        second = await poll(other)
        assert second.task["query_task_attempt"] == 2
        assert second.task["query_deadline_at"] == lost.task["query_deadline_at"]
        (await lost.complete()).refused(409, "lease_owner_mismatch")
        (await wire.worker("/registrations/other", method="DELETE")).ok()
        third = await poll(answering, request_id="query-poll-3")
        assert third.task["query_task_attempt"] == 3
        (await lost.complete()).refused(409, "query_task_attempt_mismatch")
        (await third.complete()).ok()
        (await question.reply()).ok()


async def test_a_poll_whose_client_has_left_takes_no_query(wire: Wire, answering: Worker) -> None:
    await wire.start()
    gone = trio.Event()
    gone.set()
    async with asked(wire):
        body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0}
        await wire.worker("/query-tasks/poll", body, left=gone)
        leased = await poll(answering)
        assert leased.task["query_task_attempt"] == 2
        await leased.complete()


async def test_an_asker_that_has_left_lets_no_worker_work_for_nobody(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire) as question:
        leased = await poll(answering)
        question.left.set()
        with trio.fail_after(5):
            await question.answered.wait()
        await wire.settle()
        (await leased.status()).refused(409, "query_task_timed_out")
        assert (await try_poll(answering, request_id="next")).ok()["task"] is None


async def test_a_full_queue_refuses_and_has_room_again_when_one_is_taken() -> None:
    async with running_server(Settings(max_pending_queries=1)) as wire:
        worker = Worker(wire, capabilities=QUERIES)
        await worker.register()
        await wire.start()
        async with asked(wire) as first:
            full = (await wire.control("POST", "/workflows/wf/query/total", {})).refused(429, "query_task_queue_full")
            assert full["retry_after_seconds"] == 1
            leased = await poll(worker)
            async with asked(wire) as second:
                other = await poll(worker, request_id="query-poll-2")
                await leased.complete()
                await other.complete()
                (await first.reply()).ok()
                (await second.reply()).ok()


async def test_the_sweep_ends_queries_and_forgets_them_a_minute_later() -> None:
    async with running_server(sweeping=True) as wire:
        worker = Worker(wire, capabilities=QUERIES)
        await worker.register()
        await wire.start()
        async with asked(wire) as question:
            leased = await poll(worker)
            wire.clock.advance(30)
            (await question.reply()).refused(504, "query_worker_execution_timeout")
        await wire.settle()
        (await leased.complete()).refused(409, "query_task_timed_out")
        wire.clock.advance(60)
        await wire.settle()
        (await leased.complete()).refused(404, "query_task_not_found")


async def test_a_stopping_server_answers_those_who_wait(wire: Wire, answering: Worker) -> None:
    await wire.start()
    async with asked(wire) as question:
        wire.stopping.set()
        (await question.reply()).refused(503, "backend_unavailable")


async def test_a_worker_without_workflows_gets_no_query(wire: Wire) -> None:
    idle = Worker(wire, "idle", capabilities=QUERIES)
    await idle.register(supported_workflow_types=[])
    assert (await try_poll(idle)).ok()["poll_status"] == "no_workflow_capability"
    (await try_poll(Worker(wire, "stranger"))).refused(412, "worker_not_registered")


async def test_the_requests_of_the_official_fixtures_are_understood(wire: Wire, shared_fixtures: Path) -> None:
    worker = Worker(wire, "polyglot-worker-231", capabilities=QUERIES)
    await worker.register(task_queue="external-workflows")
    await wire.start("order-231", task_queue="external-workflows")
    polled = json.loads((shared_fixtures / "control-plane" / "query-task-poll-parity.json").read_text())
    failed = json.loads((shared_fixtures / "control-plane" / "query-task-fail-parity.json").read_text())
    async with asked(wire, "current_status", "order-231") as question:
        task = (await wire.worker("/query-tasks/poll", polled["request"]["body"])).ok()["task"]
        assert set(polled["response_body"]["task"]) - {"input"} <= set(task)
        assert (task["workflow_id"], task["query_name"]) == ("order-231", "current_status")
        path = failed["request"]["path"].replace("query-task-231", task["query_task_id"]).removeprefix("/worker")
        told = (await wire.worker(path, failed["request"]["body"])).ok()
        assert set(failed["response_body"]) <= set(told)
        assert told["outcome"] == failed["response_body"]["outcome"]
        (await question.reply()).refused(404, "rejected_unknown_query")


@pytest.mark.parametrize(("protocol", "authority"), [("1.18", False), ("1.19", False), ("1.20", True)])
async def test_discovery_offers_queries_in_every_version_and_their_authority_from_1_20(
    protocol: str, authority: bool
) -> None:
    async with running_server(Settings(protocol=protocol)) as wire:
        info = (await wire.request("GET", "/api/cluster/info")).ok()
    offered = info["worker_protocol"]["server_capabilities"]
    assert (offered["query_tasks"], offered["query_task_authority"]) == (True, authority)
    assert info["capabilities"]["queries"] is True


async def test_a_pinned_run_is_asked_by_workers_of_its_build_only(wire: Wire) -> None:
    other = Worker(wire, "other", capabilities=("query_tasks",))
    await other.register(build_id="c")
    await wire.start(build_id="b")
    (await wire.control("POST", "/workflows/wf/query/total", {})).refused(409, "query_worker_incompatible")
    right = Worker(wire, "right", capabilities=("query_tasks",))
    await right.register(build_id="b")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.control, "POST", "/workflows/wf/query/total", {})
        polled: dict[str, Any] | None = None
        while polled is None:
            body = {"worker_id": "right", "task_queue": "q", "timeout_seconds": 0}
            wrong = {**body, "worker_id": "other"}
            assert (await wire.worker("/query-tasks/poll", wrong)).ok()["task"] is None
            polled = (await wire.worker("/query-tasks/poll", body)).ok()["task"]
        nursery.cancel_scope.cancel()

    assert polled["compatibility"] == "b"
