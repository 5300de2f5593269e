"""Starting, describing, listing, reading and ending runs (control-plane.md)."""

from __future__ import annotations

from typing import Any

import pytest

from server.wire import EMPTY_LIST, ENVELOPE, TEXT, Wire, Worker, instant, side_effect


async def test_start_answers_who_was_started(wire: Wire) -> None:
    body = await wire.start(input=ENVELOPE, execution_timeout_seconds=3600, run_timeout_seconds=600)
    assert (body["workflow_id"], body["workflow_type"], body["outcome"]) == ("wf", "t", "started_new")
    assert (body["status"], body["namespace"], body["payload_codec"]) == ("pending", "default", "avro")
    assert body["control_plane"]["operation"] == "start"
    accepted, started = await wire.events()
    assert accepted["event_type"] == "StartAccepted"
    assert accepted["payload"]["outcome"] == "started_new"
    assert started["payload"]["workflow_type"] == "t"
    assert started["payload"]["run_deadline_at"] == instant(600)
    assert started["workflow_command_id"] == accepted["workflow_command_id"]
    assert started["timestamp"] == instant(0)


async def test_an_id_is_made_when_none_is_given(wire: Wire) -> None:
    body = (await wire.control("POST", "/workflows", {"workflow_type": "t"})).ok(201)
    assert body["workflow_id"].startswith("wf-")
    assert (await wire.describe(body["workflow_id"]))["task_queue"] == "default"


async def test_duplicate_policies(wire: Wire, worker: Worker) -> None:
    first = await wire.start()
    request = {"workflow_id": "wf", "workflow_type": "t", "task_queue": "q"}
    (await wire.control("POST", "/workflows", request)).refused(409, "instance_already_started")
    existing = {**request, "duplicate_policy": "use-existing"}
    reply = (await wire.control("POST", "/workflows", existing)).ok(200)
    assert reply["run_id"] == first["run_id"]
    (await (await worker.poll()).complete()).ok()
    (await wire.control("POST", "/workflows", existing)).refused(409, "duplicate_not_allowed")
    (await wire.control("POST", "/workflows", request)).refused(409, "duplicate_not_allowed")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workflow_id": "a b"}, "workflow_id"),
        ({"workflow_id": "x" * 129}, "workflow_id"),
        ({"workflow_type": ""}, "workflow_type"),
        ({"duplicate_policy": "use_existing"}, "duplicate_policy"),
        ({"run_timeout_seconds": 0}, "run_timeout_seconds"),
        ({"run_timeout_seconds": 10**30}, "run_timeout_seconds"),
        ({"execution_timeout_seconds": "5"}, "execution_timeout_seconds"),
        ({"input": {"codec": "json", "blob": "[]"}}, "input"),
        ({"input": [1]}, "input"),
        ({"memo": []}, "memo"),
        ({"memo": {"k": "x" * 262_144}}, "memo"),
        ({"search_attributes": {"k": "x" * 40_960}}, "search_attributes"),
        ({"search_attributes": dict.fromkeys(map(str, range(101)), 1)}, "search_attributes"),
        ({"retry_policy": {}}, "retry_policy"),
        ({"priority": 10}, "priority"),
        ({"fairness_weight": 0}, "fairness_weight"),
        ({"fairness_key": 5}, "fairness_key"),
        ({"request_id": "r"}, "request_id"),
    ],
)
async def test_bad_starts_name_the_field(wire: Wire, changes: dict[str, Any], field: str) -> None:
    reply = await wire.control("POST", "/workflows", {"workflow_type": "t", **changes})
    body = reply.refused(422, "validation_failed")
    assert list(body["errors"]) == [field] == list(body["validation_errors"])
    assert (await wire.control("GET", "/workflows")).ok()["workflow_count"] == 0


async def test_describe_follows_the_run(wire: Wire, worker: Worker) -> None:
    await wire.start(input={"codec": "avro", "blob": EMPTY_LIST}, memo={"k": 1})
    pending = await wire.describe()
    assert (pending["status"], pending["status_bucket"], pending["is_terminal"]) == ("pending", "running", False)
    assert (pending["input"], pending["output_envelope"], pending["memo"]) == (EMPTY_LIST, None, {"k": 1})
    assert pending["actions"]["can_cancel"] is True
    claim = await worker.poll()
    assert (await wire.describe())["status"] == "running"
    wire.clock.advance(2)
    (await claim.complete()).ok()
    closed = await wire.describe()
    assert (closed["status"], closed["is_terminal"], closed["closed_at"]) == ("completed", True, instant(2))
    assert closed["output"] == TEXT
    assert closed["actions"]["can_cancel"] is False
    path = f"/workflows/wf/runs/{closed['run_id']}"
    assert (await wire.control("GET", path)).ok()["status"] == "completed"


