"""A cancellation reaches children by policy: never, at once, or with a parent that waits (cancellation.md §8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from server.groups import flat
from server.test_cancellation import deliver
from server.test_children import both_types, child, of_type
from server.wire import ENVELOPE, Claim, ManualClock, Wire, Worker, describe_call, instant, running_server

WAIT = "wait_cancellation_completed"


async def parked(wire: Wire, *commands: dict[str, Any]) -> tuple[Worker, Claim, str, Claim]:
    """Start a parent with children and cancel it; give its claim, its request, and the claim of its first child."""
    worker = await both_types(wire)
    await wire.start()
    (await (await worker.poll()).complete(*commands)).ok()
    first = await worker.poll()
    request_id = (await wire.cancel_cooperatively(reason="enough", cleanup_timeout_seconds=60))["cancellation_request"][
        "request_id"
    ]
    claims = [first]
    while claims[-1].task["workflow_id"] != "wf":
        claims.append(await worker.poll())
    return worker, claims[-1], request_id, first


async def close_as_cancelled(claim: Claim, call_kind: str = "timer") -> None:
    """Deliver a child's own request at its first call, and end it."""
    request_id = claim.task["cancellation_request"]["request_id"]
    (await deliver(claim, request_id, call_kind=call_kind)).ok()
    (await claim.complete()).ok()


async def test_a_parent_that_waits_is_parked_until_its_child_has_ended(wire: Wire, shared_fixtures: Path) -> None:
    worker, claim, request_id, first = await parked(wire, child(cancellation_policy=WAIT))
    wire.clock.advance(2)
    (await first.post("/heartbeat")).ok()

    pending = (await deliver(claim, request_id, call_kind="child")).ok()

    assert (pending["delivered"], pending["reason"]) == (False, "cancellation_waiting_for_child")
    assert pending["claim_released"] is True
    assert await worker.idle()
    (asked,) = of_type(await wire.events(), "ChildCancellationRequested")
    theirs = (await first.post("/heartbeat")).ok()["cancellation_request"]
    assert (asked["policy"], asked["request_outcome"], asked["rejection_reason"]) == (WAIT, "accepted", None)
    assert (asked["parent_request_id"], asked["child_request_id"]) == (request_id, theirs["request_id"])
    assert theirs["request_id"] != request_id
    assert (theirs["requested_at"], theirs["cleanup_deadline_at"]) == (instant(2), instant(60))
    first.task["cancellation_request"] = theirs
    (requested,) = of_type(await wire.events(first.task["workflow_id"]), "CooperativeCancellationRequested")
    (root,) = of_type(await wire.events(), "CooperativeCancellationRequested")
    context, own = requested["cancellation"], root["cancellation"]
    for shared in ("root_request_id", "root_workflow_run_id", "requester", "source", "reason", "requested_at"):
        assert context[shared] == own[shared]
    assert context["parent_request_id"] == request_id
    assert [entry["request_id"] for entry in context["lineage"]] == [request_id, theirs["request_id"]]

    await close_as_cancelled(first)

    resumed = await worker.poll()
    (resolved,) = of_type(await wire.events(), "ChildCancellationResolved")
    assert (resolved["child_status"], resolved["child_terminal_event_type"]) == ("cancelled", "WorkflowCancelled")
    last = (await wire.events(first.task["workflow_id"]))[-1]
    assert resolved["child_terminal_history_event_id"] == last["id"]
    (await deliver(resumed, request_id, sequence=2, call_kind="child")).refused(
        409, "cancellation_wait_boundary_mismatch"
    )
    assert (await deliver(resumed, request_id, call_kind="child")).ok()["delivered"] is True
    (await resumed.complete()).ok()
    assert (await wire.describe())["status"] == "cancelled"
    assert (await wire.event_types()).count("ChildCancellationRequested") == 1
    check_events(shared_fixtures, await wire.events())


