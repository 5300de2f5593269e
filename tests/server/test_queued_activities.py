"""Queued activities: leased once, ended once, retried by policy, timed out by the clock (worker.md §3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from server.test_cancellation import deliver
from server.wire import ENVELOPE, TEXT, Reply, Wire, Worker, instant, retries

CALL = {"type": "schedule_activity", "activity_type": "charge", "arguments": ENVELOPE}


@dataclass
class Hand:
    """A worker for queued activities, and the lease it holds."""

    worker: Worker
    task: dict[str, Any]

    async def post(self, operation: str, *, version: str = "1.20", **body: Any) -> Reply:
        identity = {"activity_attempt_id": self.task["activity_attempt_id"], "lease_owner": self.task["lease_owner"]}
        path = f"/activity-tasks/{self.task['task_id']}/{operation}"
        return await self.worker.wire.worker(path, {**identity, **body}, version=version)

    async def complete(self) -> Reply:
        return await self.post("complete", result=ENVELOPE)

    async def fail(self, **failure: Any) -> Reply:
        return await self.post("fail", failure={"message": "no", "type": "Bad", **failure})


@pytest.fixture
async def hands(wire: Wire) -> Worker:
    registered = Worker(wire, worker_id="hands")
    await registered.register(supported_workflow_types=[], supported_activity_types=["charge"])
    return registered


async def poll(hands: Worker, **changes: Any) -> dict[str, Any] | None:
    body = {"worker_id": hands.worker_id, "task_queue": "q", "timeout_seconds": 0, **changes}
    reply = (await hands.wire.worker("/activity-tasks/poll", body)).ok()
    task: dict[str, Any] | None = reply["task"]
    assert reply["poll_status"] == ("empty" if task is None else "leased")
    assert reply["server_time"]
    return task


async def take(hands: Worker) -> Hand:
    task = await poll(hands)
    assert task is not None, "no activity was ready"
    return Hand(hands, task)


async def schedule(wire: Wire, worker: Worker, **options: Any) -> None:
    await wire.start()
    (await (await worker.poll()).complete({**CALL, **options})).ok()


async def test_an_activity_is_leased_completed_and_wakes_its_workflow(
    wire: Wire, worker: Worker, hands: Worker
) -> None:
    await schedule(wire, worker, start_to_close_timeout=30, schedule_to_close_timeout=90, heartbeat_timeout=10)
    assert await worker.idle()

    hand = await take(hands)
    done = (await hand.complete()).ok()

    assert (hand.task["activity_type"], hand.task["attempt_number"]) == ("charge", 1)
    assert hand.task["arguments"] == ENVELOPE
    assert hand.task["lease_owner"] == "hands"
    assert hand.task["retry_policy"] == {"heartbeat_timeout": 10}
    assert hand.task["deadlines"]["start_to_close"] == instant(30)
    assert hand.task["deadlines"]["schedule_to_close"] == instant(90)
    assert hand.task["deadlines"]["heartbeat"] == instant(10)
    assert (done["outcome"], done["recorded"], done["reason"]) == ("completed", True, None)
    kinds = await wire.event_types()
    assert kinds[2:] == ["ActivityScheduled", "ActivityStarted", "ActivityCompleted"]
    completed = (await wire.events())[-1]["payload"]
    assert (completed["result"], completed["payload_codec"], completed["sequence"]) == (TEXT, "avro", 1)
    claim = await worker.poll()
    assert claim.task["task_id"] == done["next_task_id"]


async def test_one_activity_goes_to_one_worker_and_one_poll_request_gets_it_again(
    wire: Wire, worker: Worker, hands: Worker
) -> None:
    await schedule(wire, worker)

    first = await poll(hands, poll_request_id="r")
    again = await poll(hands, poll_request_id="r")
    other = await poll(hands, poll_request_id="s")

    assert first is not None
    assert again == first
    assert other is None


async def test_a_parked_poll_is_woken_by_an_activity_and_not_by_workflow_tasks(
    wire: Wire, worker: Worker, hands: Worker
) -> None:
    got: list[dict[str, Any] | None] = []

    async def wait() -> None:
        got.append(await poll(hands, timeout_seconds=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await wire.start()
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        (await (await worker.poll()).complete(CALL)).ok()

    assert got[0] is not None


async def test_a_second_report_is_stale_and_tells_what_became_of_the_first(
    wire: Wire, worker: Worker, hands: Worker
) -> None:
    await schedule(wire, worker)
    hand = await take(hands)
    (await hand.complete()).ok()

    again = (await hand.complete()).refused(409, "stale_attempt")
    (await hand.fail()).refused(409, "stale_attempt")

    assert (again["activity_status"], again["attempt_status"]) == ("completed", "completed")
    assert (await wire.event_types()).count("ActivityCompleted") == 1


async def test_what_is_not_ours_is_refused(wire: Wire, worker: Worker, hands: Worker) -> None:
    await schedule(wire, worker)
    hand = await take(hands)

    unknown = await wire.worker("/activity-tasks/T/complete", {"activity_attempt_id": "A", "lease_owner": "hands"})
    unknown.refused(404, "task_not_found")
    (await hand.post("complete", activity_attempt_id="A")).refused(404, "attempt_not_found")
    (await hand.post("complete", lease_owner="other")).refused(409, "lease_owner_mismatch")
    (await hand.complete()).ok()


async def test_a_failure_is_retried_after_its_pause_and_then_final(wire: Wire, worker: Worker, hands: Worker) -> None:
    await schedule(wire, worker, retry_policy=retries(2, 5))
    first = await take(hands)
    assert (await first.fail()).ok()["next_task_id"] is None
    assert await poll(hands) is None
    assert await worker.idle()

    wire.clock.advance(5)
    second = await take(hands)
    assert second.task["attempt_number"] == 2
    assert second.task["activity_attempt_id"] != first.task["activity_attempt_id"]
    (await first.complete()).refused(409, "stale_attempt")
    (await second.fail(class_="x", code=7)).ok()

    kinds = await wire.event_types()
    assert kinds[3:] == ["ActivityStarted", "ActivityRetryScheduled", "ActivityStarted", "ActivityFailed"]
    retry, failed = (await wire.events())[4]["payload"], (await wire.events())[-1]["payload"]
    assert (retry["retry_reason"], retry["retry_backoff_seconds"], retry["retry_after_attempt"]) == ("failure", 5, 1)
    assert retry["retry_available_at"] == instant(5)
    assert (failed["message"], failed["exception_type"], failed["code"]) == ("no", "Bad", 7)
    await worker.poll()


async def test_the_last_pause_is_repeated_when_there_are_more_retries(
    wire: Wire, worker: Worker, hands: Worker
) -> None:
    await schedule(wire, worker, retry_policy=retries(4, 1, 5))
    for pause in (1, 5, 5):
        (await (await take(hands)).fail()).ok()
        wire.clock.advance(pause - 0.5)
        assert await poll(hands) is None
        wire.clock.advance(0.5)
    await take(hands)


@pytest.mark.parametrize(
    ("policy", "failure"),
    [
        ({**retries(3, 0, 0), "non_retryable_error_types": ["Bad"]}, {}),
        (retries(3, 0, 0), {"non_retryable": True}),
        (None, {}),
    ],
)
async def test_what_may_not_be_retried_is_final_at_once(
    wire: Wire, worker: Worker, hands: Worker, policy: Any, failure: dict[str, Any]
) -> None:
    await schedule(wire, worker, **({} if policy is None else {"retry_policy": policy}))

    (await (await take(hands)).fail(**failure)).ok()

    assert (await wire.event_types())[-1] == "ActivityFailed"
    assert await poll(hands) is None


@pytest.mark.parametrize(
    ("options", "taken", "after", "kind"),
    [
        ({"schedule_to_start_timeout": 10}, False, 10, "schedule_to_start"),
        ({"schedule_to_close_timeout": 10}, False, 10, "schedule_to_close"),
        ({"start_to_close_timeout": 10}, True, 10, "start_to_close"),
        ({"start_to_close_timeout": 30, "heartbeat_timeout": 10}, True, 10, "heartbeat"),
        ({"schedule_to_close_timeout": 10, "start_to_close_timeout": 10}, True, 10, "schedule_to_close"),
    ],
)
async def test_each_timeout_ends_the_activity_at_its_instant(
    wire: Wire, worker: Worker, hands: Worker, options: dict[str, Any], taken: bool, after: float, kind: str
) -> None:
    await schedule(wire, worker, **options)
    hand = await take(hands) if taken else None

    wire.clock.advance(after - 0.1)
    assert await worker.idle()
    wire.clock.advance(0.1)
    await worker.poll()

    last = (await wire.events())[-1]
    assert (last["event_type"], last["payload"]["timeout_kind"]) == ("ActivityTimedOut", kind)
    if hand is not None:
        (await hand.complete()).refused(409, "stale_attempt")
        stop = (await hand.post("heartbeat")).ok()
        assert (stop["can_continue"], stop["heartbeat_recorded"]) == (False, False)


async def test_a_heartbeat_keeps_the_attempt_alive_and_a_renewal_keeps_its_lease_only(
    wire: Wire, worker: Worker, hands: Worker
) -> None:
    await schedule(wire, worker, heartbeat_timeout=10, start_to_close_timeout=1000)
    hand = await take(hands)
    wire.clock.advance(8)
    beat = (await hand.post("heartbeat", details={"offset": 3}, current=1, total=2)).ok()
    wire.clock.advance(8)
    renewed = (await hand.post("renew-lease")).ok()

    assert (beat["can_continue"], beat["cancel_requested"], beat["heartbeat_recorded"]) == (True, False, True)
    assert beat["last_heartbeat_at"] == instant(8)
    assert renewed["lease_expires_at"] == instant(16 + 60)
    assert renewed["heartbeat_deadline_at"] == instant(18)
    assert renewed["attempt_number"] == 1
    recorded = (await wire.events())[-1]
    assert recorded["event_type"] == "ActivityHeartbeatRecorded"
    assert recorded["payload"]["progress"] == {"details": {"offset": 3}, "current": 1, "total": 2}
    wire.clock.advance(2)
    (await hand.complete()).refused(409, "stale_attempt")


async def test_a_lost_lease_is_another_attempt_or_the_end(wire: Wire, worker: Worker, hands: Worker) -> None:
    await schedule(wire, worker, retry_policy=retries(2, 0))
    lost = await take(hands)
    wire.clock.advance(60)

    second = await take(hands)
    assert second.task["attempt_number"] == 2
    (await lost.complete()).refused(409, "stale_attempt")
    wire.clock.advance(60)
    await worker.poll()

    failed = (await wire.events())[-1]
    assert (failed["event_type"], failed["payload"]["exception_type"]) == ("ActivityFailed", "ActivityLeaseLost")


async def test_a_worker_that_registers_again_loses_its_attempts(wire: Wire, worker: Worker, hands: Worker) -> None:
    await schedule(wire, worker, retry_policy=retries(2, 0))
    lost = await take(hands)

    await hands.register(supported_workflow_types=[], supported_activity_types=["charge"])

    (await lost.complete()).refused(409, "stale_attempt")
    assert (await take(hands)).task["attempt_number"] == 2


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("end", ["lost", "timed_out", "failed", "completed"])
async def test_whoever_looks_after_an_attempt_that_is_over_is_told_to_stop(
    wire: Wire, worker: Worker, hands: Worker, end: str, attempts: int
) -> None:
    """Also when another attempt has followed; what is told is how this one ended, and to its owner only."""
    await schedule(wire, worker, retry_policy=retries(attempts, 30), start_to_close_timeout=70)
    hand = await take(hands)
    if end in ("failed", "completed"):
        (await (hand.fail() if end == "failed" else hand.complete())).ok()
    elif end == "lost":
        wire.clock.advance(60)
    else:
        wire.clock.advance(50)
        (await hand.post("heartbeat")).ok()
        wire.clock.advance(20)
    before = await wire.event_types()
    followed = attempts == 2 and end != "completed"
    assert before[-1].startswith("ActivityRetryScheduled") is followed

    beat, status = (await hand.post("heartbeat")).ok(), (await hand.post("status")).ok()
    for told in (beat, status):
        assert (told["can_continue"], told["cancel_requested"]) == (False, False)
        assert (told["heartbeat_recorded"], told["reason"]) == (False, "attempt_closed")
        assert (told["activity_attempt_id"], told["lease_owner"]) == (hand.task["activity_attempt_id"], "hands")
    wanted = "pending" if followed else {"lost": "failed"}.get(end, end)
    for told in (status, (await hand.complete()).refused(409, "stale_attempt")):
        assert (told["attempt_status"], told["activity_status"], told["task_status"]) == (end, wanted, "completed")
    assert await wire.event_types() == before
    if not followed:
        (await wire.control("POST", "/workflows/wf/terminate", {})).ok()  # which is not what has ended the attempt
        late = (await hand.post("heartbeat")).ok()
        assert (late["reason"], late["cancel_requested"]) == ("attempt_closed", False)
        assert late["run_closed_reason"] == "terminated"
    stranger = Hand(hands, {**hand.task, "lease_owner": "other"})
    for operation in ("heartbeat", "status", "complete"):
        assert (await stranger.post(operation)).refused(409, "lease_owner_mismatch")["lease_owner"] == "hands"


async def test_status_changes_nothing_and_needs_the_newest_protocol(wire: Wire, worker: Worker, hands: Worker) -> None:
    await schedule(wire, worker, start_to_close_timeout=30)
    hand = await take(hands)
    before = await wire.event_types()

    running = (await hand.post("status")).ok()

    assert (running["can_continue"], running["cancel_requested"], running["reason"]) == (True, False, None)
    assert (running["activity_status"], running["attempt_status"]) == ("running", "running")
    assert running["deadlines"]["start_to_close"] == instant(30)
    assert await wire.event_types() == before
    assert (await hand.post("status", version="1.19")).reason == "activity_attempt_status_unavailable"


@pytest.mark.parametrize(("end", "reason"), [("cancel", "run_cancelled"), ("terminate", "run_terminated")])
async def test_a_closed_run_takes_no_report_and_tells_the_handler_to_stop(
    wire: Wire, worker: Worker, hands: Worker, end: str, reason: str
) -> None:
    await schedule(wire, worker)
    hand = await take(hands)
    (await wire.control("POST", f"/workflows/wf/{end}", {})).ok()

    told = (await hand.post("heartbeat")).ok()
    ignored = (await hand.complete()).refused(409, reason)

    assert (told["can_continue"], told["cancel_requested"], told["reason"]) == (False, True, reason)
    assert ignored["outcome"] == "ignored"
    assert "ActivityCompleted" not in await wire.event_types()


@pytest.mark.parametrize("policy", ["try_cancel", "wait_cancellation_completed"])
async def test_a_cooperative_cancellation_fences_the_activity_and_waits_for_the_stop_by_policy(
    wire: Wire, worker: Worker, hands: Worker, policy: str
) -> None:
    await schedule(wire, worker, cancellation_policy=policy)
    hand = await take(hands)
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    claim = await worker.poll()

    delivery = await deliver(claim, request_id, call_kind="activity")

    waits = policy == "wait_cancellation_completed"
    assert (delivery.ok()["reason"] == "cancellation_waiting_for_activity") == waits
    assert (await hand.post("heartbeat")).ok()["reason"] == "cancellation_requested"
    (await hand.complete()).refused(409, "stale_attempt")
    receipt = (await hand.post("acknowledge-cancellation", request_id=request_id)).ok()
    again = (await hand.post("acknowledge-cancellation", request_id=request_id)).ok()
    assert (receipt["acknowledged"], receipt["duplicate"], again["duplicate"]) == (True, False, True)
    assert again["history_event_id"] == receipt["history_event_id"]
    if waits:
        (await deliver(await worker.poll(), request_id, call_kind="activity")).ok()
    kinds = await wire.event_types()
    assert kinds.count("ActivityCancelled") == kinds.count("ActivityCancellationAcknowledged") == 1
    assert "CooperativeCancellationDelivered" in kinds


async def test_a_receipt_for_something_else_is_refused(wire: Wire, worker: Worker, hands: Worker) -> None:
    await schedule(wire, worker)
    hand = await take(hands)

    (await hand.post("acknowledge-cancellation", request_id="R")).refused(409, "cancellation_request_mismatch")
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    early = await hand.post("acknowledge-cancellation", request_id=request_id)

    early.refused(409, "activity_cancellation_not_recorded")
    (await hand.complete()).ok()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"activity_type": " "}, "commands.0.activity_type"),
        ({"start_to_close_timeout": 0}, "commands.0.start_to_close_timeout"),
        ({"heartbeat_timeout": 9, "start_to_close_timeout": 3}, "commands.0.heartbeat_timeout"),
        ({"cancellation_policy": "abandon"}, "commands.0.cancellation_policy"),
        ({"cancellation_policy": "maybe"}, "commands.0.cancellation_policy"),
        ({"worker_session": {"session_id": " "}}, "commands.0.worker_session.session_id"),
        ({"parallel_group_path": []}, "commands.0.parallel_group_path"),
        ({"parallel_group_id": "x"}, "commands.0.parallel_group_path"),
    ],
)
async def test_a_command_that_cannot_be_kept_is_refused(
    wire: Wire, worker: Worker, changes: dict[str, Any], field: str
) -> None:
    await wire.start()
    reply = await (await worker.poll()).complete({**CALL, **changes})

    assert field in reply.refused(422, "validation_failed")["errors"]
    assert "ActivityScheduled" not in await wire.event_types()
