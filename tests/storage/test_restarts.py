"""Another server on the file goes on with everything that was open: leases, timers, sessions, answers to request ids.

Each test runs with a server that ended in order and with one that was killed: its image is a copy of the file and the
log beside it, made while it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proctor.server.rules.book import Settings
from server.groups import TIMER, flat
from server.test_cancellation import deliver
from server.test_external_payloads import BLOB, stored
from server.test_selections import select
from server.wire import WITH_GROUPS, Claim, ManualClock, Wire, Worker, describe_call, running_server

CAPABILITIES = (*WITH_GROUPS, "worker_sessions", "sticky_execution")
SESSION = {"session_id": "s", "lease_seconds": 40}
HELD = {"type": "schedule_activity", "activity_type": "a", "worker_session": SESSION, "heartbeat_timeout": 50}
CHILD = {"type": "start_child_workflow", "workflow_type": "child", "cancellation_policy": "wait_cancellation_completed"}
WAIT = {"type": "open_condition_wait", "condition_key": "gate", "timeout_seconds": 30}
GROUP = flat({**describe_call(), "type": "prepare_local_activity"}, TIMER, kind="mixed")


@asynccontextmanager
async def next_server(file: Path, clock: ManualClock) -> AsyncIterator[tuple[Wire, Worker]]:
    """Run a server on the file; its worker is registered already."""
    async with running_server(Settings(), database=file, clock=clock, sweeping=True) as wire:
        yield wire, Worker(wire, capabilities=CAPABILITIES)


async def turn(wire: Wire, worker: Worker, name: str, *commands: dict[str, Any], **completion: Any) -> Claim:
    await wire.start(name)
    claim = await worker.poll()
    assert claim.task["workflow_id"] == name
    (await claim.post("/complete", commands=list(commands), **completion)).ok()
    return claim


async def open_work(wire: Wire, worker: Worker) -> list[tuple[Callable[..., Awaitable[Any]], dict[str, Any]]]:
    """Leave work of every newer kind open; give what may be asked again, with the answer that it got."""
    await worker.register(supported_workflow_types=["t", "child"], supported_activity_types=["a"], build_id="b")
    reference = await stored(wire)
    await wire.start("outside", input=reference)
    claim = await worker.poll()
    (await claim.complete(HELD)).ok()
    await turn(wire, worker, "selection", *select({"late": TIMER, "gate": WAIT}))
    await wire.start("sticky")
    claim = await worker.poll()
    sticky = {"worker_id": "w", "workflow_id": "sticky", "run_id": claim.task["run_id"], "build_id": "b"}
    (await claim.post("/complete", commands=[TIMER], sticky_cache={**sticky, "ttl_seconds": 300})).ok()
    await turn(wire, worker, "told", {**TIMER, "delay_seconds": 900})
    await turn(wire, worker, "parent", CHILD)
    (await wire.control("POST", "/workflows/told/update/set", {"request_id": "one"})).ok(202)
    # The update and the child have tasks of their own now.
    leased = [await worker.poll(request_id="first"), await worker.poll(request_id="second")]
    assert {one.task["workflow_type"] for one in leased} == {"t", "child"}
    request_id = (await wire.cancel_cooperatively("parent"))["cancellation_request"]["request_id"]
    parked = await deliver(await worker.poll(), request_id, call_kind="child")
    assert parked.ok()["reason"] == "cancellation_waiting_for_child"
    await wire.start("group")
    group = await worker.poll(request_id="third")
    admitted = (await group.checkpoint_group("c", 1, *GROUP)).ok()

    async def polled(wire: Wire, request_id: str) -> Any:
        return (await Worker(wire, capabilities=CAPABILITIES).poll(request_id=request_id)).task

    async def hand(wire: Wire) -> Any:
        body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0, "poll_request_id": "hand"}
        return (await wire.worker("/activity-tasks/poll", body)).ok()["task"]

    async def checkpoint(wire: Wire) -> Any:
        again = Claim(Worker(wire, capabilities=CAPABILITIES), group.task)
        return (await again.checkpoint_group("c", 1, *GROUP)).ok()

    async def update(wire: Wire) -> Any:
        return (await wire.control("POST", "/workflows/told/update/set", {"request_id": "one"})).ok(202)

    async def ask(wire: Wire) -> Any:
        return await wire.cancel_cooperatively("parent")

    async def payload(wire: Wire) -> Any:
        return await stored(wire, BLOB)

    asked: list[tuple[Callable[..., Awaitable[Any]], dict[str, Any]]] = []
    for number, one in enumerate((leased[0], leased[1], group)):
        name = ("first", "second", "third")[number]
        asked.append((lambda wire, name=name: polled(wire, name), await polled(wire, name)))
        assert asked[-1][1]["task_id"] == one.task["task_id"]
    asked += [(again, await again(wire)) for again in (hand, update, ask, payload)]
    asked.append((checkpoint, {**admitted, "duplicate": True}))
    return asked


async def everything_shown(wire: Wire) -> dict[str, Any]:
    """Read all that operators and clients see."""
    paths = ["/workflows", "/workers", "/task-queues", "/task-queues/q", "/worker-sessions"]
    for row in (await wire.control("GET", "/workflows")).ok()["workflows"]:
        run = f"/workflows/{row['workflow_id']}/runs/{row['run_id']}"
        paths += [f"/workflows/{row['workflow_id']}", f"{run}/history?page_size=1000", f"{run}/history/export"]
    return {path: (await wire.control("GET", path)).ok() for path in paths}


@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
async def test_what_was_open_is_open_in_the_next_server_and_ends_when_it_would_have(
    tmp_path: Path, killed: bool
) -> None:
    clock, before, image = ManualClock(), tmp_path / "before", tmp_path / "after"
    before.mkdir()
    async with next_server(before / "a.db", clock) as (wire, worker):
        asked = await open_work(wire, worker)
        shown = await everything_shown(wire)
        assert len(shown) > 20
        if killed:
            shutil.copytree(before, image, ignore=shutil.ignore_patterns("*-shm"))
    if not killed:
        shutil.copytree(before, image)
    assert (image / "a.db-wal").exists() is killed

    async with next_server(image / "a.db", clock) as (wire, worker):
        assert await everything_shown(wire) == shown
        for again, answer in asked:
            assert await again(wire) == answer
        assert await everything_shown(wire) == shown

        clock.advance(31)
        await wire.settle()
        ends = [
            kind for kind in await wire.event_types("selection") if kind.endswith(("Fired", "Resolved", "TimedOut"))
        ]
        assert ends == ["TimerFired", "SelectionResolved", "TimerFired", "ConditionWaitTimedOut"]
        assert (await wire.event_types("sticky"))[-1] == "TimerFired"
        assert (await wire.event_types("group"))[-1] == "TimerFired"
        epochs = {}
        while (task := (await worker.try_poll()).ok()["task"]) is not None:
            epochs[task["workflow_id"].partition("-")[0]] = task["workflow_task_attempt"], task["sticky_replay_mode"]
        assert epochs == {
            "child": (2, "cold_replay"),
            "told": (2, "cold_replay"),
            "group": (2, "cold_replay"),
            "selection": (1, "cold_replay"),
            "sticky": (1, "sticky_hit_expected"),
        }
        clock.advance(10)
        assert (await wire.control("GET", "/worker-sessions/s")).ok()["session"]["failure_reason"] == "lease_expired"
        clock.advance(10)
        await wire.settle()
        assert (await wire.event_types("outside"))[-1] == "ActivityTimedOut"
        clock.advance(600)
        await wire.settle()
        assert (await wire.describe("parent"))["status"] == "cancelled"