@pytest.mark.parametrize("policy", ["try_cancel", "abandon", None])
async def test_other_policies_deliver_at_once(wire: Wire, policy: str | None) -> None:
    fields = {} if policy is None else {"cancellation_policy": policy}
    _, claim, request_id, first = await parked(wire, child(**fields))

    assert (await deliver(claim, request_id, call_kind="child")).ok()["delivered"] is True

    asked = "cancellation_request" in (await first.post("/heartbeat")).ok()
    assert asked is (policy == "try_cancel")
    assert ("ChildCancellationRequested" in await wire.event_types()) is asked


async def test_a_child_that_was_cancelled_before_keeps_its_own_request(wire: Wire) -> None:
    worker = await both_types(wire)
    await wire.start()
    (await (await worker.poll()).complete(child(cancellation_policy="try_cancel"))).ok()
    first = await worker.poll()
    own = await wire.cancel_cooperatively(first.task["workflow_id"], cleanup_timeout_seconds=100)
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]

    (await deliver(await worker.poll(), request_id, call_kind="child")).ok()

    (asked,) = of_type(await wire.events(), "ChildCancellationRequested")
    assert (asked["request_outcome"], asked["rejection_reason"]) == ("rejected", "cancellation_root_conflict")
    assert asked["child_request_id"] == own["cancellation_request"]["request_id"]
    assert asked["child_cleanup_deadline_at"] == instant(100)
    assert (await wire.event_types(first.task["workflow_id"])).count("CooperativeCancellationRequested") == 1


async def test_a_child_that_ends_in_time_by_itself_resumes_the_parent_too(wire: Wire) -> None:
    worker, claim, request_id, first = await parked(wire, child(cancellation_policy=WAIT))
    (await deliver(claim, request_id, call_kind="child")).ok()

    (await first.complete()).ok()

    (resolved,) = of_type(await wire.events(), "ChildCancellationResolved")
    assert resolved["child_status"] == "completed"
    assert (await deliver(await worker.poll(), request_id, call_kind="child")).ok()["delivered"] is True


async def test_a_group_waits_for_the_children_whose_policy_says_so(wire: Wire) -> None:
    members = flat(child(cancellation_policy=WAIT), child("d"), child("d", cancellation_policy="try_cancel"),
                   kind="child")  # fmt: skip
    worker, claim, request_id, first = await parked(wire, *members)
    pending = (await deliver(claim, request_id, call_kind="parallel", sequence_span=3)).ok()
    assert pending["reason"] == "cancellation_waiting_for_child"
    assert first.task["workflow_type"] == "c"

    (await first.complete()).ok()

    resumed = await worker.poll()
    assert resumed.task["workflow_id"] == "wf"
    assert (await deliver(resumed, request_id, call_kind="parallel", sequence_span=3)).ok()["delivered"] is True


async def test_the_deadline_ends_parent_and_child_alike(wire: Wire) -> None:
    _, claim, request_id, first = await parked(wire, child(cancellation_policy=WAIT))
    (await deliver(claim, request_id, call_kind="child")).ok()
    wire.clock.advance(60)

    (await first.post("/heartbeat")).refused(409, "run_closed")

    for workflow_id in ("wf", first.task["workflow_id"]):
        assert (await wire.describe(workflow_id))["status"] == "cancelled"


async def test_a_parent_that_ends_passes_its_request_on_to_a_child_with_that_close_policy(wire: Wire) -> None:
    _, claim, request_id, first = await parked(wire, child(parent_close_policy="request_cancellation"))
    (await deliver(claim, request_id, call_kind="child")).ok()
    assert "cancellation_request" not in (await first.post("/heartbeat")).ok()

    (await claim.complete()).ok()

    theirs = (await first.post("/heartbeat")).ok()["cancellation_request"]
    assert theirs["cleanup_deadline_at"] == instant(60)
    (requested,) = of_type(await wire.events(first.task["workflow_id"]), "CooperativeCancellationRequested")
    assert requested["cancellation"]["parent_request_id"] == request_id


LEFT = {"parent_close_policy": "request_cancellation"}


