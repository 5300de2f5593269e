"""A cancellation reaches children by policy: never, at once, or with a parent that waits (cancellation.md §8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from server.groups import flat
from server.test_cancellation import deliver
from server.test_children import both_types, child, of_type
from server.wire import Claim, Wire, Worker, describe_call, instant

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


async def test_a_local_call_is_no_part_of_a_child_boundary(wire: Wire) -> None:
    _, claim, request_id, _ = await parked(wire, child(cancellation_policy=WAIT))
    (await claim.prepare(sequence=2, **describe_call())).refused(409, "cancellation_requested")
    (await deliver(claim, request_id)).refused(409, "cancellation_delivery_shape_mismatch")
