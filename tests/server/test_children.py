"""Child workflows on the embedded server: started, followed, heard of, ended with their parent (commands.md §2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from server.wire import EMPTY_LIST, ENVELOPE, Claim, Wire, Worker, instant, retries, running_server, side_effect

ARGUMENTS = {"codec": "avro", "blob": EMPTY_LIST}


def child(workflow_type: str = "c", **fields: Any) -> dict[str, Any]:
    return {"type": "start_child_workflow", "workflow_type": workflow_type, "arguments": ARGUMENTS, **fields}


def failure(**fields: Any) -> dict[str, Any]:
    return {"type": "fail_workflow", "message": "broken", "exception_type": "OSError", **fields}


def successor(**fields: Any) -> dict[str, Any]:
    return {"type": "continue_as_new", "arguments": ENVELOPE, "queue": "q", **fields}


async def both_types(wire: Wire, **changes: Any) -> Worker:
    """Register a worker that takes parents and children."""
    worker = Worker(wire, **changes)
    await worker.register(supported_workflow_types=["t", "c", "d"])
    return worker


async def begun(wire: Wire, worker: Worker, *commands: dict[str, Any]) -> Claim:
    """Start a parent, let it start children, and give the claim of the first child's first task."""
    await wire.start()
    (await (await worker.poll()).complete(*(commands or (child(),)))).ok()
    return await worker.poll()


def of_type(events: list[dict[str, Any]], event_type: str) -> list[Mapping[str, Any]]:
    return [event["payload"] for event in events if event["event_type"] == event_type]


async def test_a_child_is_a_run_of_its_own_that_knows_its_parent(shared_fixtures: Path) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        task = (await begun(wire, worker, child(queue="q", execution_timeout_seconds=90, run_timeout_seconds=30))).task
        events = await wire.events()
        assert [event["event_type"] for event in events][2:] == ["ChildWorkflowScheduled", "ChildRunStarted"]
        (scheduled,) = of_type(events, "ChildWorkflowScheduled")
        assert scheduled["sequence"] == 1
        assert scheduled["parent_close_policy"] == "abandon"
        assert scheduled["child_workflow_type"] == "c"
        assert scheduled["run_deadline_at"] == instant(30)
        assert (task["workflow_id"], task["run_id"]) == (
            scheduled["child_workflow_instance_id"],
            scheduled["child_workflow_run_id"],
        )
        assert task["arguments"] == ARGUMENTS
        described = await wire.describe(task["workflow_id"])
        parent = await wire.describe()
        assert described["parent_workflow_id"] == "wf"
        assert described["parent_workflow_run_id"] == parent["run_id"]
        assert described["execution_deadline_at"] == instant(90)
        (started,) = of_type(task["history_events"], "WorkflowStarted")
        assert started["parent_workflow_run_id"] == parent["run_id"]
        assert started["child_call_id"] == scheduled["child_call_id"]
        assert started["workflow_link_id"] == scheduled["workflow_link_id"]
        check_events(shared_fixtures, events + task["history_events"])


async def test_the_parent_hears_of_the_result_and_is_woken_once(shared_fixtures: Path) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker)
        assert await worker.idle(), "the parent has nothing to do while its child runs"
        (await claim.complete()).ok()
        parent = await worker.poll()
        assert parent.task["workflow_id"] == "wf"
        assert parent.task["resume_source_kind"] == "child_workflow"
        (completed,) = of_type(parent.task["history_events"], "ChildRunCompleted")
        assert completed["result"] == completed["output"] == ENVELOPE
        assert (completed["child_status"], completed["sequence"]) == ("completed", 1)
        assert completed["payload_codec"] == "avro"
        check_events(shared_fixtures, parent.task["history_events"])
        (await parent.complete()).ok()
        assert await worker.idle()


async def test_a_child_that_fails_tells_its_parent_why() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker)
        exception = {"type": "OSError", "class": "builtins.OSError", "message": "broken"}
        (await claim.complete(failure(exception_class="builtins.OSError", exception=exception))).ok()
        (failed,) = of_type((await worker.poll()).task["history_events"], "ChildRunFailed")
        assert failed["message"] == "broken"
        assert failed["exception_type"] == "OSError"
        assert failed["exception_class"] == "builtins.OSError"
        assert failed["exception"] == exception
        assert failed["failure_category"] == "child_workflow"


@pytest.mark.parametrize(
    ("operation", "event_type"), [("cancel", "ChildRunCancelled"), ("terminate", "ChildRunTerminated")]
)
async def test_a_child_that_is_ended_from_outside_tells_its_parent(operation: str, event_type: str) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        name = (await begun(wire, worker)).task["workflow_id"]
        (await wire.control("POST", f"/workflows/{name}/{operation}", {"reason": "enough"})).ok()
        (ended,) = of_type((await worker.poll()).task["history_events"], event_type)
        assert ended["message"] == "enough"


async def test_a_child_that_times_out_fails_for_its_parent() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await begun(wire, worker, child(run_timeout_seconds=5))
        wire.clock.advance(5)
        (failed,) = of_type((await worker.poll()).task["history_events"], "ChildRunFailed")
        assert (failed["closed_reason"], failed["timeout_kind"]) == ("timed_out", "run")