async def left_behind(wire: Wire, *commands: dict[str, Any]) -> tuple[Worker, Claim, list[Claim]]:
    """Start a parent with children and wake it; give its claim, and those of the children."""
    worker = await both_types(wire)
    await wire.start()
    (await (await worker.poll()).complete(*commands, {"type": "start_timer", "delay_seconds": 2})).ok()
    children = [await worker.poll() for _ in commands]
    wire.clock.advance(2)
    return worker, await worker.poll(), children


async def terminated(wire: Wire, claim: Claim) -> None:
    (await wire.control("POST", "/workflows/wf/terminate", {})).ok()


async def cancelled(wire: Wire, claim: Claim) -> None:
    (await wire.control("POST", "/workflows/wf/cancel", {})).ok()


async def completed(wire: Wire, claim: Claim) -> None:
    (await claim.complete()).ok()


async def failed(wire: Wire, claim: Claim) -> None:
    (await claim.complete({"type": "fail_workflow", "message": "broken"})).ok()


@pytest.mark.parametrize("end", [completed, failed, terminated, cancelled])
async def test_a_parent_that_was_not_asked_is_the_origin_of_one_request_for_all_it_leaves(
    wire: Wire, shared_fixtures: Path, end: Callable[[Wire, Claim], Awaitable[None]]
) -> None:
    _, claim, children = await left_behind(wire, child(**LEFT), child(), child(**LEFT))
    parent_status = end.__name__

    await end(wire, claim)

    events = await wire.events()
    closing, origin = events[-2:]
    assert [event["event_type"] for event in events].count("ParentCloseCancellationRequested") == 1
    assert origin["event_type"] == "ParentCloseCancellationRequested"
    assert origin["payload"]["parent_terminal_history_event_id"] == closing["id"]
    assert origin["payload"]["parent_terminal_event_type"] == closing["event_type"]
    described = await wire.describe()
    assert described["status"] == parent_status, "what its children are asked does not change how it ended"
    context = origin["payload"]["cancellation"]
    assert (context["requested_at"], context["cleanup_deadline_at"]) == (instant(2), instant(602))
    assert (context["source"], context["root_workflow_run_id"]) == ("parent_close_policy", described["run_id"])
    asked: list[Any] = [(await one.post("/heartbeat")).ok().get("cancellation_request") for one in children]
    assert asked[1] is None, "one with another policy is left alone"
    for one, request in ((children[0], asked[0]), (children[2], asked[2])):
        assert (request["requested_at"], request["cleanup_deadline_at"]) == (instant(2), instant(602))
        history = await wire.events(one.task["workflow_id"])
        (requested,) = of_type(history, "CooperativeCancellationRequested")
        theirs = requested["cancellation"]
        assert theirs["parent_request_id"] == theirs["root_request_id"] == context["request_id"]
        assert [entry["request_id"] for entry in theirs["lineage"]] == [context["request_id"], request["request_id"]]
        check_events(shared_fixtures, history)
    check_events(shared_fixtures, events)


async def test_children_of_a_timed_out_parent_share_the_time_from_its_end_on(wire: Wire) -> None:
    worker = await both_types(wire)
    await wire.start(run_timeout_seconds=30)
    (await (await worker.poll()).complete(child(**LEFT))).ok()
    first = await worker.poll()
    wire.clock.advance(29)
    (await first.post("/heartbeat")).refused(409, "lease_expired")
    wire.clock.advance(1)

    again = await worker.poll()

    assert again.task["workflow_id"] == first.task["workflow_id"]
    assert again.task["cancellation_request"]["cleanup_deadline_at"] == instant(630)
    assert (await wire.event_types())[-2:] == ["WorkflowTimedOut", "ParentCloseCancellationRequested"]


async def test_a_child_cleans_up_within_the_time_and_is_closed_at_its_end(wire: Wire) -> None:
    worker, claim, (first, second) = await left_behind(wire, child(**LEFT), child(**LEFT))
    (await claim.complete()).ok()
    first.task["cancellation_request"] = (await first.post("/heartbeat")).ok()["cancellation_request"]

    await close_as_cancelled(first)
    wire.clock.advance(599.9)
    await worker.idle()
    assert (await wire.describe(second.task["workflow_id"]))["status"] == "running"
    wire.clock.advance(0.1)

    assert await worker.idle()
    for one in (first, second):
        assert (await wire.describe(one.task["workflow_id"]))["status"] == "cancelled"
    assert (await wire.event_types())[-2:] == ["WorkflowCompleted", "ParentCloseCancellationRequested"]


