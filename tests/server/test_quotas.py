"""Quotas of namespaces: refused as a whole with the resource, the number and the bound; what needs no more goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from proctor.cli.server import server
from proctor.server.rules.book import Settings
from proctor.server.rules.quotas import Quotas
from server.test_credentials import contents
from server.wire import EMPTY_LIST, Reply, Wire, Worker, running_server

ARGUMENTS = {"codec": "avro", "blob": EMPTY_LIST}


@asynccontextmanager
async def bounded(**numbers: int) -> AsyncIterator[Wire]:
    async with running_server(Settings(quotas=Quotas(**numbers)), namespaces=("default", "other")) as wire:
        yield wire


async def try_start(wire: Wire, name: str, **fields: str) -> Reply:
    return await wire.control(
        "POST", "/workflows", {"workflow_id": name, "workflow_type": "t", "task_queue": "q", **fields}
    )


def exhausted(reply: Reply, resource: str, value: int, bound: int, *, retryable: bool) -> None:
    body = reply.refused(429, f"namespace_{resource}_exhausted")
    assert (body["resource"], body["current_value"], body["configured_limit"]) == (resource, value, bound)
    assert body["retryable"] is retryable
    assert body.get("retry_after_seconds") == (60 if retryable else None)
    assert reply.headers.get("retry-after") == ("60" if retryable else None)


async def test_open_runs_make_room_when_they_end() -> None:
    async with bounded(open_workflow_runs=1) as wire:
        await wire.start("one")
        before = await contents(wire)
        exhausted(await try_start(wire, "two"), "open_workflow_runs", 2, 1, retryable=True)
        assert await contents(wire) == before
        (await try_start(wire, "one", duplicate_policy="use-existing")).ok()
        (await wire.control("POST", "/workflows/one/terminate", {})).ok()
        (await try_start(wire, "two")).ok(201)


async def test_each_namespace_has_its_own() -> None:
    async with bounded(workflow_runs=1) as wire:
        await wire.start("one")
        exhausted(await try_start(wire, "two"), "workflow_runs", 2, 1, retryable=False)
        headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "X-Namespace": "other"}
        body = {"workflow_id": "one", "workflow_type": "t", "task_queue": "q"}
        assert (await wire.request("POST", "/api/workflows", body, headers=headers)).status == 201


@pytest.mark.parametrize(
    ("command", "quota", "value"),
    [
        ({"type": "continue_as_new", "arguments": ARGUMENTS}, "workflow_runs", 2),
        ({"type": "start_child_workflow", "workflow_type": "t", "arguments": ARGUMENTS}, "workflow_instances", 2),
        ({"type": "start_child_workflow", "workflow_type": "t", "arguments": ARGUMENTS}, "open_workflow_runs", 2),
    ],
)
async def test_a_turn_that_would_start_too_much_is_undone_whole(
    command: dict[str, object], quota: str, value: int
) -> None:
    async with bounded(**{quota: 1}) as wire:
        worker = Worker(wire)
        await worker.register()
        await wire.start()
        claim = await worker.poll()
        before = await contents(wire)
        effect = {"type": "record_side_effect", "result": EMPTY_LIST}
        exhausted(await claim.complete(effect, command), quota, value, 1, retryable=quota == "open_workflow_runs")
        assert await contents(wire) == before
        # The claim is as it was, and the run can still end.
        (await claim.complete()).ok()
        assert (await wire.describe())["status"] == "completed"


async def test_continuing_as_new_needs_no_more_open_runs() -> None:
    async with bounded(open_workflow_runs=1) as wire:
        worker = Worker(wire)
        await worker.register()
        await wire.start()
        (await (await worker.poll()).complete({"type": "continue_as_new", "arguments": ARGUMENTS})).ok()


async def test_a_worker_may_register_again_but_no_other_beside_it() -> None:
    async with bounded(worker_registrations=1) as wire:
        first = Worker(wire)
        await first.register()
        token = (await first.register())["registration_token"]
        body = {"worker_id": "w2", "task_queue": "q", "runtime": "python", "capability_manifest": {}}
        exhausted(await wire.worker("/register", body, version="1.17"), "worker_registrations", 2, 1, retryable=True)
        left = {"registration_token": token}
        (await wire.worker("/registrations/w/deregister", left)).ok()
        (await wire.worker("/register", body, version="1.17")).ok(201)


@pytest.mark.parametrize("given", ["runs=1", "workflow_runs", "workflow_runs=-1", "workflow_runs=1e3", "=1"])
def test_the_command_refuses_odd_quotas(given: str) -> None:
    told = CliRunner().invoke(server, ["--quota", given])
    assert told.exit_code == 2
    assert "open_workflow_runs" in told.output