async def test_an_end_that_comes_while_the_parent_works_makes_another_task() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        parent = await worker.poll()
        (await parent.complete({"type": "start_timer", "delay_seconds": 1}, child())).ok()
        first = await worker.poll()
        wire.clock.advance(1)
        parent = await worker.poll()
        assert parent.task["workflow_id"] == "wf"
        (await first.complete()).ok()
        (await parent.post("/fail", failure={"message": "x", "type": "WorkflowTaskWaitingForHistory"})).ok()
        again = await worker.poll()
        assert again.task["workflow_id"] == "wf"
        assert of_type(again.task["history_events"], "ChildRunCompleted")


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (None, "running"),
        ("abandon", "running"),
        ("terminate", "terminated"),
        ("request_cancel", "cancelled"),
    ],
)
async def test_what_the_end_of_a_parent_does_to_its_child(policy: str | None, status: str) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker, child(parent_close_policy=policy))
        name = claim.task["workflow_id"]
        (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
        described = await wire.describe(name)
        assert described["status"] == status
        before = await wire.event_types()
        if status == "running":
            (await claim.complete()).ok()
        else:
            (await claim.complete()).refused(409, "run_closed")
            (ended,) = of_type(await wire.events(name), f"Workflow{status.title()}")
            assert ended["parent_workflow_instance_id"] == "wf"
        assert await wire.event_types() == before, "a closed parent hears nothing"


async def test_the_end_of_a_parent_reaches_grandchildren() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker, child(parent_close_policy="terminate"))
        (await claim.complete(child("d", parent_close_policy="request_cancel"))).ok()
        grandchild = (await worker.poll()).task["workflow_id"]
        await wire.control("POST", "/workflows/wf/cancel", {})
        assert (await wire.describe(claim.task["workflow_id"]))["status"] == "terminated"
        assert (await wire.describe(grandchild))["status"] == "cancelled"


async def test_the_timeout_of_a_parent_ends_its_child() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start(run_timeout_seconds=3)
        (await (await worker.poll()).complete(child(parent_close_policy="terminate"))).ok()
        name = (await worker.poll()).task["workflow_id"]
        wire.clock.advance(3)
        listed = (await wire.control("GET", "/workflows")).ok()["workflows"]
        assert {row["workflow_id"]: row["status"] for row in listed} == {"wf": "failed", name: "terminated"}


async def test_a_listing_that_ends_a_child_shows_the_parent_it_woke() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await begun(wire, worker, child(run_timeout_seconds=3))
        wire.clock.advance(3)
        (await wire.control("GET", "/workflows")).ok()
        assert (await wire.event_types())[-1] == "ChildRunFailed"
        assert (await worker.poll()).task["workflow_id"] == "wf"


async def test_a_failed_child_is_tried_again_and_only_its_last_failure_is_told(shared_fixtures: Path) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker, child(retry_policy=retries(4, 2, 5)))
        name, first_run = claim.task["workflow_id"], claim.task["run_id"]
        for pause in (2, 5, 5):
            (await claim.complete(failure())).ok()
            assert await worker.idle()
            wire.clock.advance(pause)
            claim = await worker.poll()
            assert claim.task["workflow_id"] == name
            assert claim.task["arguments"] == ARGUMENTS
        (started,) = of_type(claim.task["history_events"], "WorkflowStarted")
        assert started["retry_attempt"] == 4
        assert "ChildRunFailed" not in await wire.event_types()
        (await claim.complete(failure())).ok()
        parent = await worker.poll()
        events = parent.task["history_events"]
        kinds = [event["event_type"] for event in events][2:]
        assert kinds == ["ChildWorkflowScheduled", *["ChildRunStarted"] * 4, "ChildRunFailed"]
        assert of_type(events, "ChildRunStarted")[0]["child_workflow_run_id"] == first_run
        (failed,) = of_type(events, "ChildRunFailed")
        assert failed["child_run_number"] == 4
        assert failed["child_workflow_run_id"] == claim.task["run_id"]
        check_events(shared_fixtures, events + claim.task["history_events"])
        runs = (await wire.control("GET", f"/workflows/{name}/runs")).ok()["runs"]
        assert [run["run_number"] for run in runs] == [1, 2, 3, 4]
        assert [run["is_current_run"] for run in runs] == [False, False, False, True]


@pytest.mark.parametrize(
    "fields", [{"non_retryable": True}, {"exception_type": "Final"}, {"exception_class": "app.Final"}]
)
async def test_a_failure_that_is_final_is_not_tried_again(fields: dict[str, Any]) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        policy = {**retries(3, 0), "non_retryable_error_types": ["Final", "app.Final"]}
        claim = await begun(wire, worker, child(retry_policy=policy))
        (await claim.complete(failure(**fields))).ok()
        assert (await wire.event_types())[-1] == "ChildRunFailed"


