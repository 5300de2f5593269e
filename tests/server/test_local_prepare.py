"""prepare: what it admits, in which order it refuses, and that repeating changes nothing (prepared-local.md §2.3)."""

from __future__ import annotations

from typing import Any

import pytest

from server.wire import (
    COOPERATIVE,
    EMPTY_LIST,
    Claim,
    Wire,
    Worker,
    describe_call,
    instant,
    retries,
    side_effect,
)


async def test_admits_an_attempt_and_says_every_deadline(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(2)
    receipt = (await claim.prepare(start_to_close_timeout=30, schedule_to_close_timeout=60, heartbeat_timeout=5)).ok()
    assert receipt["prepared"] is True
    assert receipt["duplicate"] is False
    assert receipt["reason"] is None
    assert receipt["attempt_number"] == 1
    assert receipt["worker_attempt_id"] == "n1"
    assert receipt["server_time"] == instant(2)
    assert receipt["lease_expires_at"] == instant(10) == claim.task["lease_expires_at"]
    assert receipt["start_to_close_deadline_at"] == instant(32)
    assert receipt["schedule_to_close_deadline_at"] == instant(62)
    assert receipt["heartbeat_deadline_at"] == instant(7)
    assert receipt["cancellation_cleanup"] is None
    assert receipt["history_refresh_page_token"] == "MA=="
    assert "cancellation_scope_id" not in receipt


async def test_absent_timeouts_are_present_and_null(wire: Wire, worker: Worker) -> None:
    await wire.start()
    receipt = (await (await worker.poll()).prepare()).ok()
    for key in ("start_to_close", "schedule_to_close", "heartbeat"):
        assert receipt[f"{key}_deadline_at"] is None


async def test_records_scheduled_and_started_as_local(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    receipt = (await claim.prepare(start_to_close_timeout=30)).ok()
    scheduled, started = (await wire.events())[-2:]
    assert scheduled["event_type"] == "ActivityScheduled"
    assert started["event_type"] == "ActivityStarted"
    for payload in (scheduled["payload"], started["payload"]):
        assert payload["execution_mode"] == "local"
        assert payload["local_activity"] is True
        assert payload["sequence"] == 1
        assert payload["activity"]["local_activity"] is True
        assert payload["activity"]["arguments"] == EMPTY_LIST
        assert payload["workflow_task_id"] == claim.task["task_id"]
    preparation = started["payload"]["local_preparation"]
    assert preparation["version"] == 1
    assert preparation["worker_attempt_id"] == "n1"
    assert len(preparation["descriptor_fingerprint"]) == 64
    assert started["payload"]["activity_attempt_id"] == receipt["activity_attempt_id"]
    assert started["payload"]["task"]["lease_owner"] == "w"
    assert started["payload"]["activity_attempt"]["status"] == "running"


async def test_the_identical_request_gets_the_same_receipt(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    first = (await claim.prepare(start_to_close_timeout=30)).ok()
    wire.clock.advance(1)
    second = (await claim.prepare(start_to_close_timeout=30)).ok()
    assert second["duplicate"] is True
    changing = ("duplicate", "server_time")
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }
    assert (await wire.event_types()).count("ActivityStarted") == 1


@pytest.mark.parametrize("change", [{"nonce": "other"}, {"start_to_close_timeout": 31}])
async def test_another_nonce_or_descriptor_is_a_mismatch(wire: Wire, worker: Worker, change: dict[str, Any]) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.prepare(start_to_close_timeout=30)).ok()
    request = {"nonce": "n1", "start_to_close_timeout": 30, **change}
    (await claim.prepare(request.pop("nonce"), **request)).refused(409, "local_activity_preparation_mismatch")


async def test_a_call_whose_prefix_is_not_recorded_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    refused = await claim.prepare(sequence=2)
    assert refused.refused(409, "local_activity_command_prefix_not_recorded")["next_sequence"] == 1
    (await claim.checkpoint("c", 1, side_effect())).ok()
    (await claim.prepare(sequence=2)).ok()


async def test_a_number_used_by_another_command_is_a_mismatch(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("c", 1, side_effect())).ok()
    (await claim.prepare(sequence=1)).refused(409, "local_activity_preparation_mismatch")


async def test_only_the_holder_of_a_living_claim_may_prepare(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    stranger = Claim(worker, {**claim.task, "lease_owner": "someone"})
    (await stranger.prepare()).refused(409, "workflow_claim_mismatch")
    earlier = Claim(worker, {**claim.task, "workflow_task_attempt": 2})
    (await earlier.prepare()).refused(409, "workflow_claim_mismatch")
    nowhere = Claim(worker, {**claim.task, "task_id": "nowhere"})
    (await nowhere.prepare()).refused(404, "task_not_found")


async def test_an_ended_lease_is_refused_and_frees_the_task(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(10)
    (await claim.prepare()).refused(409, "workflow_claim_expired")
    (await claim.prepare()).refused(409, "workflow_claim_mismatch")
    again = await worker.poll()
    assert again.task["task_id"] == claim.task["task_id"]
    assert again.task["workflow_task_attempt"] == 2


async def test_capabilities_are_those_of_the_lease_not_of_the_moment(wire: Wire) -> None:
    plain = Worker(wire, capabilities=())
    await plain.register()
    await wire.start()
    claim = await plain.poll()
    refused = (await claim.prepare()).refused(409, "prepared_local_activity_not_supported")
    assert refused["unavailable"] == ["worker_claim_capability"]
    assert refused["minimum_protocol_version"] == "1.20"


async def test_a_request_below_1_20_is_refused_before_anything_else(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    worker.version = "1.19"
    refused = (await claim.prepare(activity_type="")).refused(409, "prepared_local_activity_not_supported")
    assert refused["unavailable"] == ["request_protocol"]


async def test_an_explicit_policy_needs_the_capability(wire: Wire) -> None:
    worker = Worker(wire, capabilities=COOPERATIVE)
    await worker.register()
    await wire.start()
    claim = await worker.poll()
    refused = (await claim.prepare(cancellation_policy="try_cancel")).refused(
        409, "prepared_local_activity_cancellation_policy_not_supported"
    )
    assert refused["unavailable"] == ["worker_claim_cancellation_policy_capability"]
    assert refused["recorded"] is False


@pytest.mark.parametrize("policy", ["abandon", None, "soon"])
async def test_no_other_policy_exists(wire: Wire, worker: Worker, policy: str | None) -> None:
    await wire.start()
    claim = await worker.poll()
    refused = (await claim.prepare(cancellation_policy=policy)).refused(
        409, "prepared_local_activity_cancellation_policy_not_supported"
    )
    assert refused["unavailable"] == ["local_activity_cancellation_policy"]
    assert refused["requested_policy"] == policy


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"type": "schedule_activity"},
        {"activity_type": " "},
        {"execution_mode": "remote"},
        {"start_to_close_timeout": 0},
        {"start_to_close_timeout": True},
        {"start_to_close_timeout": 30.0},
        {"start_to_close_timeout": 61, "schedule_to_close_timeout": 60},
        {"heartbeat_timeout": 31, "start_to_close_timeout": 30},
        {"retry_policy": {"max_attempts": 101}},
        {"retry_policy": {"max_attempts": 2, "backoff_seconds": [1, 2]}},
        {"retry_policy": {"max_attempts": 2, "backoff_seconds": [-1]}},
        {"retry_policy": {"max_tries": 2}},
        {"cancellation_scope_id": "scope"},
    ],
)
async def test_a_malformed_descriptor_is_refused(wire: Wire, worker: Worker, change: dict[str, Any]) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.prepare(**change)).refused(409, "invalid_local_activity_preparation")
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"arguments": {"codec": "json", "blob": "[]"}}, "descriptor.arguments"),
        ({"arguments": "not base64!"}, "descriptor.arguments"),
        ({"payload_codec": "json"}, "descriptor.payload_codec"),
    ],
)
async def test_a_bad_payload_is_a_validation_error_with_its_field(
    wire: Wire, worker: Worker, change: dict[str, Any], name: str
) -> None:
    await wire.start()
    claim = await worker.poll()
    assert list((await claim.prepare(**change)).refused(422, "validation_failed")["errors"]) == [name]


