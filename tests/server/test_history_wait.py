"""Waiting for the next event of a run, without asking again and again (control-plane.md §2, `wait_new_event`)."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
import trio

from server.wire import START, Reply, Wire, Worker, running_server, side_effect


async def ask(wire: Wire, after: int, *, wait: str = "1", workflow_id: str = "wf", **options: Any) -> Reply:
    run_id = (await wire.describe(workflow_id))["run_id"]
    token = base64.b64encode(str(after).encode()).decode()
    path = f"/workflows/{workflow_id}/runs/{run_id}/history?next_page_token={token}&wait_new_event={wait}"
    return await wire.control("GET", path, **options)


class Asking:
    """A request that is parked, and its answer when there is one."""

    def __init__(self) -> None:
        self.answer: Reply | None = None
        self.left = trio.Event()

    async def run(self, wire: Wire, after: int) -> None:
        self.answer = await ask(wire, after, left=self.left)

    def sequences(self) -> list[int]:
        assert self.answer is not None
        return [event["sequence"] for event in self.answer.ok()["events"]]


async def test_what_is_there_already_is_given_at_once(wire: Wire) -> None:
    await wire.start()
    page = (await ask(wire, 1)).ok()
    assert [event["event_type"] for event in page["events"]] == ["WorkflowStarted"]
    assert page["next_page_token"] is None


async def test_an_event_wakes_everybody_who_waits_for_it(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    first, second = Asking(), Asking()
    async with trio.open_nursery() as nursery:
        for asking in (first, second):
            nursery.start_soon(asking.run, wire, 2)
        await wire.clock.sleeper(START + timedelta(seconds=30))
        await wire.settle()
        (await claim.post("/heartbeat")).ok()
        await wire.start("other")
        await wire.settle()
        assert first.answer is second.answer is None
        (await claim.checkpoint("c", 1, side_effect(), side_effect())).ok()
    assert first.sequences() == second.sequences() == [3, 4]


async def test_without_news_the_answer_comes_when_its_time_is_up(wire: Wire) -> None:
    await wire.start()
    asking = Asking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.run, wire, 2)
        await wire.clock.sleeper(START + timedelta(seconds=30))
        wire.clock.advance(29.9)
        await wire.settle()
        assert asking.answer is None
        wire.clock.advance(0.1)
    assert asking.sequences() == []


async def test_a_deadline_that_nobody_asks_about_wakes_too() -> None:
    async with running_server(sweeping=True) as wire:
        await wire.start(run_timeout_seconds=20)
        asking = Asking()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.run, wire, 2)
            await wire.clock.sleeper(START + timedelta(seconds=30))
            wire.clock.advance(20)
        assert asking.answer is not None
        assert [event["event_type"] for event in asking.answer.ok()["events"]] == ["WorkflowTimedOut"]


async def test_a_closed_run_keeps_nobody_waiting(wire: Wire) -> None:
    await wire.start()
    (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
    assert (await ask(wire, 3)).ok()["events"] == []


@pytest.mark.parametrize("wait", ["0", "false", ""])
async def test_nobody_waits_who_did_not_ask_to(wire: Wire, wait: str) -> None:
    await wire.start()
    assert (await ask(wire, 2, wait=wait)).ok()["events"] == []


async def test_anything_else_is_refused(wire: Wire) -> None:
    await wire.start()
    assert "wait_new_event" in (await ask(wire, 2, wait="yes")).refused(422, "validation_failed")["errors"]
    unknown = await wire.control("GET", "/workflows/wf/runs/R/history?wait_new_event=1")
    unknown.refused(404, "run_not_found")


async def test_a_client_that_leaves_is_let_go(wire: Wire) -> None:
    await wire.start()
    asking = Asking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.run, wire, 2)
        await wire.clock.sleeper(START + timedelta(seconds=30))
        asking.left.set()
    assert asking.answer is not None
    assert asking.answer.status == 499


async def test_a_server_that_stops_says_so(wire: Wire) -> None:
    await wire.start()
    asking = Asking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.run, wire, 2)
        await wire.clock.sleeper(START + timedelta(seconds=30))
        wire.stopping.set()
    assert asking.answer is not None
    assert asking.answer.refused(503, "backend_unavailable")["retryable"] is True
