"""The "not now" answers have the fields of transport.md §4, and both workers take them for what they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.plain import plain
from proctor.harness import OPERATIONS, REASONS, Refuse, Request, refusal
from proctor.transport.retrying import delay_after_answer

POLL = {"worker_id": "w", "task_queue": "q", "poll_request_id": "p", "timeout_seconds": 5}


def request(operation: str, body: dict[str, Any]) -> Request:
    method, path = OPERATIONS[operation]
    for name in ("task_id", "attempt_id", "worker_id"):
        path = path.replace("{" + name + "}", name.upper())
    return Request(method, path, msgspec.json.encode(body), namespace="ns")


@pytest.mark.parametrize("operation", ["poll_workflow_task", "poll_activity_task"])
def test_a_refused_poll_says_all_that_the_reference_asks_for(operation: str) -> None:
    kind = operation.removeprefix("poll_")
    common = {"retryable": True, "retry_after_seconds": 7, "task": None}
    same = {"poll_request_id": "p", "retry_same_poll_request_id": True}
    expected: dict[str, tuple[int, dict[str, Any]]] = {
        "backend_unavailable": (
            503,
            same | {"operation": operation, "outcome": "unknown", "worker_id": "w", "task_queue": "q"},
        ),
        "storage_pressure": (
            503,
            same | {"storage_state": "draining", "request_admitted": False, "claim_admitted": False},
        ),
        "storage_admission_unavailable": (
            503,
            same | {"storage_state": "fenced", "request_admitted": False, "claim_admitted": False},
        ),
        "backend_lock_pressure": (503, {"task_kind": kind, "task_queue": "q", "namespace": "ns"}),
        "long_poll_capacity_exhausted": (429, {"task_kind": kind, "task_queue": "q"}),
    }
    assert set(expected) == set(REASONS)
    for reason, (status, fields) in expected.items():
        told, body = refusal(
            reason, request(operation, POLL), retry_after_seconds=7, envelope={"protocol_version": "1"}
        )
        body.pop("error")
        assert (told, body) == (
            status,
            {**common, **fields, "reason": reason, "poll_status": reason, "protocol_version": "1"},
        )


def test_a_refused_lease_renewal_and_deregistration_name_what_did_not_happen() -> None:
    lease = {"lease_owner": "w", "workflow_task_attempt": 3}
    _, renewal = refusal("backend_unavailable", request("heartbeat_workflow_task", lease))
    _, leaving = refusal("backend_unavailable", request("deregister_worker", {"registration_token": "t"}))

    assert renewal.items() >= {
        "operation": "heartbeat_workflow_task", "outcome": "unknown", "task_id": "TASK_ID", "lease_owner": "w",
        "workflow_task_attempt": 3, "task_queue": None, "worker_id": "w",
    }.items()  # fmt: skip
    assert leaving.items() >= {
        "operation": "deregister_worker", "worker_id": "WORKER_ID", "registration_token": "t", "retryable": True
    }.items()  # fmt: skip


@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason != "long_poll_capacity_exhausted"])
def test_our_worker_waits_as_long_as_a_refusal_says_without_using_up_its_tries(reason: str) -> None:
    for operation in ("poll_workflow_task", "control"):
        status, body = refusal(reason, request(operation, POLL), retry_after_seconds=2)
        if operation.startswith("poll") and reason == "backend_lock_pressure":
            continue  # says nothing of the same request: a new poll may follow
        assert delay_after_answer(status, body, failures=99, poll=operation.startswith("poll"), jitter=0.5) == 2.0


async def test_a_refusal_carries_what_the_server_puts_into_every_answer() -> None:
    envelope = {"protocol_version": "1.20", "server_capabilities": {"query_tasks": False}}
    async with plain(answer=envelope) as (_, proxy, client):
        await client.post("/api/worker/heartbeat", json={"worker_id": "w"})
        proxy.add(Refuse(retry_after_seconds=3))
        answer = await client.post("/api/worker/heartbeat", json={"worker_id": "w"})

        assert answer.json().items() >= envelope.items()
        assert answer.headers["x-durable-workflow-protocol-version"] == "1.20"
        assert answer.headers["retry-after"] == "3"
