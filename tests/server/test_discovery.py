"""Cluster info: everything the official schema asks for, what the SDK checks, and no capability that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from official.documents import official_documents
from proctor.server.routes import CONTROL_ROUTES, WORKER_ROUTES
from proctor.server.rules.book import Settings
from proctor.server.rules.commands.batch import SUPPORTED
from server.wire import Wire, Worker, running_server


async def discover(wire: Wire) -> dict[str, Any]:
    return (await wire.request("GET", "/api/cluster/info")).ok()


@pytest.mark.parametrize("protocol", ["1.18", "1.19", "1.20"])
async def test_the_official_schemas_are_satisfied(shared_fixtures: Path, protocol: str) -> None:
    documents = official_documents(shared_fixtures)
    async with running_server(Settings(protocol=protocol)) as wire:
        info = await discover(wire)
        assert list(documents.discovery(info)) == []
        assert list(documents.capabilities(info["worker_protocol"]["server_capabilities"])) == []
        del info["task_repair"], info["limits"]
        assert len(list(documents.discovery(info))) == 2


async def test_only_what_exists_is_advertised(wire: Wire) -> None:
    info = await discover(wire)
    capabilities = info["worker_protocol"]["server_capabilities"]
    routes = {path for _, path, _ in WORKER_ROUTES} | {path for _, path, _, _ in CONTROL_ROUTES}
    assert capabilities["supported_workflow_task_commands"] == list(SUPPORTED)
    assert capabilities["prepared_local_activities"] is any("local-activities/prepare" in path for path in routes)
    assert capabilities["query_tasks"] is any("query-tasks" in path for path in routes)
    assert capabilities["activity_lease_renewal"] is any("renew-lease" in path for path in routes)
    assert capabilities["worker_sessions"]["supported"] is any("/worker/sessions" in path for path in routes)
    assert capabilities["local_activities"]["supported"] is ("record_local_activity" in SUPPORTED)
    assert capabilities["workflow_memo_updates"]["supported"] is ("upsert_memo" in SUPPORTED)
    group_route = "/worker/workflow-tasks/{task_id}/local-activities/checkpoint-group"
    assert capabilities["prepared_local_activity_groups"] is any(path.endswith(group_route) for path in routes)
    assert capabilities["runtime_external_payload_transport"] is True
    transport = info["namespace"]["external_payload_storage"]["transport"]
    for method, path in (("POST", transport["upload"]["path"]), ("GET", transport["fetch"]["path_template"])):
        assert (await wire.request(method, path)).reason != "operation_not_found"
    features = info["capabilities"]
    assert features["activity_tasks"] is any("activity-tasks" in path for path in routes)
    assert features["child_workflows"] is ("start_child_workflow" in SUPPORTED)
    assert features["continue_as_new"] is ("continue_as_new" in SUPPORTED)
    assert features["signals"] is any("/signal/" in path for path in routes)
    assert features["queries"] is any("/query/" in path for path in routes)
    assert features["updates"] is any("/update/" in path for path in routes)
    assert features["history_export"] is any(path.endswith("/export") for path in routes)


@pytest.mark.parametrize(("protocol", "offered"), [("1.18", False), ("1.19", True), ("1.20", True)])
async def test_a_command_is_advertised_by_the_versions_that_take_it(protocol: str, offered: bool) -> None:
    command = {"type": "cancel_selection_operation"}
    async with running_server(Settings(protocol=protocol)) as wire:
        info = await discover(wire)
        worker = Worker(wire, capabilities=(), version=protocol)
        await worker.register()
        await wire.start()
        errors = (await (await worker.poll()).complete(command)).refused(422, "validation_failed")["errors"]
    commands = info["worker_protocol"]["server_capabilities"]["supported_workflow_task_commands"]
    assert ("cancel_selection_operation" in commands) is offered
    assert ("commands.0.type" in errors) is not offered


@pytest.mark.parametrize(
    ("kind", "floor"),
    [("upsert_search_attributes", 8), ("open_condition_wait", 9), ("upsert_memo", 14), ("record_local_activity", 18)],
)
async def test_a_command_is_refused_below_its_version(wire: Wire, kind: str, floor: int) -> None:
    for minor in (floor - 1, floor):
        worker = Worker(wire, f"w{minor}", capabilities=(), version=f"1.{minor}")
        await worker.register()
        await wire.start(f"wf-{minor}")
        reply = await (await worker.poll()).complete({"type": kind})
        assert ("commands.0.type" in reply.body.get("errors", {})) is (minor < floor)
        (await wire.control("POST", f"/workflows/wf-{minor}/terminate", {})).ok()


@pytest.mark.parametrize("protocol", ["1.18", "1.19", "1.20"])
async def test_sticky_execution_is_described_as_the_worker_contract_asks(protocol: str) -> None:
    async with running_server(Settings(protocol=protocol)) as wire:
        sticky = (await discover(wire))["worker_protocol"]["server_capabilities"]["sticky_execution"]
    assert (sticky["feature"], sticky["supported"]) == ("sticky_execution", True)
    assert (sticky["worker_capability"], sticky["minimum_worker_protocol_version"]) == ("sticky_execution", "1.18")
    assert sticky["cache_key_fields"] == ["workflow_id", "run_id", "build_id"]
    assert sticky["correctness_fallback"] == "cold_replay"
    assert sticky["metrics"] == ["hit", "miss", "eviction", "forced_cold_replay"]
    assert sticky["replay_modes"] == ["sticky_hit_expected", "cold_replay", "forced_cold_replay"]


@pytest.mark.parametrize(("protocol", "cooperative"), [("1.18", False), ("1.19", False), ("1.20", True)])
async def test_1_20_features_belong_to_1_20(protocol: str, cooperative: bool) -> None:
    async with running_server(Settings(protocol=protocol)) as wire:
        worker_protocol = (await discover(wire))["worker_protocol"]
        capabilities = worker_protocol["server_capabilities"]
        assert worker_protocol["version"] == protocol
        assert capabilities["cooperative_cancellation"] is cooperative
        assert capabilities["prepared_local_activities"] is cooperative
        assert capabilities["prepared_local_activity_groups"] is cooperative
        assert bool(capabilities["prepared_local_activity_cancellation_policies"]) is cooperative


async def test_the_fleet_is_shown(wire: Wire, worker: Worker) -> None:
    fleet = (await discover(wire))["worker_fleet"]
    assert (fleet["active_workers"], fleet["queues"]) == (1, ["q"])
    assert worker.worker_id in str(fleet["workers"])


async def test_worker_replies_repeat_the_capabilities_of_discovery(wire: Wire, worker: Worker) -> None:
    reply = (await worker.try_poll()).ok()
    info = await discover(wire)
    assert reply["server_capabilities"] == info["worker_protocol"]["server_capabilities"]


async def test_an_unknown_namespace_is_refused(wire: Wire) -> None:
    reply = await wire.request("GET", "/api/cluster/info?namespace=none")
    reply.refused(404, "namespace_not_found")
