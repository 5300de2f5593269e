"""A real server, a real worker and an open client, with everything the worker told."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from proctor.client import Client
from proctor.server import ServerOptions, serve
from proctor.worker import Worker
from proctor_supervisor import StopPolicy, SupervisorOptions
from running import worker_handlers, workflows

FAST_STOPS = StopPolicy(notice_grace=0.05, raise_grace=0.05)


class World:
    """A server, an open client, a running worker, and the events it told."""

    def __init__(self, url: str, client: Client, nursery: trio.Nursery) -> None:
        self.url = url
        self.client = client
        self.nursery = nursery
        self.events: list[dict[str, Any]] = []
        self.heard = trio.Event()
        self.worker: Worker | None = None
        self.stopped = trio.Event()

    def hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.heard.set()

    async def wait_for(self, name: str) -> dict[str, Any]:
        while True:
            found = next((event for event in self.events if event["event"] == name), None)
            if found is not None:
                return found
            self.heard = trio.Event()
            await self.heard.wait()

    def start_worker(self, **options: Any) -> Worker:
        worker = Worker(
            Client(self.url),
            **{
                "task_queue": "q",
                "workflows": workflows.ALL,
                "activities": worker_handlers.ALL,
                "supervisor": SupervisorOptions(children=1, stop=FAST_STOPS, preload=["running.worker_handlers"]),
                "on_event": self.hear,
                **options,
            },
        )
        self.worker = worker

        async def run() -> None:
            await worker.run()
            self.stopped.set()

        self.nursery.start_soon(run)
        return worker

    async def run(self, name: str, *arguments: Any, **options: Any) -> Any:
        handle = await self.client.start_workflow("one", [name, list(arguments), options], task_queue="q")
        return await handle.result()

    def attempts(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "attempt_ended"]


@asynccontextmanager
async def world(**server: Any) -> AsyncIterator[World]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, ServerOptions(**server))
            async with Client(url) as client, trio.open_nursery() as inner:
                yield World(url, client, inner)
                inner.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_from(pipe: Path) -> int:
    return int(await trio.to_thread.run_sync(pipe.read_text, abandon_on_cancel=True))
