"""Payloads kept outside: uploaded with checks, referred to by requests, fetched back; never another namespace's."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proctor.core import codec
from proctor.core.external import read_reference
from proctor.server.app import Api
from proctor.server.credentials import Credentials
from proctor.server.database import open_database
from proctor.server.ids import Ids
from proctor.server.rules.book import Settings
from proctor.server.store import open_store
from proctor.server.waiting import QueueBell
from server.wire import ManualClock, Reply, Wire, Worker, running_server

VALUE = ["a rather long text " * 40]
BLOB = codec.encode(VALUE)
DAY = 86_400


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def headers_of(content: bytes, plane: str = "worker", **changes: str | None) -> dict[str, str]:
    version = (
        {"X-Durable-Workflow-Protocol-Version": "1.20"}
        if plane == "worker"
        else {"X-Durable-Workflow-Control-Plane-Version": "2"}
    )
    given: dict[str, str | None] = {
        **version,
        "X-Namespace": "default",
        "Content-Type": "application/octet-stream",
        "X-Durable-Workflow-Payload-Codec": "avro",
        "X-Durable-Workflow-Payload-Size": str(len(content)),
        "X-Durable-Workflow-Payload-SHA256": digest(content),
        **changes,
    }
    return {name: value for name, value in given.items() if value is not None}


async def upload(wire: Wire, blob: str = BLOB, plane: str = "worker", **changes: str | None) -> Reply:
    content = blob.encode()
    headers = headers_of(content, plane, **changes)
    return await wire.request("POST", "/api/external-payloads/v1", raw=content, headers=headers)


async def stored(wire: Wire, blob: str = BLOB) -> dict[str, Any]:
    """Upload a blob and give the envelope that refers to it."""
    return {"codec": "avro", "external_payload": (await upload(wire, blob)).ok(201)["reference"]}


async def fetch(wire: Wire, reference: dict[str, Any], plane: str = "worker", **changes: str | None) -> Reply:
    headers = headers_of(b"", plane, **{"Content-Type": None, **changes})
    for name in ("Size", "SHA256"):
        headers.pop(f"X-Durable-Workflow-Payload-{name}")
    return await wire.request("GET", f"/api/external-payloads/v1/{reference['reference_id']}", headers=headers)


@pytest.fixture
async def small() -> AsyncIterator[Wire]:
    """A server that takes 600 bytes inline and 4,000 outside."""
    settings = Settings(max_payload_bytes=600, external_threshold_bytes=300, external_max_bytes=4_000)
    async with running_server(settings) as running:
        yield running


@pytest.mark.parametrize("plane", ["worker", "control"])
async def test_bytes_come_back_with_the_headers_that_say_what_they_are(wire: Wire, plane: str) -> None:
    reply = await upload(wire, plane=plane)
    body = reply.ok(201)
    assert body["schema"] == "durable-workflow.v2.runtime-external-payload-upload.v1"
    assert body["transport_version"] == 1
    assert read_reference(body["reference"]).sha256 == digest(BLOB.encode())
    assert ("protocol_version" in body) is (plane == "worker")
    fetched = await fetch(wire, body["reference"], plane)
    assert (fetched.status, fetched.raw) == (200, BLOB.encode())
    assert fetched.headers["content-type"] == "application/octet-stream"
    expected = {name.lower(): value for name, value in headers_of(BLOB.encode()).items() if "Payload" in name}
    assert expected.items() <= dict(fetched.headers).items()
    assert ("x-durable-workflow-protocol-version" in fetched.headers) is (plane == "worker")
    assert ("x-durable-workflow-control-plane-version" in fetched.headers) is (plane == "control")


async def test_a_repeated_upload_gives_the_same_reference(wire: Wire) -> None:
    assert (await stored(wire)) == (await stored(wire))
    assert (await stored(wire, codec.encode("other"))) != (await stored(wire))


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"X-Durable-Workflow-Protocol-Version": "1.99"}, 400, "unsupported_protocol_version"),
        ({"X-Durable-Workflow-Protocol-Version": None}, 400, "missing_control_plane_version"),
        ({"X-Namespace": "elsewhere"}, 404, "namespace_not_found"),
        ({"Content-Type": "application/json"}, 422, "external_payload_unsupported"),
        ({"X-Durable-Workflow-Payload-Codec": "json"}, 422, "external_payload_unsupported"),
        ({"X-Durable-Workflow-Payload-Codec": None}, 422, "external_payload_unsupported"),
        ({"X-Durable-Workflow-Payload-Size": None}, 422, "external_payload_unsupported"),
        ({"X-Durable-Workflow-Payload-Size": "-1"}, 422, "external_payload_unsupported"),
        ({"X-Durable-Workflow-Payload-Size": "9" * 19}, 422, "external_payload_unsupported"),
        ({"X-Durable-Workflow-Payload-Size": "7"}, 422, "external_payload_integrity_mismatch"),
        ({"X-Durable-Workflow-Payload-Size": "999999999999"}, 413, "external_payload_oversized"),
        ({"X-Durable-Workflow-Payload-SHA256": "0" * 64}, 422, "external_payload_integrity_mismatch"),
        ({"X-Durable-Workflow-Payload-SHA256": "A" * 64}, 422, "external_payload_unsupported"),
    ],
)
async def test_an_upload_that_is_not_what_it_says_is_refused(
    wire: Wire, changes: dict[str, str | None], status: int, reason: str
) -> None:
    (await upload(wire, BLOB, "worker", **changes)).refused(status, reason)


@pytest.mark.parametrize("text", ["", "no base64!", base64.b64encode(b"x" * 99).decode() + "\n"])
async def test_only_payload_text_is_taken(wire: Wire, text: str) -> None:
    (await upload(wire, text)).refused(422, "external_payload_unsupported")


async def test_the_size_is_bounded_by_what_arrives_too(small: Wire) -> None:
    (await upload(small, codec.encode("x" * 2_900))).ok(201)
    large = codec.encode("x" * 3_100)
    (await upload(small, large)).refused(413, "external_payload_oversized")
    lying = {"X-Durable-Workflow-Payload-Size": "10"}
    (await upload(small, large, "worker", **lying)).refused(413, "external_payload_oversized")


async def test_tokens_are_asked_for_on_their_plane() -> None:
    async with running_server(credentials=Credentials(worker="w-secret", control="c-secret")) as wire:
        (await upload(wire)).refused(401, "unauthorized")
        (await upload(wire, Authorization="Bearer c-secret")).refused(403, "forbidden")
        reference = (await upload(wire, Authorization="Bearer w-secret")).ok(201)["reference"]
        (await fetch(wire, reference)).refused(401, "unauthorized")
        (await fetch(wire, reference, Authorization="Bearer c-secret")).refused(403, "forbidden")
        assert (await fetch(wire, reference, "control", Authorization="Bearer c-secret")).raw == BLOB.encode()


async def test_another_namespace_has_neither_the_bytes_nor_the_reference() -> None:
    with open_database(None) as database:
        async with open_store(database, clock=ManualClock(), ids=Ids(), settings=Settings()) as store:
            api = Api(store, QueueBell(), server_id="t", namespaces=("default", "other"))
            wire = Wire(api, store, ManualClock(), trio.Event())
            envelope = await stored(wire)
            reference = envelope["external_payload"]
            (await fetch(wire, reference, **{"X-Namespace": "other"})).refused(404, "external_payload_not_found")
            theirs = (await upload(wire, **{"X-Namespace": "other"})).ok(201)["reference"]
            assert theirs["reference_id"] != reference["reference_id"]
            headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "X-Namespace": "other"}
            body = {"workflow_id": "wf", "workflow_type": "t", "task_queue": "q", "input": envelope}
            refused = await wire.request("POST", "/api/workflows", body, headers=headers)
            assert refused.refused(404, "external_payload_not_found")["reference_id"] == reference["reference_id"]


async def test_a_reference_to_nothing_or_to_other_bytes_is_refused_and_changes_nothing(
    wire: Wire, worker: Worker
) -> None:
    await wire.start()
    claim = await worker.poll()
    envelope = await stored(wire)
    reference = envelope["external_payload"]
    gone = {**envelope, "external_payload": {**reference, "reference_id": "ep_" + "0" * 26}}
    other = {**envelope, "external_payload": {**reference, "size_bytes": reference["size_bytes"] + 1}}
    for result, status, reason in (
        (gone, 404, "external_payload_not_found"),
        (other, 422, "external_payload_integrity_mismatch"),
        ({**envelope, "extra": 1}, 422, "validation_failed"),
        ({**envelope, "codec": "json"}, 422, "validation_failed"),
        ({**envelope, "external_payload": {**reference, "sha256": "0"}}, 422, "validation_failed"),
        ({"codec": "avro", "external_storage": {}}, 422, "validation_failed"),
    ):
        (await claim.complete({"type": "complete_workflow", "result": result})).refused(status, reason)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.complete({"type": "complete_workflow", "result": envelope})).ok()


async def test_a_fetch_that_expects_other_bytes_is_refused(wire: Wire) -> None:
    reference = (await stored(wire))["external_payload"]
    expecting = {"X-Durable-Workflow-Payload-SHA256": "0" * 64}
    headers = {**headers_of(b""), **expecting}
    headers.pop("X-Durable-Workflow-Payload-Size")
    reply = await wire.request("GET", f"/api/external-payloads/v1/{reference['reference_id']}", headers=headers)
    reply.refused(422, "external_payload_integrity_mismatch")


async def test_every_payload_of_a_run_may_be_a_reference(wire: Wire, worker: Worker) -> None:
    envelope = await stored(wire)
    await worker.register(supported_activity_types=["send"])
    await wire.start(input=envelope)
    (await wire.control("POST", "/workflows/wf/signal/s", {"input": envelope})).ok(202)
    claim = await worker.poll()
    assert claim.task["arguments"] == envelope
    effect = {"type": "record_side_effect", "result": envelope}
    memo = codec.encode({"note": "x" * 300})
    upsert = {"type": "upsert_memo", "entries": await stored(wire, memo)}
    activity = {"type": "schedule_activity", "activity_type": "send", "arguments": envelope, "queue": "q"}
    (await claim.complete(effect, upsert, activity)).ok()
    body = {"worker_id": "w", "task_queue": "q", "poll_request_id": "a1", "timeout_seconds": 0}
    task = (await wire.worker("/activity-tasks/poll", body)).ok()["task"]
    assert task["arguments"] == envelope
    owner = {"activity_attempt_id": task["activity_attempt_id"], "lease_owner": "w", "result": envelope}
    (await wire.worker(f"/activity-tasks/{task['task_id']}/complete", owner)).ok()
    claim = await worker.poll()
    attempt = await claim.prepared(sequence=4, arguments=envelope)
    (await attempt.outcome(result=envelope)).ok()
    (await claim.complete({"type": "complete_workflow", "result": envelope})).ok()
    described = await wire.describe()
    assert described["input_envelope"] == described["output_envelope"] == envelope
    assert described["memo"] == {"note": "x" * 300}
    events = {event["event_type"]: event["payload"] for event in await wire.events()}
    assert events["SignalReceived"]["arguments"] == envelope
    assert events["SideEffectRecorded"]["result"] == envelope
    assert events["ActivityScheduled"]["activity"]["arguments"] == envelope
    assert events["ActivityCompleted"]["result"] == envelope
    assert events["WorkflowCompleted"]["output"] == envelope
    assert events["MemoUpserted"]["entries"] == {"codec": "avro", "blob": memo}
    assert BLOB not in str(await wire.events())


async def test_where_the_arguments_are_kept_is_not_what_they_are(wire: Wire, worker: Worker) -> None:
    """A repeated prepare, a recovery or a retry may send inline what the first one had uploaded, and the reverse."""
    await wire.start()
    claim = await worker.poll()
    inline = {"codec": "avro", "blob": BLOB}
    first = (await claim.prepare(arguments=await stored(wire))).ok()
    again = (await claim.prepare(arguments=inline)).ok()
    assert (again["duplicate"], again["activity_attempt_id"]) == (True, first["activity_attempt_id"])
    (await claim.prepare(arguments={"codec": "avro", "blob": codec.encode("x")})).refused(
        409, "local_activity_preparation_mismatch"
    )


async def test_a_prepare_with_an_unknown_reference_admits_nothing(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    envelope = await stored(wire)
    envelope["external_payload"]["reference_id"] = "ep_" + "Z" * 26
    (await claim.prepare(arguments=envelope)).refused(404, "external_payload_not_found")
    assert "ActivityScheduled" not in await wire.event_types()


async def test_what_no_run_refers_to_is_forgotten_after_a_day(wire: Wire) -> None:
    kept = await stored(wire)
    lost = (await stored(wire, codec.encode("nobody wants this")))["external_payload"]
    await wire.start(input=kept)
    wire.clock.advance(DAY - 1)
    assert (await fetch(wire, lost)).status == 200
    wire.clock.advance(1)
    (await fetch(wire, lost)).refused(404, "external_payload_not_found")
    assert (await fetch(wire, kept["external_payload"])).raw == BLOB.encode()
    again = (await upload(wire, codec.encode("nobody wants this"))).ok(201)["reference"]
    assert (await fetch(wire, again)).status == 200


async def test_a_refused_request_keeps_nothing(wire: Wire) -> None:
    await wire.start()
    envelope = await stored(wire)
    body = {"workflow_id": "wf", "workflow_type": "t", "task_queue": "q", "input": envelope}
    (await wire.control("POST", "/workflows", body)).refused(409, "instance_already_started")
    wire.clock.advance(DAY)
    (await fetch(wire, envelope["external_payload"])).refused(404, "external_payload_not_found")


async def test_what_only_looks_like_a_reference_is_data_outside_of_payloads(wire: Wire, worker: Worker) -> None:
    await wire.start(memo={"external_payload": {"reference_id": "mine"}, "codec": "avro"})
    claim = await worker.poll()
    attempt = await claim.prepared()
    unknown = (await stored(wire))["external_payload"] | {"reference_id": "ep_" + "1" * 26}
    (await attempt.beat(seen={"codec": "avro", "external_payload": unknown})).ok()
    beats = [event["payload"] for event in await wire.events() if event["event_type"] == "ActivityHeartbeatRecorded"]
    assert beats[0]["progress"]["details"]["seen"]["external_payload"] == unknown


async def test_a_server_without_the_storage_offers_and_takes_none() -> None:
    async with running_server(Settings(external_threshold_bytes=None)) as wire:
        info = (await wire.control("GET", "/cluster/info")).ok()
        assert info["namespace"]["external_payload_storage"] is None
        assert info["worker_protocol"]["server_capabilities"]["runtime_external_payload_transport"] is False
        (await upload(wire)).refused(422, "external_payload_unsupported")
        reference = {
            "schema": "durable-workflow.v2.runtime-external-payload-reference.v1",
            "reference_id": "ep_" + "0" * 26,
            "codec": "avro",
            "size_bytes": 1,
            "sha256": "0" * 64,
        }
        body = {"workflow_id": "wf", "workflow_type": "t", "input": {"codec": "avro", "external_payload": reference}}
        (await wire.control("POST", "/workflows", body)).refused(422, "validation_failed")


async def test_refused_admission_covers_uploads_of_workers() -> None:
    async with running_server(faults=True) as wire:
        json = {"Content-Type": "application/json"}
        await wire.request("POST", "/faults/refuse-admission", {"reason": "storage_pressure"}, headers=json)
        (await upload(wire)).refused(503, "storage_pressure")
        (await upload(wire, plane="control")).ok(201)


async def test_stored_payloads_survive_a_restart_in_the_same_file(tmp_path: Path) -> None:
    reference: dict[str, Any] = {}
    for restarted in (False, True):
        with open_database(tmp_path / "p.db") as database:
            async with open_store(database, clock=ManualClock(), ids=Ids(), settings=Settings()) as store:
                wire = Wire(Api(store, QueueBell(), server_id="t"), store, ManualClock(), trio.Event())
                if not restarted:
                    reference = (await stored(wire))["external_payload"]
                assert (await fetch(wire, reference)).raw == BLOB.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["p.db"]
