"""Runs that continue as new on the embedded server: one workflow id, a chain of linked runs (scenarios.md §4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from server.test_children import both_types, of_type, successor
from server.wire import ENVELOPE, Wire, instant, running_server


async def run_history(wire: Wire, run_id: str) -> list[dict[str, Any]]:
    events = (await wire.control("GET", f"/workflows/wf/runs/{run_id}/history")).ok()["events"]
    assert isinstance(events, list)
    return events


async def test_the_successor_has_the_id_the_next_number_and_a_link(shared_fixtures: Path) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        first = (await wire.start(memo={"a": 1}, search_attributes={"b": "x"}))["run_id"]
        (await (await worker.poll()).complete(successor())).ok()
        claim = await worker.poll()
        second = claim.task["run_id"]
        assert (claim.task["workflow_id"], claim.task["workflow_type"]) == ("wf", "t")
        assert claim.task["arguments"] == ENVELOPE
        old, new = await run_history(wire, first), await run_history(wire, second)
        (ended,), (started,) = of_type(old, "WorkflowContinuedAsNew"), of_type(new, "WorkflowStarted")
        assert (ended["continued_to_run_id"], ended["continued_to_run_number"]) == (second, 2)
        assert ended["sequence"] == 1
        assert started["continued_from_run_id"] == first
        assert started["workflow_link_id"] == ended["workflow_link_id"]
        assert (started["memo"], started["search_attributes"]) == ({"a": 1}, {"b": "x"})
        assert [event["event_type"] for event in new] == ["WorkflowStarted"]
        check_events(shared_fixtures, old + new)
        described = await wire.describe()
        assert (described["run_id"], described["run_number"], described["run_count"]) == (second, 2, 2)
        assert described["continued_from_run_id"] == first
        earlier = (await wire.control("GET", f"/workflows/wf/runs/{first}")).ok()
        assert (earlier["status"], earlier["closed_reason"]) == ("completed", "continued")
        assert (earlier["is_current_run"], earlier["run_count"]) == (False, 2)
        assert earlier["continued_to_run_id"] == second


async def test_the_successor_may_be_of_another_type_on_another_queue() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        (await (await worker.poll()).complete(successor(workflow_type="d", queue="elsewhere"))).ok()
        described = await wire.describe()
        assert (described["workflow_type"], described["task_queue"]) == ("d", "elsewhere")
        assert await worker.idle()


async def test_what_is_authored_before_it_is_recorded_in_the_old_run() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        first = (await wire.start())["run_id"]
        attributes = {"type": "upsert_search_attributes", "attributes": {"stage": "two"}}
        (await (await worker.poll()).complete(attributes, successor())).ok()
        old = await run_history(wire, first)
        assert [event["event_type"] for event in old][2:] == ["SearchAttributesUpserted", "WorkflowContinuedAsNew"]
        assert of_type(old, "WorkflowContinuedAsNew")[0]["sequence"] == 2
        assert (await wire.describe())["search_attributes"] == {"stage": "two"}


async def test_a_repeated_completion_makes_no_third_run() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        claim = await worker.poll()
        (await claim.complete(successor())).ok()
        (await claim.complete(successor())).refused(409, "task_not_leased")
        runs = (await wire.control("GET", "/workflows/wf/runs")).ok()["runs"]
        assert [run["run_number"] for run in runs] == [1, 2]
        assert len({run["run_id"] for run in runs}) == 2


async def test_the_execution_deadline_stays_and_the_run_timeout_begins_anew() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start(execution_timeout_seconds=100, run_timeout_seconds=30)
        wire.clock.advance(20)
        (await (await worker.poll()).complete(successor())).ok()
        described = await wire.describe()
        assert described["execution_deadline_at"] == instant(100)
        assert described["run_deadline_at"] == instant(50)
        wire.clock.advance(30)
        assert (await wire.describe())["closed_reason"] == "timed_out"


async def test_commands_of_the_control_plane_go_to_the_newest_run() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        first = (await wire.start())["run_id"]
        (await (await worker.poll()).complete(successor())).ok()
        path = f"/workflows/wf/runs/{first}/signal/any"
        (await wire.control("POST", path, {"request_id": "r1"})).refused(409, "historical_run_command_rejected")
        (await wire.control("POST", "/workflows/wf/signal/any", {"request_id": "r2"})).ok(202)
        assert (await wire.event_types())[-1] == "SignalReceived"
        (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
        assert (await wire.event_types())[-1] == "WorkflowTerminated"
        body = {"workflow_id": "wf", "workflow_type": "t", "task_queue": "q"}
        (await wire.control("POST", "/workflows", body)).refused(409, "duplicate_not_allowed")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"workflow_type": " "}, "workflow_type"),
        ({"queue": 3}, "queue"),
        ({"arguments": {"codec": "avro", "blob": "?"}}, "arguments"),
        ({"retry_policy": {}}, "retry_policy"),
    ],
)
async def test_a_mistake_is_refused_by_its_field(fields: dict[str, Any], name: str) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        reply = await (await worker.poll()).complete(successor(**fields))
        assert list(reply.refused(422, "validation_failed")["errors"]) == [f"commands.0.{name}"]
        assert (await wire.describe())["run_number"] == 1


async def test_it_is_the_only_end_of_a_run() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        complete = {"type": "complete_workflow", "result": ENVELOPE}
        (await (await worker.poll()).complete(complete, successor())).refused(422, "validation_failed")
