"""The watch over every test: it sees what does not fit, and no operation of the server escapes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from official import reference
from official.differences import CLUSTER_INFO, WORKER_API, Difference
from official.documents import Documents, apply, official_documents
from official.events import event_documents
from official.watching import Watch
from proctor.server.discovery import server_capabilities
from proctor.server.routes import CONTROL_ROUTES, WORKER_ROUTES
from proctor.server.rules.book import Settings
from server.wire import Worker, running_server

WORKER = {"x-durable-workflow-protocol-version": "1.20"}
CONTROL = {"x-durable-workflow-control-plane-version": "2"}
ENVELOPE = {"protocol_version": "1.20", "server_capabilities": server_capabilities(Settings())}
LEASE = {
    "task_id": "T",
    "workflow_task_attempt": 1,
    "lease_owner": "w",
    "renewed": True,
    "lease_expires_at": "2026-10-02T00:00:10.000000Z",
    "run_status": "waiting",
    "task_status": "leased",
    "reason": None,
}


@pytest.fixture
def documents(shared_fixtures: Path) -> Documents:
    return official_documents(shared_fixtures)


@pytest.fixture
def watch(documents: Documents, shared_fixtures: Path) -> Watch:
    """Give a watch of its own, not the one over this test."""
    return Watch(documents, event_documents(shared_fixtures))


def look(watch: Watch, path: str, body: dict[str, Any], *, status: int = 200, method: str = "POST") -> list[str]:
    plane = WORKER if path.startswith("/worker/") else CONTROL
    watch.answer(method, f"/api{path}", status, plane, json.dumps(body).encode())
    found, watch.problems = watch.problems, []
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"renewed": "yes"},
        {"task_id": ""},
        {"workflow_task_attempt": 0},
        {"lease_expires_at": "2026-10-02T00:00:10Z"},
        {"protocol_version": None},
        {"server_capabilities": {}},
        {"cancellation_request": {}},
    ],
)
def test_an_answer_that_does_not_fit_is_seen(watch: Watch, changes: dict[str, Any]) -> None:
    path = "/worker/workflow-tasks/T/heartbeat"
    assert look(watch, path, {**ENVELOPE, **LEASE}) == []
    assert look(watch, path, {**ENVELOPE, **LEASE, **changes}) != []
    without = {key: value for key, value in {**ENVELOPE, **LEASE}.items() if key not in changes}
    assert "cancellation_request" in changes or look(watch, path, without) != []


def test_refusals_statuses_headers_and_failures_are_looked_at_too(watch: Watch) -> None:
    path = "/worker/workflow-tasks/T/complete"
    refusal = {**ENVELOPE, "error": "no", "reason": "task_not_found"}
    assert look(watch, path, refusal, status=404) == []
    assert look(watch, path, {**ENVELOPE, "error": "no"}, status=404) != []
    assert look(watch, path, refusal, status=418) != []
    assert look(watch, path, refusal, status=500) != []
    assert look(watch, "/workflows/wf", refusal, method="GET") != []
    assert look(watch, "/workflows/wf", {"message": "no", "reason": "instance_not_found"}, status=404) == []
    assert look(watch, "/workflows/wf", {"message": "no"}, status=404) != []
    assert look(watch, "/workflows", {"message": "no", "reason": "validation_failed"}, status=422) != []
    assert look(watch, "/undescribed", {}) != []
    watch.answer("POST", f"/api{path}", 404, CONTROL, json.dumps(refusal).encode())
    assert watch.problems


async def test_a_whole_server_is_watched(official_watch: Watch | None, shared_fixtures: Path) -> None:
    assert official_watch is not None
    before = official_watch.answers.total()
    async with running_server() as wire:
        await Worker(wire).register()
        await wire.start()
    assert official_watch.answers.total() == before + 2


def operations() -> Iterator[tuple[str, str]]:
    yield from ((method, path) for method, path, _ in WORKER_ROUTES)
    yield from ((method, path) for method, path, _, _ in CONTROL_ROUTES)


@pytest.mark.parametrize(("method", "path"), list(operations()))
def test_every_operation_of_the_server_is_described(documents: Documents, method: str, path: str) -> None:
    example = re.sub(r"\{\w+\}", "x", path).removeprefix("/api")
    if example.startswith("/worker/"):
        official = (method, documents.place(example) or "") in documents.operations
        assert official or reference.worker_schema(method, example) is not None
    else:
        assert reference.control_schema(method, example) is not None


@pytest.mark.parametrize("difference", [*WORKER_API, *CLUSTER_INFO], ids=lambda difference: difference.path)
def test_every_difference_says_why(difference: Difference) -> None:
    assert len(difference.reason) > 10


def test_a_difference_that_names_nothing_is_an_error() -> None:
    document = {"paths": {"/worker/x": {"post": {"responses": {"200": 1}}}}, "a": {"b": [{"c": 1}]}}
    apply(document, [Difference("a/b/0/c", 2, ""), Difference("paths//worker/x/post/responses/200", None, "")])
    assert document == {"paths": {"/worker/x": {"post": {"responses": {}}}}, "a": {"b": [{"c": 2}]}}
    for path in ("a/c", "paths//worker/x/post/responses/404"):
        with pytest.raises(KeyError):
            apply(document, [Difference(path, None, "")])
