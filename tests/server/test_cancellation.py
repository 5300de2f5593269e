"""Cooperative cancellation: request, stop, acknowledgement, delivery, cleanup, deadline (cancellation.md §3 to §7)."""

from __future__ import annotations

from typing import Any

import pytest

from proctor.server.rules.book import Settings
from server.wire import COOPERATIVE, Attempt, Claim, Wire, Worker, instant, retries, running_server, side_effect


async def deliver(claim: Claim, request_id: str, *, sequence: int = 1, **changes: Any) -> Any:
    body = {"request_id": request_id, "sequence": sequence, "call_kind": "local_activity", "sequence_span": 1}
    return await claim.post("/deliver-cancellation", **{**body, **changes})


async def running_call(wire: Wire, worker: Worker, **call: Any) -> tuple[Claim, Attempt]:
    await wire.start()
    claim = await worker.poll()
    return claim, await claim.prepared(**call)


async def test_a_request_is_accepted_once_and_never_changes(wire: Wire, worker: Worker) -> None:
    await wire.start()
    first = await wire.control(
        "POST", "/workflows/wf/request-cancellation", {"reason": "stop", "cleanup_timeout_seconds": 60}
    )
    body = first.ok(202)
    assert (body["accepted"], body["duplicate"], body["reason"]) == (True, False, None)
    seen = body["cancellation_request"]
    assert seen == {
        "request_id": seen["request_id"],
        "requested_at": instant(0),
        "cleanup_deadline_at": instant(60),
        "delivery_sequence": None,
        "delivered_at": None,
        "history_refresh_page_token": "MA==",
    }
    wire.clock.advance(5)
    again = await wire.control("POST", "/workflows/wf/request-cancellation", {"cleanup_timeout_seconds": 3600})
    assert again.ok()["cancellation_request"] == seen
    assert again.body["duplicate"] is True
    event = (await wire.events())[-1]
    assert event["event_type"] == "CooperativeCancellationRequested"
    assert event["workflow_command_id"] == seen["request_id"] == event["payload"]["workflow_command_id"]
    context = event["payload"]["cancellation"]
    assert context["schema"] == "durable-workflow.cancellation-context/v1"
    assert context["lineage"] == [
        {"request_id": seen["request_id"], "workflow_instance_id": "wf", "workflow_run_id": body["run_id"]}
    ]
    assert context["root_request_id"] == seen["request_id"]
    assert (await wire.event_types()).count("CooperativeCancellationRequested") == 1


async def test_who_can_be_cancelled(wire: Wire, worker: Worker) -> None:
    path = "/workflows/wf/request-cancellation"
    (await wire.control("POST", path, {})).refused(404, "instance_not_found")
    run_id = (await wire.start())["run_id"]
    other = await wire.control("POST", "/workflows/wf/runs/other/request-cancellation", {})
    other.refused(404, "run_not_found")
    too_long = await wire.control("POST", path, {"cleanup_timeout_seconds": 3601})
    assert list(too_long.refused(422, "validation_failed")["errors"]) == ["cleanup_timeout_seconds"]
    (await (await worker.poll()).complete()).ok()
    closed = await wire.control("POST", f"/workflows/wf/runs/{run_id}/request-cancellation", {})
    assert closed.refused(409, "run_not_active")["run_status"] == "completed"


async def test_a_claim_that_cannot_deliver_blocks_the_request(wire: Wire) -> None:
    plain = Worker(wire, capabilities=())
    await plain.register()
    await wire.start()
    claim = await plain.poll()
    refused = (await wire.control("POST", "/workflows/wf/request-cancellation", {})).refused(
        409, "active_claim_cancellation_not_supported"
    )
    assert (refused["task_id"], refused["workflow_task_attempt"]) == (claim.task["task_id"], 1)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    wire.clock.advance(10)  # the lease has ended, though nobody has taken the task back
    (await wire.control("POST", "/workflows/wf/request-cancellation", {})).ok(202)