async def test_the_older_name_of_the_retry_list_is_read(wire: Wire, worker: Worker) -> None:
    await wire.start()
    policy = {"max_attempts": 3, "non_retryable_exceptions": ["Bad"]}
    attempt = await (await worker.poll()).prepared(retry_policy=policy)
    reply = (await attempt.outcome("failed", message="no", exception_type="Bad")).ok()
    assert reply["event_type"] == "ActivityFailed"


async def test_a_retry_before_it_is_due_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    call: dict[str, Any] = {"retry_policy": retries(2, 5)}
    attempt = await (await worker.poll()).prepared(**call)
    (await attempt.outcome("failed", message="no")).ok()
    assert await worker.idle()
    wire.clock.advance(5)
    claim = await worker.poll()
    (await claim.prepare("n1", **call)).refused(409, "local_activity_retry_worker_attempt_reused")
    changed = await claim.prepare("n2", **call, start_to_close_timeout=9)
    changed.refused(409, "local_activity_retry_preparation_mismatch")
    assert (await claim.prepare("n2", **call)).ok()["attempt_number"] == 2


async def test_a_call_that_ended_is_not_prepared_again(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await (await claim.prepared()).outcome()).ok()
    (await claim.prepare("n2")).refused(409, "local_activity_preparation_mismatch")
    (await claim.prepare("n2", sequence=2)).ok()


async def test_a_closed_run_says_so(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
    (await claim.prepare()).refused(409, "run_closed")


async def test_a_run_out_of_time_says_so(wire: Wire, worker: Worker) -> None:
    await wire.start(run_timeout_seconds=5)
    claim = await worker.poll()
    wire.clock.advance(5)
    (await claim.prepare()).refused(409, "run_deadline_expired")
    assert (await wire.event_types())[-1] == "WorkflowTimedOut"


async def test_bad_identities_are_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    for broken in ({"sequence": 0}, {"sequence": "1"}, {"worker_attempt_id": ""}, {"worker_attempt_id": "é" * 200}):
        body = {"sequence": 1, "worker_attempt_id": "n", "descriptor": describe_call(), **broken}
        (await claim.post("/local-activities/prepare", **body)).refused(409, "invalid_local_activity_preparation")


async def test_an_attempt_of_a_lost_claim_must_be_recovered_first(wire: Wire, worker: Worker) -> None:
    await wire.start()
    await (await worker.poll()).prepared()
    wire.clock.advance(10)
    claim = await worker.poll()
    (await claim.prepare("n2")).refused(409, "local_activity_previous_attempt_unresolved")
