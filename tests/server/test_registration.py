"""Registering, heartbeats and deregistering, and what they do to leases (worker.md §1, transport.md §7)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from proctor.server.rules.book import Settings
from proctor.server.waiting import sweep
from server.wire import COOPERATIVE, WITH_POLICIES, Wire, Worker, manifest, running_server


def registration(*capabilities: str, **changes: Any) -> dict[str, Any]:
    return {
        "worker_id": "w",
        "task_queue": "q",
        "runtime": "python",
        "supported_workflow_types": ["t"],
        "capabilities": list(capabilities),
        "capability_manifest": manifest(capabilities),
        **changes,
    }


async def test_a_registration_is_answered_with_a_token(wire: Wire) -> None:
    body = (await wire.worker("/register", registration(*WITH_POLICIES, heartbeat_interval_seconds=7))).ok(201)
    assert (body["worker_id"], body["registered"], body["status"]) == ("w", True, "active")
    assert (body["task_queue"], body["runtime"], body["namespace"]) == ("q", "python", "default")
    assert body["heartbeat_interval_seconds"] == 7
    assert re.fullmatch("[0-9a-f]{32}", body["registration_token"])
    again = (await wire.worker("/register", registration())).ok(201)
    assert again["registration_token"] != body["registration_token"]


async def test_the_server_names_a_worker_that_has_no_name(wire: Wire) -> None:
    request = registration()
    del request["worker_id"]
    assert (await wire.worker("/register", request)).ok(201)["worker_id"].startswith("worker-")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task_queue": None}, "task_queue"),
        ({"runtime": "cobol"}, "runtime"),
        ({"sdk_version": "x" * 65}, "sdk_version"),
        ({"supported_workflow_types": "t"}, "supported_workflow_types"),
        ({"capability_manifest": None}, "capability_manifest"),
        ({"capability_manifest": {}}, "capability_manifest.worker_sessions"),
        ({"max_concurrent_workflow_tasks": -1}, "max_concurrent_workflow_tasks"),
        (
            {"max_concurrent_workflow_tasks": 0, "max_concurrent_activity_tasks": 0},
            "max_concurrent_workflow_tasks",
        ),
        ({"heartbeat_interval_seconds": 3601}, "heartbeat_interval_seconds"),
        ({"workflow_definition_fingerprints": {"t": 1}}, "workflow_definition_fingerprints"),
        ({"workflow_command_contracts": {"t": ["go"]}}, "workflow_command_contracts.t"),
        ({"workflow_command_contracts": {"t": {"signals": "go"}}}, "workflow_command_contracts.t.signals"),
        ({"workflow_command_contracts": {"t": {"updates": [5]}}}, "workflow_command_contracts.t.updates"),
    ],
)
async def test_a_malformed_registration_is_refused(wire: Wire, changes: dict[str, Any], field: str) -> None:
    reply = await wire.worker("/register", registration(**changes))
    assert field in reply.refused(422, "validation_failed")["errors"]
    assert (await Worker(wire).try_poll()).reason == "worker_not_registered"


@pytest.mark.parametrize(
    ("capabilities", "version", "reason"),
    [
        (("prepared_local_activities",), "1.20", "prepared_local_activity_capability_mismatch"),
        (COOPERATIVE, "1.19", "prepared_local_activity_capability_mismatch"),
        (("cooperative_cancellation",), "1.19", "cooperative_cancellation_protocol_mismatch"),
        (
            ("cooperative_cancellation", "prepared_local_activity_cancellation_policies"),
            "1.20",
            "prepared_local_activity_cancellation_policy_capability_mismatch",
        ),
        (
            ("cooperative_cancellation", "prepared_local_activity_groups"),
            "1.20",
            "prepared_local_activity_group_capability_mismatch",
        ),
        (("memo_upserts",), "1.13", "workflow_metadata_capability_protocol_mismatch"),
        (("typed_search_attributes",), "1.15", "workflow_metadata_capability_protocol_mismatch"),
        (("message_streams",), "1.14", "message_streams_unavailable"),
    ],
)
async def test_capabilities_below_their_floor_register_nothing(
    wire: Wire, capabilities: tuple[str, ...], version: str, reason: str
) -> None:
    body = (await wire.worker("/register", registration(*capabilities), version=version)).refused(409, reason)
    assert body["registered"] is False
    assert body["requested_version"] == version
    assert (await Worker(wire).try_poll()).reason == "worker_not_registered"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"supported": True, "minimum_protocol_version": "1.18"}, "worker_capability_manifest_mismatch"),
        ({"supported": False, "minimum_protocol_version": "1.17"}, "worker_capability_protocol_floor_mismatch"),
        ({"supported": False, "minimum_protocol_version": ""}, "worker_capability_protocol_floor_mismatch"),
    ],
)
async def test_manifest_and_list_must_agree(wire: Wire, entry: dict[str, Any], reason: str) -> None:
    request = registration()
    request["capability_manifest"]["sticky_execution"] = entry
    assert (await wire.worker("/register", request)).refused(409, reason)["capability"] == "sticky_execution"


async def test_an_entry_above_the_request_version_is_refused(wire: Wire) -> None:
    request = registration("local_activities")
    request["capability_manifest"]["local_activities"]["minimum_protocol_version"] = "1.20"
    (await wire.worker("/register", request, version="1.19")).refused(409, "worker_capability_protocol_floor_mismatch")


async def test_capabilities_the_server_lacks_may_be_registered(wire: Wire) -> None:
    (await wire.worker("/register", registration("worker_sessions", "sticky_execution", "memo_upserts"))).ok(201)


async def test_below_1_18_no_manifest_is_needed(wire: Wire) -> None:
    request = registration()
    del request["capability_manifest"]
    (await wire.worker("/register", request, version="1.17")).ok(201)


async def test_another_definition_of_an_active_worker_is_refused(wire: Wire) -> None:
    (await wire.worker("/register", registration(workflow_definition_fingerprints={"t": "a"}))).ok(201)
    changed = registration(workflow_definition_fingerprints={"t": "b"})
    (await wire.worker("/register", changed)).refused(409, "workflow_definition_changed")
    wire.clock.advance(301)
    (await wire.worker("/register", changed)).ok(201)


async def test_registering_again_frees_the_leases(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll(request_id="r")
    await worker.register()
    (await claim.complete()).refused(409, "task_not_leased")
    again = await worker.poll(request_id="r")
    assert again.task["task_id"] == claim.task["task_id"]
    assert again.task["workflow_task_attempt"] == 2
    assert again.task["sticky_replay_mode"] == "forced_cold_replay"
    (await claim.complete()).refused(409, "workflow_task_attempt_mismatch")


async def test_a_heartbeat_is_acknowledged_and_shown(wire: Wire, worker: Worker) -> None:
    wire.clock.advance(5)
    slots = {"workflow_available": 3}
    body = (await wire.worker("/heartbeat", {"worker_id": "w", "task_slots": slots})).ok()
    assert (body["acknowledged"], body["worker_id"]) == (True, "w")
    assert body["heartbeat_interval_seconds"] == 10
    assert body["stale_after_seconds"] == 300
    shown = (await wire.control("GET", "/workers/w")).ok()
    assert shown["task_slots"] == slots
    assert shown["last_heartbeat_at"] == "2026-01-02T03:04:10.000000Z"
    (await wire.worker("/heartbeat", {"worker_id": "x"})).refused(404, "worker_not_registered")
    (await wire.worker("/heartbeat", {})).refused(422, "validation_failed")


async def test_a_heartbeat_of_a_replaced_process_is_told_so(wire: Wire) -> None:
    def process(number: int) -> dict[str, Any]:
        return {"host": "h", "process_started_at": "2026-01-01T00:00:00.000000Z", "process_id": number}

    (await wire.worker("/register", registration(process_metrics=process(1)))).ok(201)
    (await wire.worker("/register", registration(process_metrics=process(2)))).ok(201)
    beat = {"worker_id": "w", "process_metrics": process(1)}
    (await wire.worker("/heartbeat", beat)).refused(409, "worker_registration_superseded")
    (await wire.worker("/heartbeat", {"worker_id": "w", "process_metrics": process(2)})).ok()


async def test_a_fenced_deregistration_is_one_receipt(wire: Wire, worker: Worker) -> None:
    token = (await worker.register())["registration_token"]
    await wire.start()
    await worker.poll()
    request = {"registration_token": token}
    receipt = (await wire.worker("/registrations/w/deregister", request)).ok()
    assert receipt["outcome"] == "deregistered"
    assert receipt["recovered_workflow_task_count"] == 1
    assert (receipt["worker_id"], receipt["registration_token"]) == ("w", token)
    await worker.register()
    claim = await worker.poll()
    wire.clock.advance(5)
    assert (await wire.worker("/registrations/w/deregister", request)).ok() == receipt
    (await claim.post("/heartbeat")).ok()


async def test_a_superseded_token_has_no_authority(wire: Wire, worker: Worker) -> None:
    old = (await worker.register())["registration_token"]
    await worker.register()
    reply = await wire.worker("/registrations/w/deregister", {"registration_token": old})
    refused = reply.refused(409, "worker_registration_lost_authority")
    assert (refused["worker_id"], refused["registration_token"]) == ("w", old)
    assert refused["retryable"] is False
    assert (await worker.try_poll()).ok()["task"] is None


async def test_unknown_and_malformed_tokens(wire: Wire, worker: Worker) -> None:
    token = (await worker.register())["registration_token"]
    other = await wire.worker("/registrations/other/deregister", {"registration_token": token})
    other.refused(404, "worker_registration_token_not_found")
    ghost = await wire.worker("/registrations/w/deregister", {"registration_token": "0" * 32})
    ghost.refused(404, "worker_registration_token_not_found")
    for bad in ("", "0" * 31, "G" * 32, 1, None):
        reply = await wire.worker("/registrations/w/deregister", {"registration_token": bad})
        reply.refused(422, "validation_failed")


async def test_the_unfenced_form_ends_whatever_is_registered(wire: Wire, worker: Worker) -> None:
    await wire.start()
    await worker.poll()
    body = (await wire.worker("/registrations/w", method="DELETE")).ok()
    assert (body["outcome"], body["recovered_workflow_task_count"]) == ("deregistered", 1)
    (await wire.worker("/registrations/w", method="DELETE")).refused(404, "worker_not_found")


async def test_workers_are_listed(wire: Wire, worker: Worker) -> None:
    await Worker(wire, "other", capabilities=()).register(task_queue="q2")
    listed = (await wire.control("GET", "/workers")).ok()["workers"]
    assert [row["worker_id"] for row in listed] == ["other", "w"]
    some = (await wire.control("GET", "/workers?task_queue=q2")).ok()["workers"]
    assert [row["worker_id"] for row in some] == ["other"]
    wire.clock.advance(301)
    stale = (await wire.control("GET", "/workers?status=stale")).ok()["workers"]
    assert len(stale) == 2
    (await wire.control("GET", "/workers/nobody")).refused(404, "worker_not_found")


async def test_receipts_are_forgotten_after_their_retention() -> None:
    async with running_server(Settings(receipt_retention_seconds=600)) as wire:
        worker = Worker(wire)
        token = (await worker.register())["registration_token"]
        request = {"registration_token": token}
        (await wire.worker("/registrations/w/deregister", request)).ok()
        wire.clock.advance(599)
        await wire.store.transact(sweep)
        (await wire.worker("/registrations/w/deregister", request)).ok()
        wire.clock.advance(1)
        await wire.store.transact(sweep)
        (await wire.worker("/registrations/w/deregister", request)).refused(404, "worker_registration_token_not_found")
