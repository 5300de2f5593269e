"""control and heartbeat: who may go on, which lease and which deadline moves (prepared-local.md §2.4, §2.5)."""

from __future__ import annotations

from typing import Any

import pytest

from server.wire import Attempt, Claim, Wire, Worker, instant, retries


async def test_renewal_moves_both_leases_and_no_deadline(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(
        start_to_close_timeout=30, schedule_to_close_timeout=60, heartbeat_timeout=20
    )
    wire.clock.advance(6)
    body = (await attempt.control()).ok()
    assert (body["active"], body["renewed"], body["stop_required"], body["reason"]) == (True, True, False, None)
    assert body["lease_expires_at"] == body["workflow_lease_expires_at"] == instant(16)
    for key in ("start_to_close", "schedule_to_close", "heartbeat"):
        assert body[f"{key}_deadline_at"] == attempt.receipt[f"{key}_deadline_at"]
    assert body["heartbeat_recorded"] is False
    assert body["heartbeat_history_event_id"] is None
    assert body["task_status"] == "leased"
    assert body["server_time"] == instant(6)
    wire.clock.advance(9)
    assert (await attempt.control()).ok()["lease_expires_at"] == instant(25)


async def test_without_renewal_it_only_looks(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    wire.clock.advance(6)
    for reply in (await attempt.control(renew=False), await attempt.post("control")):
        body = reply.ok()
        assert (body["active"], body["renewed"]) == (True, False)
        assert body["lease_expires_at"] == instant(10)


async def test_a_heartbeat_moves_its_deadline_and_renews_no_lease(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(heartbeat_timeout=5)
    wire.clock.advance(3)
    body = (await attempt.beat(offset=10)).ok()
    assert (body["active"], body["renewed"], body["heartbeat_recorded"]) == (True, False, True)
    assert body["heartbeat_deadline_at"] == instant(8)
    assert body["lease_expires_at"] == body["workflow_lease_expires_at"] == instant(10)
    event = (await wire.events())[-1]
    assert event["event_type"] == "ActivityHeartbeatRecorded"
    assert event["id"] == body["heartbeat_history_event_id"]
    assert event["payload"]["progress"] == {"details": {"offset": 10}}
    assert event["payload"]["heartbeat_at"] == instant(3)
    wire.clock.advance(4)
    assert (await attempt.control()).ok()["heartbeat_deadline_at"] == instant(8)


async def test_a_heartbeat_without_timeout_keeps_the_deadline_null(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    reply = await attempt.post("heartbeat", progress={})
    assert reply.ok()["heartbeat_deadline_at"] is None
    assert (await wire.events())[-1]["payload"]["progress"] == {}


@pytest.mark.parametrize(
    "progress",
    [{"details": "text"}, {"details": 1}, {"percent": 3}, "text", {"details": {"blob": "x" * 70_000}}],
)
async def test_bad_progress_is_refused(wire: Wire, worker: Worker, progress: Any) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    (await attempt.post("heartbeat", progress=progress)).refused(409, "invalid_local_activity_heartbeat")
    assert "ActivityHeartbeatRecorded" not in await wire.event_types()


async def test_progress_may_be_a_list(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    (await attempt.post("heartbeat", progress={"details": [1, 2]})).ok()


def assert_stopped(body: dict[str, Any]) -> None:
    assert (body["active"], body["renewed"], body["stop_required"]) == (False, False, True)
    assert body["heartbeat_recorded"] is False


@pytest.mark.parametrize(
    ("timeouts", "kind"),
    [
        ({"start_to_close_timeout": 4}, "start_to_close"),
        ({"heartbeat_timeout": 4}, "heartbeat"),
        ({"start_to_close_timeout": 4, "heartbeat_timeout": 4}, "heartbeat"),
        ({"start_to_close_timeout": 4, "schedule_to_close_timeout": 4}, "schedule_to_close"),
    ],
)
async def test_a_passed_deadline_stops(wire: Wire, worker: Worker, timeouts: dict[str, Any], kind: str) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(**timeouts)
    wire.clock.advance(4)
    body = (await attempt.control()).refused(409, "local_activity_deadline_expired")
    assert_stopped(body)
    assert body["timeout_kind"] == kind
    assert_stopped((await attempt.beat()).refused(409, "local_activity_deadline_expired"))


async def test_an_ended_lease_stops(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    wire.clock.advance(10)
    assert_stopped((await attempt.control()).refused(409, "workflow_claim_expired"))
    assert_stopped((await attempt.control()).refused(409, "workflow_claim_mismatch"))


async def test_the_lease_of_an_attempt_may_end_before_that_of_its_task(wire: Wire, worker: Worker) -> None:
    """A task heartbeat renews the claim only; it is control that keeps an attempt alive."""
    await wire.start()
    claim = await worker.poll()
    attempt = await claim.prepared()
    wire.clock.advance(6)
    (await claim.post("/heartbeat")).ok()
    wire.clock.advance(4)
    assert_stopped((await attempt.control()).refused(409, "local_activity_lease_expired"))


async def test_a_replaced_registration_stops(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    await worker.register()
    assert_stopped((await attempt.control()).refused(409, "stale_worker_registration"))
    assert_stopped((await attempt.beat()).refused(409, "stale_worker_registration"))


async def test_a_terminated_run_stops(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    (await wire.control("POST", "/workflows/wf/terminate", {"reason": "enough"})).ok()
    assert_stopped((await attempt.control()).refused(409, "run_closed"))


async def test_a_run_out_of_time_stops(wire: Wire, worker: Worker) -> None:
    await wire.start(run_timeout_seconds=5)
    attempt = await (await worker.poll()).prepared()
    wire.clock.advance(5)
    assert_stopped((await attempt.control()).refused(409, "run_deadline_expired"))


async def test_a_finished_attempt_is_stale(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(retry_policy=retries(2))
    (await attempt.outcome("failed", message="no")).ok()
    assert_stopped((await attempt.control()).refused(409, "stale_activity_attempt"))


async def test_unknown_attempts_and_strangers_are_told_apart(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    attempt = await claim.prepared()
    ghost = Attempt(claim, {"activity_attempt_id": "ghost"})
    (await ghost.control()).refused(404, "activity_attempt_not_found")
    elsewhere = Attempt(Claim(worker, {**claim.task, "task_id": "other"}), attempt.receipt)
    (await elsewhere.control()).refused(404, "activity_attempt_not_found")
    for change in ({"lease_owner": "other"}, {"workflow_task_attempt": 2}):
        stranger = Attempt(Claim(worker, {**claim.task, **change}), attempt.receipt)
        refused = (await stranger.control()).refused(409, "prepared_local_activity_not_supported")
        assert refused["unavailable"] == ["original_prepared_local_claim"]
