"""Both workers on one server, each with a queue of its own and the same workflows; what a run left, made comparable.

Owns driving the runs and taking identities and times out of their histories. What must hold is in the test modules.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import trio

from news import await_events
from portable import live
from portable_files import load
from proctor.client import Client
from proctor.core import codec
from proctor.core.external import KEY
from proctor.errors import ServerRefused, UpdateFailed, WorkflowFailed
from proctor.handle import WorkflowHandle
from proctor.server import ServerOptions, serve
from proctor.transport.calls import Call
from proctor.worker import Worker
from proctor_supervisor import SupervisorOptions

Run = dict[str, Any]
"""How a run ended, and its history."""

_OFFICIAL_WORKER = Path(__file__).with_name("official_worker.py")
_TESTS = Path(__file__).resolve().parents[1]

_IDENTITY = re.compile(r"\b(?:[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_OF_THE_WORKER = frozenset(
    {
        "lease_owner",
        "worker_id",
        "worker_attempt_id",
        "sdk_version",
        "runtime",
        "workflow_definition_fingerprint",
        "checkpoint_id",
        "batch_fingerprint",
    }
)
_OF_THE_LANGUAGE = frozenset({"trace", "traceback", "file", "line", "stack_trace"})


_loaded = cache(partial(load, "live"))  # as the other side loads it: names of modules are in fingerprints


@asynccontextmanager
async def server(**options: Any) -> AsyncIterator[tuple[str, Client]]:
    """Run a server and give its address and an open client."""
    with trio.fail_after(115):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, ServerOptions(**options))
            async with Client(url) as client:
                yield url, client
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def our_worker(url: str, queue: str, **options: Any) -> AsyncIterator[Worker]:
    """Run Proctor's worker, and drain it at the end."""
    worker = Worker(
        Client(url),
        task_queue=queue,
        workflows=_loaded().WORKFLOWS,
        activities=live.ACTIVITIES,
        supervisor=SupervisorOptions(children=2, preload=["portable.live"]),
        queued_activities=2,
        poll_timeout=2,
        **{"profile": "ordinary", **options},
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        yield worker
        worker.drain()


@asynccontextmanager
async def official_worker(url: str, queue: str, *more: str) -> AsyncIterator[None]:
    """Run the official SDK's worker in a process of its own, and have it stop at the end."""
    command = [sys.executable, str(_OFFICIAL_WORKER), url, queue, *more]

    async def run(task_status: trio.TaskStatus[trio.Process]) -> None:
        done = await trio.run_process(
            command,
            stdin=PIPE,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(_TESTS)},
            task_status=task_status,
        )
        assert done.returncode == 0, done.stderr.decode()

    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run)
        try:
            yield
        except BaseException:
            process.kill()
            raise
        finally:
            assert process.stdin is not None
            await process.stdin.aclose()


async def drive(client: Client, workflow_type: str, queue: str) -> Run:
    """Run one workflow from its start to its end with all its moves; give how it ended and its history."""
    handle = await client.start_workflow(
        workflow_type, live.ARGUMENTS.get(workflow_type, []), task_queue=queue, workflow_id=f"{queue}.{workflow_type}"
    )
    answers: list[Any] = []
    for kind, count, move, arguments in live.MOVES.get(workflow_type, []):
        await await_events(client, handle.workflow_id, kind, count)
        answers.append(await _move(client, handle, move, arguments))
    return {**await ended(client, handle), "answers": answers}


async def ended(client: Client, handle: WorkflowHandle) -> Run:
    """Wait for the end of a run and read it."""
    seen: Run = {"workflow_id": handle.workflow_id, "result": None, "failure": None}
    try:
        with trio.fail_after(90):
            seen["result"] = await handle.result()
    except WorkflowFailed as failure:
        seen["failure"] = str(failure).replace(handle.workflow_id, "<workflow>")
    seen["history"] = await handle.history()
    seen["stored"] = await _stored(client, handle)
    return seen


async def _stored(client: Client, handle: WorkflowHandle) -> list[str]:
    """Give the places in a history that refer to a stored payload, as the server has it."""
    transport = client._transport
    assert transport is not None
    run = (await handle.describe())["run_id"]
    path = f"/workflows/{handle.workflow_id}/runs/{run}/history"
    answer = await transport.send(Call("control", "GET", path, query={"page_size": "1000"}), within=10)
    return [
        f"{event['event_type']}.{place}" for event in answer.body["events"] for place in _references(event["payload"])
    ]


def _references(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        if KEY in value:
            yield place
            return
        for key, item in value.items():
            yield from _references(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item, place)


async def _move(client: Client, handle: WorkflowHandle, move: str, arguments: list[Any]) -> Any:
    """Do one move; give what was answered, or how it was refused."""
    verb, _, name = move.partition(":")
    if verb == "signal":
        await client.signal(handle.workflow_id, name, arguments)
    elif verb in ("update", "query"):
        try:
            if verb == "query":
                return await client.query(handle.workflow_id, name, arguments)
            request: dict[str, Any] = {"wait_timeout_seconds": 60, "request_id": f"{name} {arguments}"}
            return (await client.update(handle.workflow_id, name, arguments, **request))["result"]
        except ServerRefused as refused:
            return refused.reason
        except UpdateFailed as failed:
            return str(failed).replace(handle.workflow_id, "<workflow>")
    elif verb == "cancel":
        await client.cancel(handle.workflow_id, "enough")
    elif verb == "request-cancellation":
        await client.request_cancellation(handle.workflow_id, "enough")
    else:
        raise AssertionError(f"{move!r} is no move")
    return None


def comparable(seen: Run) -> list[Any]:
    """Give a history with payloads decoded, and without identities, times and what names the worker."""
    queue, _, _ = seen["workflow_id"].partition(".")
    return [[event["event_type"], _plain(event["payload"], queue)] for event in seen["history"]]


def _plain(value: Any, queue: str) -> Any:
    if isinstance(value, dict):
        if set(value) == {"codec", "blob"} and value["codec"] == codec.CODEC:
            return _plain(codec.decode_value(value, None), queue)
        left_out = _OF_THE_WORKER | _OF_THE_LANGUAGE
        if value.get("cancellation_cleanup"):
            left_out |= {"descriptor_fingerprint"}  # made from the identities of the request, too
        return {key: _plain(item, queue) for key, item in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_plain(item, queue) for item in value]
    if isinstance(value, str):
        return _INSTANT.sub("<instant>", _IDENTITY.sub("<id>", value.replace(queue, "<queue>")))
    return value
