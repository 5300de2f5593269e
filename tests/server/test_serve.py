"""The server as a process and as a task: real sockets, shutdown, taken ports and files."""

from __future__ import annotations

import hashlib
import importlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from starlette.requests import Request

from proctor.errors import StorageError, UsageError
from proctor.server import ServerOptions, polling, serve
from proctor.server.waiting import Place, QueueBell

CONTROL = {"X-Durable-Workflow-Control-Plane-Version": "2"}
WORKER = {"X-Durable-Workflow-Protocol-Version": "1.20"}
MANIFEST = {
    key: {"supported": False, "minimum_protocol_version": "1.18"}
    for key in ("local_activities", "worker_sessions", "sticky_execution")
}
REGISTRATION = {
    "worker_id": "w",
    "task_queue": "q",
    "runtime": "python",
    "supported_workflow_types": ["t"],
    "capabilities": [],
    "capability_manifest": MANIFEST,
}

PROGRAM = """
import pathlib, sys, trio
from proctor.server import ServerOptions, app, serve
from proctor.server.waiting import QueueBell

async def main():
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, ServerOptions(database=pathlib.Path(sys.argv[1])))
        print(url, flush=True)

trio.run(main)
"""


@asynccontextmanager
async def server_process(database: Path) -> AsyncIterator[tuple[trio.Process, str]]:
    """Run a server in a process of its own; it is killed at the end."""
    process = await trio.lowlevel.open_process([sys.executable, "-c", PROGRAM, str(database)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with process.stdout:
            line = b""
            while not line.endswith(b"\n"):
                chunk = await process.stdout.receive_some()
                assert chunk, "the server ended before it listened"
                line += chunk
            yield process, line.decode().strip()
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"{url}/api", timeout=30, headers=CONTROL) as http:
        yield http


def start(number: int) -> dict[str, Any]:
    return {"workflow_id": f"wf-{number}", "workflow_type": "t", "task_queue": "q"}


async def test_a_second_server_process_on_the_file_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "shared.db"
    async with server_process(database):
        with pytest.raises(StorageError, match="in use by another server"):
            await serve(ServerOptions(database=database))


async def test_a_taken_port_is_a_usage_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}.*--port 0"):
            await serve(ServerOptions(port=port))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": "1.17"}, "1.17"),
        ({"workflow_task_lease_seconds": 0}, "lease"),
        ({"namespaces": ()}, "namespace"),
        ({"long_polls": -1}, "long polls"),
        ({"port": 70_000}, "65535"),
        ({"host": "no.such.host.invalid"}, "not known"),
    ],
)
async def test_impossible_options_are_usage_errors(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await serve(ServerOptions(**changes))


def test_the_server_loads_nothing_of_the_worker() -> None:
    """One side's bug must not be hidden by the other's."""
    program = "import sys, proctor.server; print(sorted(name for name in sys.modules if name.startswith('proctor')))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    for part in ("running", "worker", "transport", "client", "supervising"):
        assert f"'proctor.{part}" not in loaded
    assert "proctor_supervisor" not in loaded


def test_tokens_are_not_shown() -> None:
    assert "secret" not in repr(ServerOptions(worker_token="secret", control_token="secret"))


@pytest.fixture
def poll_arrived(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Give an event that is set when the server begins to serve a poll."""
    arrived = trio.Event()

    class WatchedBell(QueueBell):
        def line(self, queue: tuple[str, str]) -> Place:
            arrived.set()
            return super().line(queue)

    monkeypatch.setattr(importlib.import_module("proctor.server.serve"), "QueueBell", WatchedBell)
    return arrived


@pytest.fixture
def departure_noticed(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Give an event that is set when the server has noticed that a polling client left."""
    noticed = trio.Event()
    real = polling.client_departure

    async def watched(request: Request) -> None:
        await real(request)
        noticed.set()

    monkeypatch.setattr(polling, "client_departure", watched)
    return noticed


async def test_a_cancelled_server_answers_its_parked_polls_and_frees_port_and_file(
    tmp_path: Path, poll_arrived: trio.Event
) -> None:
    options = ServerOptions(database=tmp_path / "a.db")
    replies: list[httpx2.Response] = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[str]) -> None:
            with scope:
                await serve(options, task_status=task_status)

        url = await nursery.start(run)
        port = int(url.rpartition(":")[2])
        async with client(url) as http:
            (await http.post("/worker/register", json=REGISTRATION, headers=WORKER)).raise_for_status()

            async def poll() -> None:
                body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 60}
                replies.append(await http.post("/worker/workflow-tasks/poll", json=body, headers=WORKER))

            async with trio.open_nursery() as polls:
                polls.start_soon(poll)
                await poll_arrived.wait()
                scope.cancel()
    assert replies[0].status_code == 200
    assert replies[0].json()["task"] is None
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    assert [child.name for child in tmp_path.iterdir()] == ["a.db"]