async def test_only_cooperative_workers_get_a_cancelled_run(wire: Wire, worker: Worker) -> None:
    plain = Worker(wire, "plain", capabilities=())
    await plain.register()
    await wire.start()
    await wire.cancel_cooperatively()
    blocked = (await plain.try_poll()).ok()
    assert (blocked["task"], blocked["poll_status"]) == (None, "compatibility_blocked")
    await wire.start("other")
    assert (await plain.poll()).task["workflow_id"] == "other"
    worker.version = "1.19"
    assert await worker.idle()
    worker.version = "1.20"
    task = (await worker.poll()).task
    assert task["workflow_id"] == "wf"
    assert task["resume_source_kind"] == "cancellation_request"
    assert task["cancellation_request"]["request_id"] == task["resume_source_id"]


async def test_leases_are_short_while_a_request_is_pending() -> None:
    async with running_server(Settings(lease_seconds=60)) as wire:
        worker = Worker(wire)
        await worker.register()
        await wire.start()
        claim = await worker.poll()
        assert claim.task["lease_expires_at"] == instant(60)
        await wire.cancel_cooperatively(cleanup_timeout_seconds=15)
        assert (await claim.post("/heartbeat")).ok()["lease_expires_at"] == instant(10)
        wire.clock.advance(8)
        assert (await claim.post("/heartbeat")).ok()["lease_expires_at"] == instant(15)


async def test_a_running_attempt_is_told_stopped_acknowledged_and_delivered(wire: Wire, worker: Worker) -> None:
    claim, attempt = await running_call(wire, worker)
    request = (await wire.cancel_cooperatively(reason="enough"))["cancellation_request"]
    stop = (await attempt.control()).ok()
    assert (stop["active"], stop["stop_required"], stop["renewed"]) == (False, True, False)
    assert stop["reason"] == "cancellation_requested"
    assert stop["fenced"] is True
    requested, cancelled = (await wire.events())[-2:]
    assert stop["cancellation_request"] == requested["payload"]["cancellation"]
    assert stop["cancellation_history_event_id"] == cancelled["id"]
    assert cancelled["event_type"] == "ActivityCancelled"
    assert cancelled["payload"]["workflow_command_id"] == request["request_id"]
    assert (await attempt.control()).ok()["cancellation_history_event_id"] == cancelled["id"]

    refused = (await attempt.outcome()).refused(409, "cancellation_requested")
    assert (refused["recorded"], refused["fenced"]) == (False, True)

    (await attempt.acknowledge("other")).refused(409, "cancellation_request_mismatch")
    receipt = (await attempt.acknowledge(request["request_id"])).ok()
    assert (receipt["acknowledged"], receipt["duplicate"], receipt["reason"]) == (True, False, None)
    repeat = (await attempt.acknowledge(request["request_id"])).ok()
    assert repeat == {**receipt, "duplicate": True}
    evidence = (await wire.events())[-1]
    assert evidence["id"] == receipt["history_event_id"]
    assert evidence["payload"]["callback_state"] == "stopped"
    assert evidence["payload"]["received_after_deadline"] is False
    assert evidence["payload"]["cancellation_history_event_id"] == cancelled["id"]
    assert evidence["payload"]["task"]["lease_owner"] == "w"

    beat = (await claim.post("/heartbeat")).ok()
    assert beat["cancellation_request"] == request
    body = (await deliver(claim, request["request_id"])).ok()
    assert body["delivered"] is True
    assert (body["sequence"], body["call_kind"], body["sequence_span"]) == (1, "local_activity", 1)
    assert (body["operation_sequence"], body["operation_sequence_span"]) == (None, 1)
    assert body["workflow_run_id"] == claim.task["run_id"]
    assert (await deliver(claim, request["request_id"])).ok() == body
    event = (await wire.events())[-1]
    assert event["event_type"] == "CooperativeCancellationDelivered"
    assert event["payload"]["cancellation"] == requested["payload"]["cancellation"]
    assert "sequence_span" not in event["payload"]
    seen = (await claim.post("/heartbeat")).ok()["cancellation_request"]
    assert (seen["delivery_sequence"], seen["delivered_at"]) == (1, instant(0))
    assert (await wire.event_types()).count("ActivityCancelled") == 1

    failure = {"type": "fail_workflow", "message": "cancelled", "exception_type": "WorkflowCancelled"}
    assert (await claim.complete(failure)).ok()["run_status"] == "cancelled"
    end = (await wire.events())[-1]
    assert (end["event_type"], end["workflow_command_id"]) == ("WorkflowCancelled", request["request_id"])


