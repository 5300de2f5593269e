"""outcome: what is published, what retries, and that the first report stays (prepared-local.md §2.6, §6)."""

from __future__ import annotations

from typing import Any

import pytest

from server.wire import ENVELOPE, TEXT, Attempt, Wire, Worker, instant, retries


async def test_success_is_recorded_and_keeps_the_claim(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    attempt = await claim.prepared()
    receipt = (await attempt.outcome(payload_codec="avro")).ok()
    assert (receipt["recorded"], receipt["duplicate"], receipt["reason"]) == (True, False, None)
    assert (receipt["claim_released"], receipt["created_task_ids"]) == (False, [])
    assert receipt["event_type"] == "ActivityCompleted"
    assert receipt["worker_attempt_id"] == "n1"
    event = (await wire.events())[-1]
    assert event["id"] == receipt["event_id"]
    assert event["payload"]["result"] == TEXT
    assert event["payload"]["payload_codec"] == "avro"
    assert event["payload"]["sequence"] == 1
    assert event["payload"]["activity_attempt_id"] == attempt.id
    assert event["payload"]["local_outcome"]["submitted_outcome"] == "completed"
    assert event["payload"]["activity"]["status"] == "completed"
    assert (await claim.complete()).ok()["run_status"] == "completed"


async def test_a_failure_with_attempts_left_releases_the_claim_and_retries(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    attempt = await claim.prepared(retry_policy=retries(2, 3), schedule_to_close_timeout=60)
    wire.clock.advance(1)
    receipt = (await attempt.outcome("failed", message="boom", exception_type="Oops")).ok()
    assert receipt["event_type"] == "ActivityRetryScheduled"
    assert receipt["claim_released"] is True
    (successor,) = receipt["created_task_ids"]
    payload = (await wire.events())[-1]["payload"]
    assert payload["retry_reason"] == "failure"
    assert payload["retry_available_at"] == instant(4)
    assert payload["retry_backoff_seconds"] == 3
    assert payload["retry_task_id"] == successor
    assert payload["retry_of_task_id"] == claim.task["task_id"]
    assert payload["retry_after_attempt"] == 1
    assert (payload["exception_type"], payload["message"]) == ("Oops", "boom")
    (await claim.complete()).refused(409, "task_not_leased")
    assert await worker.idle()
    wire.clock.advance(3)
    again = await worker.poll()
    assert again.task["task_id"] == successor
    assert again.task["workflow_task_attempt"] == 1
    second = await again.prepared("n2", retry_policy=retries(2, 3), schedule_to_close_timeout=60)
    assert second.receipt["attempt_number"] == 2
    assert second.receipt["activity_execution_id"] == attempt.receipt["activity_execution_id"]
    assert second.receipt["schedule_to_close_deadline_at"] == attempt.receipt["schedule_to_close_deadline_at"]


async def test_the_last_attempt_fails_the_call(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    receipt = (await attempt.outcome("failed", message="boom", exception_type="Oops")).ok()
    assert (receipt["event_type"], receipt["claim_released"]) == ("ActivityFailed", False)
    payload = (await wire.events())[-1]["payload"]
    assert (payload["exception_type"], payload["message"]) == ("Oops", "boom")
    assert payload["failure_category"] == "activity"
    assert payload["exception"]["type"] == "Oops"


@pytest.mark.parametrize(
    "report",
    [{"non_retryable": True}, {"exception_type": "Final"}],
)
async def test_a_final_failure_does_not_retry(wire: Wire, worker: Worker, report: dict[str, Any]) -> None:
    await wire.start()
    policy = {"max_attempts": 5, "non_retryable_error_types": ["Final"]}
    attempt = await (await worker.poll()).prepared(retry_policy=policy)
    receipt = (await attempt.outcome("failed", message="", **report)).ok()
    assert receipt["event_type"] == "ActivityFailed"
    assert (await wire.events())[-1]["payload"]["non_retryable"] is True


async def test_a_missing_exception_type_gets_the_default(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    (await attempt.outcome("failed", message="m")).ok()
    assert (await wire.events())[-1]["payload"]["exception_type"] == "RuntimeException"


async def test_gaps_beyond_the_list_are_zero(wire: Wire, worker: Worker) -> None:
    await wire.start()
    call: dict[str, Any] = {"retry_policy": retries(3, 2)}
    (await (await (await worker.poll()).prepared(**call)).outcome("failed", message="1")).ok()
    wire.clock.advance(2)
    (await (await (await worker.poll()).prepared("n2", **call)).outcome("failed", message="2")).ok()
    assert (await wire.events())[-1]["payload"]["retry_backoff_seconds"] == 0
    assert (await (await worker.poll()).prepared("n3", **call)).receipt["attempt_number"] == 3


@pytest.mark.parametrize(
    ("timeouts", "kind", "attempts", "event_type"),
    [
        ({"start_to_close_timeout": 4}, "start_to_close", 1, "ActivityTimedOut"),
        ({"start_to_close_timeout": 4}, "start_to_close", 2, "ActivityRetryScheduled"),
        ({"heartbeat_timeout": 4}, "heartbeat", 2, "ActivityRetryScheduled"),
        ({"schedule_to_close_timeout": 4}, "schedule_to_close", 2, "ActivityTimedOut"),
    ],
)
@pytest.mark.parametrize("reported", ["timed_out", "completed"])
async def test_a_passed_deadline_wins_over_the_report(
    wire: Wire,
    worker: Worker,
    timeouts: dict[str, Any],
    kind: str,
    attempts: int,
    event_type: str,
    reported: str,
) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(retry_policy=retries(attempts), **timeouts)
    wire.clock.advance(4)
    assert (await attempt.outcome(reported)).ok()["event_type"] == event_type
    payload = (await wire.events())[-1]["payload"]
    assert payload["timeout_kind"] == kind
    assert payload["failure_category"] == "timeout"
    assert payload["local_outcome"]["submitted_outcome"] == reported
    assert payload["activity_attempt"]["status"] == "timed_out"
    if event_type == "ActivityRetryScheduled":
        assert payload["retry_reason"] == "timeout"


async def test_a_timeout_before_its_time_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(start_to_close_timeout=5)
    wire.clock.advance(4.999999)
    (await attempt.outcome("timed_out")).refused(409, "local_activity_timeout_not_due")
    (await attempt.outcome()).ok()


async def test_the_total_time_counts_over_all_attempts_and_ends_a_waiting_call(wire: Wire, worker: Worker) -> None:
    """The retry would come after the total deadline; the task comes at the deadline and finds the call timed out."""
    await wire.start()
    call: dict[str, Any] = {"retry_policy": retries(3, 60), "schedule_to_close_timeout": 8}
    attempt = await (await worker.poll()).prepared(**call)
    (await attempt.outcome("failed", message="no")).ok()
    wire.clock.advance(8)
    claim = await worker.poll()
    event = claim.task["history_events"][-1]
    assert (event["event_type"], event["payload"]["timeout_kind"]) == ("ActivityTimedOut", "schedule_to_close")
    (await claim.prepare("n2", **call)).refused(409, "local_activity_preparation_mismatch")
    (await claim.complete()).ok()


@pytest.mark.parametrize(
    "report",
    [
        {"outcome": "cancelled"},
        {"outcome": "completed"},
        {"outcome": "completed", "result": ENVELOPE, "message": "m"},
        {"outcome": "completed", "result": {"codec": "json", "blob": "1"}},
        {"outcome": "completed", "result": ENVELOPE, "payload_codec": "json"},
        {"outcome": "failed"},
        {"outcome": "failed", "message": 1},
        {"outcome": "failed", "message": "m", "exception_type": "x" * 256},
        {"outcome": "failed", "message": "m", "non_retryable": "yes"},
        {"outcome": "timed_out", "message": "m"},
        "completed",
    ],
)
async def test_a_malformed_report_is_refused(wire: Wire, worker: Worker, report: Any) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    refused = (await attempt.post("outcome", report=report)).refused(409, "invalid_local_activity_outcome")
    assert refused["recorded"] is False
    (await attempt.outcome()).ok()


async def test_the_identical_report_gets_the_same_receipt_for_ever(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared(retry_policy=retries(2))
    first = (await attempt.outcome("failed", message="no")).ok()
    (await attempt.outcome("failed", message="other")).refused(409, "local_activity_outcome_mismatch")
    wire.clock.advance(100)
    successor = await worker.poll()
    await wire.cancel_cooperatively()
    second = (await attempt.outcome("failed", message="no")).ok()
    assert second == {**first, "duplicate": True}
    await worker.register()
    assert (await attempt.outcome("failed", message="no")).ok() == second
    assert successor.task["task_id"] in second["created_task_ids"]


async def test_nobody_else_may_ask_for_the_receipt(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    attempt = await claim.prepared()
    (await attempt.outcome()).ok()
    claim.task["lease_owner"] = "other"
    (await Attempt(claim, attempt.receipt).outcome()).refused(409, "prepared_local_activity_not_supported")


async def test_a_late_report_of_a_lost_claim_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    wire.clock.advance(10)
    (await attempt.outcome()).refused(409, "workflow_claim_expired")
    await worker.poll()
    refused = (await attempt.outcome()).refused(409, "workflow_claim_mismatch")
    assert refused["recorded"] is False


async def test_a_replaced_registration_publishes_nothing(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    await worker.register()
    assert (await attempt.outcome()).refused(409, "stale_worker_registration")["recorded"] is False


async def test_a_closed_run_publishes_nothing(wire: Wire, worker: Worker) -> None:
    await wire.start()
    attempt = await (await worker.poll()).prepared()
    (await wire.control("POST", "/workflows/wf/cancel", {})).ok()
    (await attempt.outcome()).refused(409, "run_closed")
    assert await wire.event_types() == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "WorkflowCancelled",
    ]