async def test_a_worker_that_was_killed_while_polling_takes_no_task(
    poll_arrived: trio.Event, departure_noticed: trio.Event
) -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, ServerOptions())
        async with client(url) as http:
            (await http.post("/worker/register", json=REGISTRATION, headers=WORKER)).raise_for_status()
            body = b'{"worker_id": "w", "task_queue": "q", "timeout_seconds": 60}'
            host, port = url.removeprefix("http://").split(":")
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(
                b"POST /api/worker/workflow-tasks/poll HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            await poll_arrived.wait()
            await stream.aclose()
            await departure_noticed.wait()
            (await http.post("/workflows", json=start(1))).raise_for_status()
            living = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 20}
            reply = (await http.post("/worker/workflow-tasks/poll", json=living, headers=WORKER)).json()
            assert reply["task"]["workflow_id"] == "wf-1"
        nursery.cancel_scope.cancel()


async def test_time_goes_on_from_what_the_file_has_seen_and_every_answer_has_its_date(tmp_path: Path) -> None:
    """A wall clock that was set back between two servers prolongs no lease; workers tell the length from the date."""
    database, ends = tmp_path / "a.db", []
    for faults in (True, False):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, ServerOptions(database=database, faults=faults))
            async with client(url) as http:
                if faults:
                    told = await http.post(f"{url}/faults/advance-clock", json={"seconds": 86_400})
                    told.raise_for_status()
                    (await http.post("/worker/register", json=REGISTRATION, headers=WORKER)).raise_for_status()
                    (await http.post("/workflows", json=start(1))).raise_for_status()
                    body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0}
                    polled = await http.post("/worker/workflow-tasks/poll", json=body, headers=WORKER)
                    task = polled.json()["task"]
                claim = {"lease_owner": "w", "workflow_task_attempt": 1}
                renewed = await http.post(
                    f"/worker/workflow-tasks/{task['task_id']}/heartbeat", json=claim, headers=WORKER
                )
                ends.append(datetime.fromisoformat(renewed.json()["lease_expires_at"]))
                left = ends[-1] - parsedate_to_datetime(renewed.headers["date"])
                assert timedelta(seconds=8) < left < timedelta(seconds=11)
            nursery.cancel_scope.cancel()
    assert timedelta(0) < ends[1] - ends[0] < timedelta(minutes=1)
    assert ends[0] - datetime.now(UTC) > timedelta(hours=23)


async def test_a_client_that_takes_nothing_of_its_answer_does_not_keep_a_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.import_module("proctor.server.serve"), "_UNREAD_SECONDS", 1)
    content, ended = b"A" * 12_000_000, trio.Event()
    stored = {
        "Content-Type": "application/octet-stream",
        "X-Durable-Workflow-Payload-Codec": "avro",
        "X-Durable-Workflow-Payload-Size": str(len(content)),
        "X-Durable-Workflow-Payload-SHA256": hashlib.sha256(content).hexdigest(),
    }
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[str]) -> None:
            with scope:
                await serve(ServerOptions(), task_status=task_status)
            ended.set()

        url = await nursery.start(run)
        async with client(url) as http:
            told = await http.post("/external-payloads/v1", content=content, headers=stored)
            reference = told.raise_for_status().json()["reference"]["reference_id"]
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = url.removeprefix("http://").split(":")
            deaf.connect((host, int(port)))
            head = f"GET /api/external-payloads/v1/{reference} HTTP/1.1\r\nHost: x\r\n"
            deaf.sendall(f"{head}X-Durable-Workflow-Control-Plane-Version: 2\r\n\r\n".encode())
            await trio.lowlevel.wait_readable(deaf)
            scope.cancel()
            with trio.move_on_after(20) as waited:
                await ended.wait()
        # Closing it has let the server go in any case.
        assert not waited.cancelled_caught