async def test_a_result_of_cleanup_ends_the_run_as_cancelled_too(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    (await deliver(claim, request_id)).ok()
    assert (await claim.complete()).ok()["run_status"] == "cancelled"
    assert "WorkflowCompleted" not in await wire.event_types()


async def test_a_run_that_ends_before_delivery_ends_as_it_says(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    await wire.cancel_cooperatively()
    assert (await claim.complete()).ok()["run_status"] == "completed"


async def test_delivery_without_a_prior_control_fences_the_attempt(wire: Wire, worker: Worker) -> None:
    claim, attempt = await running_call(wire, worker)
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    (await attempt.acknowledge(request_id)).refused(409, "activity_cancellation_not_recorded")
    assert (await deliver(claim, request_id)).ok()["delivered"] is True
    assert (await wire.event_types())[-2:] == ["ActivityCancelled", "CooperativeCancellationDelivered"]
    (await attempt.acknowledge(request_id)).ok()


async def test_the_original_owner_is_told_to_stop_after_a_takeover(wire: Wire, worker: Worker) -> None:
    _, attempt = await running_call(wire, worker)
    wire.clock.advance(10)
    second = Worker(wire, "second")
    await second.register()
    claim = await second.poll()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    assert (await attempt.control()).ok()["reason"] == "cancellation_requested"
    await worker.register()
    (await attempt.acknowledge(request_id)).ok()
    (await deliver(claim, request_id)).ok()


async def test_a_recorded_outcome_is_never_fenced(wire: Wire, worker: Worker) -> None:
    claim, attempt = await running_call(wire, worker)
    first = (await attempt.outcome()).ok()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    assert (await attempt.outcome()).ok() == {**first, "duplicate": True}
    (await deliver(claim, request_id)).refused(409, "cancellation_delivery_not_eligible")
    (await deliver(claim, request_id, sequence=2)).ok()
    assert "ActivityCancelled" not in await wire.event_types()


async def test_where_a_delivery_may_not_go(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("c", 1, side_effect())).ok()
    (await deliver(claim, "nothing")).refused(409, "cancellation_request_mismatch")
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    (await deliver(claim, "other")).refused(409, "cancellation_request_mismatch")
    (await deliver(claim, request_id, sequence=1)).refused(409, "cancellation_delivery_shape_mismatch")
    (await deliver(claim, request_id, sequence=3)).refused(409, "cancellation_delivery_sequence_mismatch")
    spread = await deliver(claim, request_id, sequence=2, sequence_span=2)
    spread.refused(409, "invalid_cancellation_delivery")
    handle = await deliver(claim, request_id, sequence=2, call_kind="selection_handle")
    handle.refused(409, "invalid_cancellation_delivery")
    unknown = await deliver(claim, request_id, sequence=2, call_kind="side_effect")
    assert list(unknown.refused(422, "validation_failed")["errors"]) == ["call_kind"]
    (await deliver(claim, request_id, sequence=2, call_kind="parallel", sequence_span=3)).ok()
    (await deliver(claim, request_id, sequence=2)).refused(409, "cancellation_delivery_mismatch")


async def test_only_a_cooperative_holder_delivers(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    stranger = Claim(worker, {**claim.task, "lease_owner": "other"})
    (await deliver(stranger, request_id)).refused(409, "lease_owner_mismatch")
    later = Claim(worker, {**claim.task, "workflow_task_attempt": 2})
    (await deliver(later, request_id)).refused(409, "workflow_task_attempt_mismatch")
    nowhere = Claim(worker, {**claim.task, "task_id": "nowhere"})
    (await deliver(nowhere, request_id)).refused(404, "task_not_found")
    worker.version = "1.19"
    (await deliver(claim, request_id)).refused(409, "cooperative_cancellation_not_supported")


async def test_a_worker_that_was_not_heard_of_for_too_long_delivers_nothing(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    request_id = (await wire.cancel_cooperatively(cleanup_timeout_seconds=3600))["cancellation_request"]["request_id"]
    for _ in range(38):
        wire.clock.advance(8)
        (await claim.post("/heartbeat")).ok()  # which renews the claim, but says nothing about the worker
    (await deliver(claim, request_id)).refused(409, "stale_worker_registration")
    (await wire.worker("/heartbeat", {"worker_id": "w"})).ok()
    (await deliver(claim, request_id)).ok()


async def test_wait_policy_holds_the_delivery_until_the_stop_is_known(wire: Wire, worker: Worker) -> None:
    claim, attempt = await running_call(wire, worker, cancellation_policy="wait_cancellation_completed")
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    pending = (await deliver(claim, request_id)).ok()
    assert (pending["delivered"], pending["claim_released"]) == (False, True)
    assert pending["reason"] == "cancellation_waiting_for_activity"
    for key in ("request_id", "sequence", "call_kind", "sequence_span", "operation_sequence"):
        assert pending[key] is None
    assert await worker.idle()
    assert (await attempt.control()).ok()["stop_required"] is True
    receipt = (await attempt.acknowledge(request_id)).ok()
    resumed = await worker.poll()
    assert resumed.task["resume_source_kind"] == "activity_cancellation_acknowledged"
    assert resumed.task["resume_source_id"] == receipt["history_event_id"]
    (await deliver(resumed, request_id, sequence=2)).refused(409, "cancellation_wait_boundary_mismatch")
    assert (await deliver(resumed, request_id)).ok()["delivered"] is True


async def test_wait_policy_delivers_at_once_when_the_stop_is_already_known(wire: Wire, worker: Worker) -> None:
    claim, attempt = await running_call(wire, worker, cancellation_policy="wait_cancellation_completed")
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    (await attempt.control()).ok()
    (await attempt.acknowledge(request_id)).ok()
    assert (await deliver(claim, request_id)).ok()["delivered"] is True


async def test_wait_policy_needs_no_receipt_of_a_call_between_attempts(wire: Wire, worker: Worker) -> None:
    call: dict[str, Any] = {"cancellation_policy": "wait_cancellation_completed", "retry_policy": retries(2, 30)}
    _, attempt = await running_call(wire, worker, **call)
    (await attempt.outcome("failed", message="no")).ok()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    claim = await worker.poll()
    assert (await deliver(claim, request_id)).ok()["delivered"] is True
    assert (await wire.event_types())[-2:] == ["ActivityCancelled", "CooperativeCancellationDelivered"]


async def test_a_run_with_a_policy_goes_only_to_workers_that_honour_it(wire: Wire, worker: Worker) -> None:
    await running_call(wire, worker, cancellation_policy="try_cancel")
    wire.clock.advance(10)
    without = Worker(wire, "without", capabilities=COOPERATIVE)
    await without.register()
    assert await without.idle()
    await worker.poll()


@pytest.mark.parametrize("call", [{}, {"start_to_close_timeout": 30, "heartbeat_timeout": 5}])
async def test_cleanup_calls_need_the_proof_and_end_with_the_deadline(
    wire: Wire, worker: Worker, call: dict[str, Any]
) -> None:
    await wire.start()
    claim = await worker.poll()
    request_id = (await wire.cancel_cooperatively(cleanup_timeout_seconds=20))["cancellation_request"]["request_id"]
    (await claim.prepare(**call)).refused(409, "cancellation_requested")
    early = {"request_id": request_id, "delivery_history_event_id": "none"}
    (await claim.prepare(**call, cancellation_cleanup=early)).refused(409, "local_activity_cleanup_authority_mismatch")
    (await deliver(claim, request_id)).ok()
    proof = {"request_id": request_id, "delivery_history_event_id": (await wire.events())[-1]["id"]}
    (await claim.prepare(sequence=2, **call)).refused(409, "cancellation_requested")
    (await claim.prepare(sequence=1, **call, cancellation_cleanup=proof)).refused(
        409, "local_activity_cleanup_authority_mismatch"
    )
    attempt = await claim.prepared(sequence=2, **call, cancellation_cleanup=proof)
    receipt = attempt.receipt
    assert receipt["cancellation_cleanup"] == {
        **proof,
        "root_request_id": request_id,
        "cleanup_deadline_at": instant(20),
    }
    assert receipt["start_to_close_deadline_at"] == instant(20)
    assert receipt["schedule_to_close_deadline_at"] == instant(20)
    assert receipt["heartbeat_deadline_at"] == instant(5 if call else 20)
    assert (await attempt.control()).ok()["active"] is True
    wire.clock.advance(4)
    (await attempt.beat()).ok()
    wire.clock.advance(5)
    assert (await attempt.control()).reason == ("local_activity_deadline_expired" if call else None)
    wire.clock.advance(11)
    stop = (await attempt.control()).ok()
    assert (stop["reason"], stop["fenced"]) == ("cancellation_deadline_expired", True)
    assert (await wire.event_types())[-2:] == ["ActivityCancelled", "WorkflowCancelled"]


async def test_the_cleanup_deadline_closes_the_run_and_late_receipts_are_kept(wire: Wire, worker: Worker) -> None:
    claim, attempt = await running_call(wire, worker)
    request_id = (await wire.cancel_cooperatively(cleanup_timeout_seconds=5))["cancellation_request"]["request_id"]
    wire.clock.advance(5)
    (await deliver(claim, request_id)).refused(409, "run_cancelled")
    description = await wire.describe()
    assert (description["status"], description["closed_reason"]) == ("cancelled", "cancelled")
    stop = (await attempt.control()).ok()
    assert stop["reason"] == "cancellation_deadline_expired"
    (await attempt.outcome()).refused(409, "cancellation_deadline_expired")
    (await attempt.acknowledge(request_id)).ok()
    last = (await wire.events())[-1]
    assert last["payload"]["received_after_deadline"] is True
    again = await wire.control("POST", "/workflows/wf/request-cancellation", {})
    assert again.ok()["duplicate"] is True
    assert await worker.idle()


@pytest.mark.parametrize(
    ("timeouts", "ended"),
    [
        ({"run_timeout_seconds": 30}, ("cancelled", None)),
        ({"execution_timeout_seconds": 30}, ("cancelled", None)),
        ({"run_timeout_seconds": 10}, ("failed", "run")),
        ({"run_timeout_seconds": 15, "execution_timeout_seconds": 10}, ("failed", "execution")),
        ({"run_timeout_seconds": 10, "execution_timeout_seconds": 15}, ("failed", "run")),
    ],
)
async def test_of_several_deadlines_that_have_passed_the_earliest_has_ended_the_run(
    wire: Wire, worker: Worker, timeouts: dict[str, Any], ended: tuple[str, str | None]
) -> None:
    await wire.start(**timeouts)
    await wire.cancel_cooperatively(cleanup_timeout_seconds=20)
    wire.clock.advance(60)
    status = (await wire.describe())["status"]
    assert (status, (await wire.events())[-1]["payload"].get("timeout_kind")) == ended


async def test_waiting_workers_are_not_asked_again_and_again(wire: Wire, worker: Worker) -> None:
    """A shielded workflow that waits ends its claim; the undelivered request alone makes no new task."""
    await wire.start()
    await wire.cancel_cooperatively()
    claim = await worker.poll()
    waiting = {"type": "WorkflowTaskWaitingForHistory", "message": "Workflow task waiting for scheduled history."}
    assert (await claim.post("/fail", failure=waiting)).ok()["next_task_id"] is None
    assert await worker.idle()


async def test_a_request_during_a_claim_makes_a_successor(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    await wire.cancel_cooperatively()
    waiting = {"type": " workflowtaskwaitingforhistory ", "message": "m"}
    successor = (await claim.post("/fail", failure=waiting)).ok()["next_task_id"]
    assert (await worker.poll()).task["task_id"] == successor


async def test_a_server_below_1_20_has_none_of_it() -> None:
    async with running_server(Settings(protocol="1.19")) as wire:
        await wire.start()
        for name in ("wf", "nobody"):
            asked = await wire.control("POST", f"/workflows/{name}/request-cancellation", {})
            asked.refused(409, "cooperative_cancellation_not_supported")
        worker = Worker(wire, capabilities=(), version="1.19")
        await worker.register()
        claim = await worker.poll()
        refused = (await claim.prepare()).refused(409, "prepared_local_activity_not_supported")
        assert refused["unavailable"] == ["server_protocol", "request_protocol"]
        (await deliver(claim, "r")).refused(409, "cooperative_cancellation_not_supported")