async def test_a_child_that_was_asked_before_keeps_its_own_request_when_the_parent_closes(wire: Wire) -> None:
    _, claim, (first,) = await left_behind(wire, child(**LEFT))
    own = await wire.cancel_cooperatively(first.task["workflow_id"], cleanup_timeout_seconds=5)

    (await claim.complete()).ok()

    assert (await first.post("/heartbeat")).ok()["cancellation_request"] == own["cancellation_request"]
    again = await wire.cancel_cooperatively(first.task["workflow_id"], cleanup_timeout_seconds=900)
    assert (again["duplicate"], again["cancellation_request"]) == (True, own["cancellation_request"])


async def test_a_parent_that_goes_on_as_new_is_no_origin(wire: Wire) -> None:
    _, claim, (first,) = await left_behind(wire, child(**LEFT))

    (await claim.complete({"type": "continue_as_new", "arguments": ENVELOPE})).ok()

    assert "cancellation_request" not in (await first.post("/heartbeat")).ok()
    run_id = claim.task["run_id"]
    reply = await wire.control("GET", f"/workflows/wf/runs/{run_id}/history")
    assert reply.ok()["events"][-1]["event_type"] == "WorkflowContinuedAsNew"


async def test_a_parent_without_such_children_records_no_origin(wire: Wire) -> None:
    _, claim, _ = await left_behind(wire, child(parent_close_policy="terminate"), child())
    (await claim.complete()).ok()
    assert (await wire.event_types())[-1] == "WorkflowCompleted"


async def test_what_a_closed_parent_asked_for_outlives_the_server(tmp_path: Path) -> None:
    database, clock = tmp_path / "db", ManualClock()
    async with running_server(database=database, clock=clock) as wire:
        _, claim, (first,) = await left_behind(wire, child(**LEFT))
        (await claim.complete()).ok()
        before = await wire.events()
    clock.advance(100)
    async with running_server(database=database, clock=clock) as wire:
        (await wire.control("POST", "/workflows/wf/terminate", {})).refused(409, "run_not_active")
        assert await wire.events() == before, "one end, one origin"
        worker = Worker(wire)
        again = await worker.poll()
        assert again.task["cancellation_request"]["cleanup_deadline_at"] == instant(602)
        (await again.post("/heartbeat")).ok()
        clock.advance(500)
        (await again.post("/heartbeat")).refused(409, "run_closed")
        assert (await wire.describe(first.task["workflow_id"]))["status"] == "cancelled"


async def test_a_child_of_a_child_inherits_the_time_of_the_first_close(wire: Wire) -> None:
    worker, claim, (first,) = await left_behind(wire, child(**LEFT))
    (await first.complete(child("d", **LEFT))).ok()
    grandchild = await worker.poll()
    assert grandchild.task["workflow_type"] == "d"
    (await claim.complete()).ok()
    wire.clock.advance(5)
    resumed = await worker.poll()

    await close_as_cancelled(resumed, call_kind="child")

    theirs = (await grandchild.post("/heartbeat")).ok()["cancellation_request"]
    assert theirs["cleanup_deadline_at"] == instant(602)
    (requested,) = of_type(await wire.events(grandchild.task["workflow_id"]), "CooperativeCancellationRequested")
    assert len(requested["cancellation"]["lineage"]) == 3
    assert "ParentCloseCancellationRequested" not in await wire.event_types(first.task["workflow_id"])


async def test_a_local_call_is_no_part_of_a_child_boundary(wire: Wire) -> None:
    _, claim, request_id, _ = await parked(wire, child(cancellation_policy=WAIT))
    (await claim.prepare(sequence=2, **describe_call())).refused(409, "cancellation_requested")
    (await deliver(claim, request_id)).refused(409, "cancellation_delivery_shape_mismatch")
