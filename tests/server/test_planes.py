"""Headers, versions, credentials, envelopes and hostile requests (transport.md §1 to §3, §6, §8)."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from proctor.server.bodies import MAX_NESTING
from proctor.server.credentials import Credentials
from proctor.server.rules.book import Settings
from server.wire import Wire, Worker, instant, running_server

WORKER = "X-Durable-Workflow-Protocol-Version"
CONTROL = "X-Durable-Workflow-Control-Plane-Version"


async def test_every_worker_answer_carries_version_and_capabilities(wire: Wire, worker: Worker) -> None:
    for reply in (await worker.try_poll(), await Worker(wire, "nobody").try_poll()):
        assert reply.headers[WORKER.lower()] == "1.20"
        assert CONTROL.lower() not in reply.headers
        assert reply.body["protocol_version"] == "1.20"
        assert reply.body["server_capabilities"]["prepared_local_activities"] is True
        assert "control_plane" not in reply.body


async def test_every_control_answer_carries_its_operation(wire: Wire) -> None:
    for reply in (await wire.control("GET", "/workflows"), await wire.control("GET", "/workflows/none")):
        assert reply.headers[CONTROL.lower()] == "2"
        assert WORKER.lower() not in reply.headers
        assert reply.body["control_plane"]["operation"] in ("list", "describe")
        assert "server_capabilities" not in reply.body


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        (None, "missing_protocol_version"),
        ("1.21", "unsupported_protocol_version"),
        ("2.0", "unsupported_protocol_version"),
        ("1", "unsupported_protocol_version"),
        ("one", "unsupported_protocol_version"),
    ],
)
async def test_worker_versions(wire: Wire, requested: str | None, reason: str) -> None:
    headers = {"X-Namespace": "unknown", **({} if requested is None else {WORKER: requested})}
    reply = await wire.request("POST", "/api/worker/heartbeat", {}, headers=headers)
    body = reply.refused(400, reason)
    assert (body["supported_version"], body["requested_version"]) == ("1.20", requested)
    assert body["protocol_version"] == "1.20"


@pytest.mark.parametrize(
    ("advertised", "asked", "status"), [("1.18", "1.18", 404), ("1.18", "1.19", 400), ("1.19", "1.18", 404)]
)
async def test_an_older_server_takes_its_own_and_older_versions(advertised: str, asked: str, status: int) -> None:
    async with running_server(Settings(protocol=advertised)) as wire:
        reply = await wire.worker("/heartbeat", {"worker_id": "w"}, version=asked)
        assert reply.status == status
        assert reply.headers[WORKER.lower()] == advertised


@pytest.mark.parametrize(
    ("requested", "reason"),
    [(None, "missing_control_plane_version"), ("1", "unsupported_control_plane_version")],
)
async def test_control_versions(wire: Wire, requested: str | None, reason: str) -> None:
    headers = {} if requested is None else {CONTROL: requested}
    reply = await wire.request("GET", "/api/workflows", headers=headers)
    assert reply.refused(400, reason)["supported_version"] == "2"


async def test_namespaces_come_by_header_query_or_default(wire: Wire) -> None:
    async def ask(query: str = "", **headers: str) -> Any:
        return await wire.request("GET", f"/api/workflows{query}", headers={CONTROL: "2", **headers})

    assert (await ask()).status == 200
    assert (await ask("?namespace=default")).status == 200
    (await ask("?namespace=other")).refused(404, "namespace_not_found")
    assert (await ask("?namespace=other", **{"X-Namespace": "default"})).status == 200


async def test_credentials_are_checked_first_and_per_plane() -> None:
    credentials = Credentials(worker="worker-secret", control="control-secret")
    async with running_server(credentials=credentials) as wire:

        async def ask(path: str, token: str | None, header: str) -> Any:
            headers = {} if token is None else {"Authorization": token}
            return await wire.request("POST", path, {}, headers=headers | ({header: "9"} if header else {}))

        (await ask("/api/worker/heartbeat", None, WORKER)).refused(401, "unauthorized")
        (await ask("/api/worker/heartbeat", "Bearer guess", WORKER)).refused(401, "unauthorized")
        (await ask("/api/worker/heartbeat", "Basic worker-secret", WORKER)).refused(401, "unauthorized")
        (await ask("/api/worker/heartbeat", "Bearer control-secret", WORKER)).refused(403, "forbidden")
        (await ask("/api/workflows", "Bearer worker-secret", CONTROL)).refused(403, "forbidden")
        known = await ask("/api/worker/heartbeat", "Bearer worker-secret", WORKER)
        known.refused(400, "unsupported_protocol_version")
        for token in ("worker-secret", "control-secret"):
            headers = {"Authorization": f"bearer {token}"}
            info = await wire.request("GET", "/api/cluster/info", headers=headers)
            assert info.status == 200
            assert "secret" not in str(info.body)
        (await wire.request("GET", "/api/cluster/info")).refused(401, "unauthorized")


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (b"{", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b'{"worker_id": NaN}', 400, "invalid_json"),
        (b'{"worker_id": "\\ud800"}', 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b"[]", 422, "validation_failed"),
        (b'"text"', 422, "validation_failed"),
        (b"", 422, "validation_failed"),
        (b'{"worker_id": "w", "heartbeat_interval_seconds": 1e400}', 400, "invalid_json"),
        (b"{" + b" " * (16 * 1024 * 1024) + b"}", 413, "request_too_large"),
    ],
)
async def test_hostile_bodies(wire: Wire, raw: bytes, status: int, reason: str) -> None:
    (await wire.worker("/heartbeat", raw=raw)).refused(status, reason)


async def test_numbers_too_large_for_a_column_are_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.prepare(sequence=2**70)).refused(409, "invalid_local_activity_preparation")
    (await claim.post("/deliver-cancellation", request_id="r", call_kind="timer", sequence=2**63)).refused(
        422, "validation_failed"
    )


async def test_unknown_routes_and_methods_answer_in_json(wire: Wire) -> None:
    assert (await wire.control("GET", "/nothing")).refused(404, "operation_not_found")
    refused = await wire.control("DELETE", "/workflows")
    assert refused.refused(405, "operation_not_found")
    assert refused.headers["allow"] == "GET, HEAD, POST"
    assert (await wire.control("GET", "/workflows/")).refused(404, "operation_not_found")


async def test_a_body_may_nest_as_deep_as_a_payload_and_no_deeper(wire: Wire) -> None:
    """What is kept must be readable by everybody, an export of the run with its seal included."""
    memo: dict[str, Any] = {"a": "leaf"}
    for _ in range(MAX_NESTING - 2):
        memo = {"a": memo}
    run_id = (await wire.start(memo=memo, search_attributes={"[{[{": "[{" * 300}))["run_id"]
    assert (await wire.describe())["memo"] == memo
    exported = (await wire.control("GET", f"/workflows/wf/runs/{run_id}/history/export")).ok()
    assert exported["workflow"]["memo"] == memo
    too_deep = await wire.control(
        "POST", "/workflows", {"workflow_id": "w2", "workflow_type": "t", "memo": {"a": memo}}
    )
    too_deep.refused(400, "invalid_json")


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/workflow-tasks/poll", {"worker_id": "w", "task_queue": "q", "poll_request_id": "r"}, "poll_workflow_task"),
        ("/register", {"worker_id": "w", "task_queue": "q"}, "register_worker"),
        ("/workflow-tasks/T/heartbeat", {"lease_owner": "w", "workflow_task_attempt": 2}, "heartbeat_workflow_task"),
    ],
)
async def test_a_failing_database_is_a_retryable_503_with_the_whole_identity(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], operation: str
) -> None:
    async def full(work: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(wire.store, "transact", full)
    reply = await wire.worker(path, body)
    refused = reply.refused(503, "backend_unavailable")
    assert (
        refused.items() >= {"operation": operation, "worker_id": "w", "outcome": "unknown", "retryable": True}.items()
    )
    assert refused["retry_after_seconds"] >= 1
    assert reply.headers["retry-after"] == str(refused["retry_after_seconds"])
    assert "disk" not in str(refused)
    if operation == "poll_workflow_task":
        assert (refused["task"], refused["poll_status"]) == (None, "backend_unavailable")
        assert (refused["poll_request_id"], refused["retry_same_poll_request_id"]) == ("r", True)
    if operation == "heartbeat_workflow_task":
        assert (refused["task_id"], refused["workflow_task_attempt"], refused["task_queue"]) == ("T", 2, None)


async def test_remote_activity_polls_are_answered_with_nothing(wire: Wire, worker: Worker) -> None:
    body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0}
    reply = (await wire.worker("/activity-tasks/poll", body)).ok()
    assert (reply["task"], reply["poll_status"]) == (None, "no_activity_capability")
    await worker.register(supported_activity_types=["a"])
    reply = (await wire.worker("/activity-tasks/poll", body)).ok()
    assert (reply["task"], reply["poll_status"]) == (None, "empty")
    assert reply["server_time"] == instant(0)
    (await wire.worker("/activity-tasks/poll", {**body, "worker_id": "x"})).refused(412, "worker_not_registered")


@pytest.mark.parametrize("kind", ["workflow", "activity", "query"])
async def test_a_poll_is_answered_in_the_transport_that_was_negotiated(wire: Wire, worker: Worker, kind: str) -> None:
    media = "application/vnd.durable-workflow.poll.v1+json"
    path = f"/api/worker/{kind}-tasks/poll"

    async def poll(accept: str, **fields: Any) -> Any:
        body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0, **fields}
        return await wire.request("POST", path, body, headers={WORKER: "1.20", "Accept": accept})

    plain = await poll("application/json")
    assert plain.headers["content-type"] == "application/json"
    wrapped = await poll(f"{media}, application/json;q=0.9")
    assert wrapped.headers["content-type"] == media
    assert wrapped.body == {
        "schema": "durable-workflow.poll-transport.v1",
        "status": 200,
        "headers": {WORKER.lower(): "1.20"},
        "body": plain.body,
    }
    refused = await poll(f"application/json, {media.upper()};q=0.1", worker_id="nobody")
    assert (refused.status, refused.body["status"]) == (412, 412)
    assert refused.body["body"]["reason"] == "worker_not_registered"


async def test_a_refused_poll_tells_inside_when_to_come_back(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(work: object) -> None:
        raise sqlite3.OperationalError("locked")

    monkeypatch.setattr(wire.store, "transact", gone)
    headers = {WORKER: "1.20", "Accept": "application/vnd.durable-workflow.poll.v1+json"}
    body = {"worker_id": "w", "task_queue": "q", "poll_request_id": "r"}
    reply = await wire.request("POST", "/api/worker/workflow-tasks/poll", body, headers=headers)
    assert reply.status == 503
    assert reply.body["headers"] == {"retry-after": "1", WORKER.lower(): "1.20"}
    assert reply.body["body"]["retry_same_poll_request_id"] is True
