"""recover: a replacement closes what a lost claim left, never before its authority ended (prepared-local.md §2.8)."""

from __future__ import annotations

from typing import Any

import pytest

from server.wire import Attempt, Claim, Wire, Worker, retries


async def interrupted(wire: Wire, worker: Worker, **call: Any) -> tuple[Attempt, Claim]:
    """Prepare an attempt, let its lease end, and lease the task again."""
    await wire.start()
    attempt = await (await worker.poll()).prepared(**call)
    wire.clock.advance(10)
    return attempt, await worker.poll()


async def test_attempts_left_schedule_a_cold_replay_retry(wire: Wire, worker: Worker) -> None:
    call: dict[str, Any] = {"retry_policy": retries(2)}
    attempt, claim = await interrupted(wire, worker, **call)
    receipt = (await claim.recover(**call)).ok()
    assert (receipt["recovered"], receipt["duplicate"], receipt["reason"]) == (True, False, None)
    assert receipt["event_type"] == "ActivityRetryScheduled"
    assert receipt["callback_stop_state"] == "unknown"
    assert receipt["activity_attempt_id"] == attempt.id
    assert receipt["workflow_task_id"] == claim.task["task_id"]
    assert receipt["claim_released"] is True
    payload = (await wire.events())[-1]["payload"]
    assert payload["retry_reason"] == "cold_replay"
    assert payload["activity_attempt"]["status"] == "expired"
    recovery = payload["local_recovery"]
    assert recovery["original_lease_owner"] == "w"
    assert recovery["original_workflow_task_attempt"] == 1
    assert recovery["workflow_task_attempt"] == 2
    assert recovery["callback_stop_state"] == "unknown"
    again = await worker.poll()
    assert [again.task["task_id"]] == receipt["created_task_ids"]
    assert (await again.prepared("n2", **call)).receipt["attempt_number"] == 2


async def test_no_attempts_left_fails_the_call_and_keeps_the_claim(wire: Wire, worker: Worker) -> None:
    _, claim = await interrupted(wire, worker)
    receipt = (await claim.recover()).ok()
    assert (receipt["event_type"], receipt["claim_released"]) == ("ActivityFailed", False)
    assert receipt["created_task_ids"] == []
    (await claim.complete()).ok()


@pytest.mark.parametrize(
    ("timeouts", "attempts", "event_type", "kind"),
    [
        ({"start_to_close_timeout": 5}, 2, "ActivityRetryScheduled", "start_to_close"),
        ({"start_to_close_timeout": 5}, 1, "ActivityTimedOut", "start_to_close"),
        ({"schedule_to_close_timeout": 5}, 9, "ActivityTimedOut", "schedule_to_close"),
    ],
)
async def test_a_passed_deadline_decides(
    wire: Wire, worker: Worker, timeouts: dict[str, Any], attempts: int, event_type: str, kind: str
) -> None:
    call: dict[str, Any] = {"retry_policy": retries(attempts), **timeouts}
    _, claim = await interrupted(wire, worker, **call)
    assert (await claim.recover(**call)).ok()["event_type"] == event_type
    assert (await wire.events())[-1]["payload"]["timeout_kind"] == kind


async def test_the_identical_request_gets_the_same_receipt(wire: Wire, worker: Worker) -> None:
    call: dict[str, Any] = {"retry_policy": retries(2)}
    _, claim = await interrupted(wire, worker, **call)
    first = (await claim.recover(**call)).ok()
    assert (await claim.recover(**call)).ok() == {**first, "duplicate": True}
    (await claim.recover(start_to_close_timeout=3)).refused(409, "workflow_claim_mismatch")


async def test_a_living_attempt_is_not_recovered(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    await claim.prepared()
    (await claim.recover()).refused(409, "local_activity_previous_attempt_live")


async def test_registering_again_does_not_end_the_attempts_authority(wire: Wire, worker: Worker) -> None:
    """The task is free at once, but the handler of the predecessor may still run until its lease ends."""
    await wire.start()
    claim = await worker.poll()
    await claim.prepared()
    await worker.register()
    again = await worker.poll()
    assert again.task["sticky_replay_mode"] == "forced_cold_replay"
    (await again.recover()).refused(409, "local_activity_previous_attempt_live")
    wire.clock.advance(9)
    (await again.post("/heartbeat")).ok()
    wire.clock.advance(1)
    (await again.recover()).ok()


async def test_a_fenced_deregistration_ends_it(wire: Wire, worker: Worker) -> None:
    """A worker deregisters after its work has stopped, so a successor need not wait for the lease."""
    await wire.start()
    token = (await worker.register())["registration_token"]
    await (await worker.poll()).prepared()
    (await wire.worker("/registrations/w/deregister", {"registration_token": token})).ok()
    await worker.register()
    (await (await worker.poll()).recover()).ok()


async def test_the_claim_that_prepared_cannot_recover(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    await claim.prepared()
    wire.clock.advance(6)
    (await claim.post("/heartbeat")).ok()
    wire.clock.advance(4)
    (await claim.recover()).refused(409, "local_activity_original_claim_not_reclaimed")


async def test_it_needs_the_same_call(wire: Wire, worker: Worker) -> None:
    _, claim = await interrupted(wire, worker)
    (await claim.recover(start_to_close_timeout=3)).refused(409, "local_activity_recovery_mismatch")
    (await claim.recover(sequence=2)).refused(409, "local_activity_preparation_not_found")
    (await claim.recover(surprise=1)).refused(409, "invalid_local_activity_recovery")
    (await claim.recover(sequence=0)).refused(409, "invalid_local_activity_recovery")


async def test_a_resolved_attempt_is_stale(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await (await claim.prepared()).outcome()).ok()
    (await claim.recover()).refused(409, "stale_activity_attempt")


async def test_a_cancellation_fences_instead(wire: Wire, worker: Worker) -> None:
    attempt, claim = await interrupted(wire, worker)
    await wire.cancel_cooperatively()
    refused = (await claim.recover()).refused(409, "cancellation_requested")
    assert refused["fenced"] is True
    assert refused["recovered"] is False
    assert (await wire.events())[-1]["id"] == refused["cancellation_history_event_id"]
    stop = (await attempt.control()).ok()
    assert stop["cancellation_history_event_id"] == refused["cancellation_history_event_id"]
    (await claim.post("/heartbeat")).ok()