async def test_a_passed_execution_deadline_is_not_tried_again_but_a_run_timeout_is() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        timeouts: dict[str, Any] = {"run_timeout_seconds": 4, "execution_timeout_seconds": 6}
        first = await begun(wire, worker, child(retry_policy=retries(9), **timeouts))
        wire.clock.advance(4)
        second = await worker.poll()
        assert second.task["workflow_id"] == first.task["workflow_id"]
        assert (await wire.describe(second.task["workflow_id"]))["run_number"] == 2
        wire.clock.advance(2)
        (failed,) = of_type((await worker.poll()).task["history_events"], "ChildRunFailed")
        assert failed["timeout_kind"] == "execution"


async def test_a_cancelled_child_is_not_tried_again() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        name = (await begun(wire, worker, child(retry_policy=retries(3)))).task["workflow_id"]
        (await wire.control("POST", f"/workflows/{name}/cancel", {})).ok()
        assert (await wire.event_types())[-1] == "ChildRunCancelled"


async def test_a_child_that_continues_as_new_is_followed_to_its_last_run() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker, child(parent_close_policy="terminate"))
        (await claim.complete(successor())).ok()
        assert (await wire.event_types())[-2:] == ["ChildRunStarted", "ChildRunStarted"]
        second = await worker.poll()
        assert second.task["workflow_id"] == claim.task["workflow_id"]
        (await second.complete()).ok()
        (completed,) = of_type((await worker.poll()).task["history_events"], "ChildRunCompleted")
        assert completed["child_workflow_run_id"] == second.task["run_id"]
        assert completed["child_run_number"] == 2


async def test_the_policy_reaches_the_newest_run_of_a_child() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        claim = await begun(wire, worker, child(parent_close_policy="terminate"))
        (await claim.complete(successor())).ok()
        (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
        described = await wire.describe(claim.task["workflow_id"])
        assert (described["run_number"], described["status"]) == (2, "terminated")


async def test_children_of_a_group_wake_their_parent_together() -> None:
    def member(index: int) -> dict[str, Any]:
        level: dict[str, Any] = {
            "parallel_group_id": "parallel-children:1:2",
            "parallel_group_kind": "child",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 2,
            "parallel_group_index": index,
        }
        return child(**level, parallel_group_path=[level])

    async with running_server() as wire:
        worker = await both_types(wire)
        first = await begun(wire, worker, member(0), member(1))
        second = await worker.poll()
        (await second.complete(failure())).ok()
        assert await worker.idle()
        (await first.complete()).ok()
        events = (await worker.poll()).task["history_events"]
        assert of_type(events, "ChildRunFailed")[0]["parallel_group_index"] == 1
        assert of_type(events, "ChildRunCompleted")[0]["parallel_group_path"][0]["parallel_group_size"] == 2


async def test_a_completion_repeated_starts_no_second_child() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        parent = await worker.poll()
        (await parent.complete(child())).ok()
        (await parent.complete(child())).refused(409, "task_not_leased")
        listed = (await wire.control("GET", "/workflows")).ok()["workflows"]
        assert len(listed) == 2


async def test_the_id_of_a_child_is_taken() -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        name = (await begun(wire, worker)).task["workflow_id"]
        body = {"workflow_id": name, "workflow_type": "c", "task_queue": "q"}
        (await wire.control("POST", "/workflows", body)).refused(409, "instance_already_started")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"workflow_type": " "}, "workflow_type"),
        ({"queue": " "}, "queue"),
        ({"parent_close_policy": "forget"}, "parent_close_policy"),
        ({"cancellation_policy": "perhaps"}, "cancellation_policy"),
        ({"run_timeout_seconds": 0}, "run_timeout_seconds"),
        ({"run_timeout_seconds": 9, "execution_timeout_seconds": 8}, "run_timeout_seconds"),
        ({"execution_timeout_seconds": True}, "execution_timeout_seconds"),
        ({"arguments": {"codec": "json", "blob": "x"}}, "arguments"),
        ({"retry_policy": {"max_attempts": 0}}, "retry_policy.max_attempts"),
        ({"retry_policy": {"often": 1}}, "retry_policy.often"),
        ({"start_to_close_timeout": 3}, "start_to_close_timeout"),
    ],
)
async def test_a_start_with_a_mistake_is_refused_by_its_field(fields: dict[str, Any], name: str) -> None:
    async with running_server() as wire:
        worker = await both_types(wire)
        await wire.start()
        reply = await (await worker.poll()).complete(side_effect(), child(**fields))
        assert list(reply.refused(422, "validation_failed")["errors"]) == [f"commands.1.{name}"]
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


@pytest.mark.parametrize(
    "fields",
    [
        {"parent_close_policy": "request_cancellation"},
        {"cancellation_policy": "try_cancel"},
        {"cancellation_policy": "wait_cancellation_completed"},
    ],
)
async def test_policies_of_a_cooperative_cancellation_need_a_claim_that_has_it(fields: dict[str, Any]) -> None:
    async with running_server() as wire:
        worker = await both_types(wire, capabilities=())
        await wire.start()
        claim = await worker.poll()
        (await claim.complete(child(**fields))).refused(409, "child_cancellation_policy_not_supported")
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