async def test_unknown_workflows_and_runs(wire: Wire) -> None:
    (await wire.control("GET", "/workflows/none")).refused(404, "instance_not_found")
    (await wire.control("POST", "/workflows/none/cancel", {})).refused(404, "instance_not_found")
    (await wire.control("GET", "/workflows/none/runs")).refused(404, "instance_not_found")
    await wire.start()
    missing = await wire.control("GET", "/workflows/wf/runs/none/history")
    assert missing.refused(404, "run_not_found")["control_plane"]["operation"] == "history"


async def test_listing_filters_and_pages(wire: Wire, worker: Worker) -> None:
    for number in range(5):
        await wire.start(f"wf-{number}", "even" if number % 2 == 0 else "t")
        wire.clock.advance(1)
    (await (await worker.poll()).complete()).ok()

    async def listed(query: str) -> list[str]:
        return [row["workflow_id"] for row in (await wire.control("GET", f"/workflows{query}")).ok()["workflows"]]

    assert await listed("") == [f"wf-{number}" for number in (4, 3, 2, 1, 0)]
    assert await listed("?workflow_type=t") == ["wf-3", "wf-1"]
    assert await listed("?status=completed") == ["wf-1"]
    assert await listed("?status=failed") == []
    page = (await wire.control("GET", "/workflows?page_size=3")).ok()
    assert page["workflow_count"] == 3
    rest = await listed(f"?page_size=3&next_page_token={page['next_page_token']}")
    assert rest == ["wf-1", "wf-0"]
    for bad in ("status=open", "page_size=0", "page_size=201", "page_size=x", "query=a%3D1"):
        (await wire.control("GET", f"/workflows?{bad}")).refused(422, "validation_failed")
    for token in ("x", page["next_page_token"].lower(), page["next_page_token"] + "0"):
        (await wire.control("GET", f"/workflows?next_page_token={token}")).refused(400, "invalid_page_token")


async def test_runs_of_a_workflow(wire: Wire) -> None:
    run_id = (await wire.start())["run_id"]
    body = (await wire.control("GET", "/workflows/wf/runs")).ok()
    assert (body["workflow_id"], body["run_count"]) == ("wf", 1)
    assert body["runs"][0]["run_id"] == run_id
    assert body["runs"][0]["is_current_run"] is True


async def test_history_pages_cover_everything_once(wire: Wire, worker: Worker) -> None:
    run_id = (await wire.start())["run_id"]
    (await (await worker.poll()).checkpoint("c", 1, *[side_effect()] * 5)).ok()
    path = f"/workflows/wf/runs/{run_id}/history?page_size=3"
    seen: list[int] = []
    token: str | None = ""
    while token is not None:
        page = (await wire.control("GET", path + (f"&next_page_token={token}" if token else ""))).ok()
        seen += [event["sequence"] for event in page["events"]]
        token = page["next_page_token"]
    assert seen == list(range(1, 8))
    (await wire.control("GET", f"{path}&next_page_token=x")).refused(400, "invalid_page_token")


@pytest.mark.parametrize(
    ("operation", "status", "event_type"),
    [("cancel", "cancelled", "WorkflowCancelled"), ("terminate", "terminated", "WorkflowTerminated")],
)
async def test_closing_at_once(wire: Wire, worker: Worker, operation: str, status: str, event_type: str) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(1)
    body = (await wire.control("POST", f"/workflows/wf/{operation}", {"reason": "enough"})).ok()
    assert (body["outcome"], body["run_status"]) == (status, status)
    event = (await wire.events())[-1]
    assert (event["event_type"], event["payload"]["reason"]) == (event_type, "enough")
    assert event["workflow_command_id"] == body["command_id"]
    (await claim.complete()).refused(409, "run_closed")
    (await claim.post("/heartbeat")).refused(409, "run_closed")
    assert await worker.idle()
    (await wire.control("POST", f"/workflows/wf/{operation}", {})).refused(409, "run_not_active")


async def test_namespaces(wire: Wire) -> None:
    assert (await wire.control("GET", "/namespaces/default")).ok()["name"] == "default"
    (await wire.control("GET", "/namespaces/other")).refused(404, "namespace_not_found")
