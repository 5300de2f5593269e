"""Cancellation at a group with local members: what is fenced, what is waited for, what its clean-up may do."""

from __future__ import annotations

from typing import Any

import pytest

from server.groups import TIMER, flat
from server.local_groups import admitted, descriptor, local, prepared
from server.test_cancellation import deliver
from server.wire import (
    WITH_GROUPS,
    Claim,
    Wire,
    Worker,
    instant,
)


@pytest.fixture
async def worker(wire: Wire) -> Worker:
    registered = Worker(wire, capabilities=WITH_GROUPS)
    await registered.register()
    return registered


async def group_delivery(claim: Claim, request_id: str, span: int) -> dict[str, Any]:
    reply = await deliver(claim, request_id, call_kind="parallel", sequence_span=span)
    body: dict[str, Any] = reply.ok()
    return body


async def test_a_delivery_at_the_group_fences_all_that_is_open(wire: Wire, worker: Worker) -> None:
    group = flat(local(), local(), local(), TIMER, kind="mixed")
    claim = await admitted(wire, worker, group)
    done, running = await prepared(claim, group, 1), await prepared(claim, group, 2)
    (await done.outcome()).ok()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    (await claim.prepare("n3", sequence=3, **descriptor(group[2]))).refused(409, "cancellation_requested")
    for kind, span in (("local_activity", 1), ("parallel", 3)):
        refused = await deliver(claim, request_id, call_kind=kind, sequence_span=span)
        refused.refused(409, "cancellation_delivery_shape_mismatch")

    assert (await group_delivery(claim, request_id, 4))["delivered"] is True

    events = await wire.events()
    cancelled = [event["payload"]["sequence"] for event in events if event["event_type"] == "ActivityCancelled"]
    assert cancelled == [2, 3]
    assert (events[-2]["event_type"], events[-2]["payload"]["sequence"]) == ("TimerCancelled", 4)
    delivered = events[-1]["payload"]
    assert (delivered["call_kind"], delivered["sequence"], delivered["sequence_span"]) == ("parallel", 1, 4)
    (await running.outcome()).refused(409, "cancellation_requested")
    assert (await running.control()).ok()["stop_required"] is True
    (await running.acknowledge(request_id)).ok()


async def test_a_delivery_waits_for_every_started_member_whose_policy_says_so(wire: Wire, worker: Worker) -> None:
    patient = local(cancellation_policy="wait_cancellation_completed")
    group = flat(patient, local(), patient, patient)
    claim = await admitted(wire, worker, group)
    one, _, three = [await prepared(claim, group, sequence) for sequence in (1, 2, 3)]
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]

    pending = await group_delivery(claim, request_id, 4)
    assert (pending["delivered"], pending["reason"]) == (False, "cancellation_waiting_for_activity")
    assert await worker.idle()
    (await three.acknowledge(request_id)).ok()
    between = await worker.poll()
    assert between.task["resume_source_kind"] == "activity_cancellation_acknowledged"
    assert (await group_delivery(between, request_id, 4))["delivered"] is False
    assert await worker.idle()
    (await one.acknowledge(request_id)).ok()
    last = await worker.poll()
    assert (await group_delivery(last, request_id, 4))["delivered"] is True
    kinds = await wire.event_types()
    assert kinds.count("ActivityCancelled") == 4
    assert kinds.count("CooperativeCancellationDelivered") == 1


async def test_a_group_that_failed_before_the_request_is_no_boundary(wire: Wire, worker: Worker) -> None:
    group = flat(local(), local())
    claim = await admitted(wire, worker, group)
    (await (await prepared(claim, group, 1)).outcome("failed", message="no")).ok()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    refused = await deliver(claim, request_id, call_kind="parallel", sequence_span=2)
    refused.refused(409, "cancellation_delivery_not_eligible")


async def test_a_group_of_cleanup_needs_the_proof_of_each_local_member_and_ends_with_the_deadline(
    wire: Wire, worker: Worker
) -> None:
    await wire.start()
    claim = await worker.poll()
    request_id = (await wire.cancel_cooperatively(cleanup_timeout_seconds=20))["cancellation_request"]["request_id"]
    (await deliver(claim, request_id)).ok()
    proof = {"request_id": request_id, "delivery_history_event_id": (await wire.events())[-1]["id"]}
    other = {**proof, "delivery_history_event_id": "none"}
    for members, reason in (
        ((local(cancellation_cleanup=proof), local()), "cancellation_requested"),
        ((local(cancellation_cleanup=proof), local(cancellation_cleanup=other)),
         "local_activity_cleanup_authority_mismatch"),
    ):  # fmt: skip
        (await claim.checkpoint_group("g", 2, *flat(*members, base=2))).refused(409, reason)
    group = flat(
        local(cancellation_cleanup=proof), local(cancellation_cleanup=proof, schedule_to_close_timeout=60), TIMER,
        base=2, kind="mixed",
    )  # fmt: skip
    before = len(await wire.events())
    (await claim.checkpoint_group("g", 2, *group)).ok()

    opened = (await wire.events())[before:]
    whole = {**proof, "root_request_id": request_id, "cleanup_deadline_at": instant(20)}
    assert [event["payload"]["local_group_admission"]["cancellation_cleanup"] for event in opened[:2]] == [whole] * 2
    attempt = await prepared(claim, group, 3)
    assert attempt.receipt["cancellation_cleanup"] == whole
    assert attempt.receipt["schedule_to_close_deadline_at"] == instant(20)
    wire.clock.advance(9)
    (await attempt.control()).ok()
    wire.clock.advance(8)
    lease = (await attempt.control()).ok()["lease_expires_at"]
    assert lease == instant(20), "no lease outlives the cleanup deadline"


async def test_a_group_after_an_open_wait_says_that_the_wait_is_over(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.complete({"type": "open_condition_wait", "condition_key": "k"})).ok()
    (await wire.control("POST", "/workflows/wf/signal/go", {})).ok(202)
    claim = await worker.poll()
    (await claim.checkpoint_group("g", 2, *flat(local(), base=2))).ok()
    assert (await wire.event_types())[-2:] == ["ConditionWaitSatisfied", "ActivityScheduled"]
