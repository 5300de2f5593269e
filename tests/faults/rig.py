"""A real server, a fault proxy, real workers behind it, and what must hold of every run whatever went wrong."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from faults import work
from proctor import Client
from proctor.harness import Exchange, FaultProxy, Rule, ServerFaults, open_fault_proxy
from proctor.server import ServerOptions, serve
from proctor.worker import Worker
from proctor_supervisor import StopPolicy, SupervisorOptions

STOPS = StopPolicy(notice_grace=0.05, raise_grace=0.05)
PUBLISHED = ("completed", "failed", "timed_out")
ENDS = ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled")
RUN_ENDS = ("WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTerminated", "WorkflowTimedOut")


Restart = Callable[..., Awaitable[None]]


class Life:
    """The life of the server, which may end and begin again at the same address, on the same file, as another one."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        with self._scope:
            await serve(self._options, task_status=task_status)
        self._ended.set()

    async def restart(self, nursery: trio.Nursery, url: str, **options: Any) -> None:
        assert self._options.database is not None, "what lives in memory ends with the server"
        self._scope.cancel()
        await self._ended.wait()
        port = int(url.rsplit(":", 1)[1])
        self._options = replace(self._options, port=port, **options)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        await nursery.start(self.run)


class Rig:
    """`client` talks to the server directly, workers through `proxy`; `restart` ends a server that has a file, and
    begins it again with other options.
    """

    def __init__(self, url: str, client: Client, proxy: FaultProxy, nursery: trio.Nursery, restart: Restart) -> None:
        self.url = url
        self.restart = restart
        self.client = client
        self.proxy = proxy
        self.server = ServerFaults(url)
        self.told: list[dict[str, Any]] = []
        self._nursery = nursery
        self._heard = trio.Event()
        self._numbers = itertools.count(1)
        self._values = itertools.count(10_000)

    async def start_worker(self, worker_id: str = "w", **options: Any) -> Worker:
        worker = Worker(
            Client(self.proxy.url),
            **{
                "task_queue": "q",
                "workflows": work.WORKFLOWS,
                "activities": work.ACTIVITIES,
                "worker_id": worker_id,
                "supervisor": SupervisorOptions(children=1, stop=STOPS, preload=["faults.work"]),
                "on_event": self._hear,
                "drain_grace": 1.0,
                **options,
            },
        )
        seen = len(self.told)
        self._nursery.start_soon(worker.run)
        await self.event("registered", after=seen, worker_id=worker_id)
        return worker

    def _hear(self, event: dict[str, Any]) -> None:
        self.told.append(event)
        self._heard.set()
        self._heard = trio.Event()

    async def event(self, name: str, *, after: int = 0, **fields: Any) -> dict[str, Any]:
        """Wait for an event of this name with these fields."""
        wanted = {"event": name, **fields}
        while True:
            found = next((event for event in self.told[after:] if wanted.items() <= event.items()), None)
            if found is not None:
                return found
            await self._heard.wait()

    async def events(self, name: str, count: int) -> list[dict[str, Any]]:
        """Wait until so many events of this name were told."""
        while len(found := [event for event in self.told if event["event"] == name]) < count:
            await self._heard.wait()
        return found

    async def start(self, kind: str, name: str, *arguments: Any) -> Any:
        workflow_id = f"run-{next(self._numbers)}"
        return await self.client.start_workflow(kind, [name, list(arguments)], task_queue="q", workflow_id=workflow_id)

    async def spoilt_runs(self, kind: str, rules: list[Rule], *, name: str = "work", size: int = 5) -> None:
        """Run with values of `size` letters until every rule has acted, and hold each run against the promises."""
        # A poll that is parked already is none that a rule sees, and a call that is lost may keep another from being
        # made: then the next run is the one.
        for _ in range(8):
            value = f"{next(self._values)} ".ljust(size, "v")  # no two are alike, so that none is known already
            handle = await self.start(kind, name, value)
            assert await handle.result() == value
            await self.check(handle)
            if all(rule.used_up for rule in rules):
                break
        missed = [rule.match.operation for rule in rules if not rule.used_up]
        assert not missed, f"{missed} was not seen often enough"
        for rule in rules:
            self.proxy.remove(rule)

    async def check(self, handle: Any) -> list[dict[str, Any]]:
        """History has one end of each call and of the run; nothing was published twice or after lost authority."""
        history: list[dict[str, Any]] = await handle.history()
        ends: Counter[Any] = Counter()
        outcomes: Counter[Any] = Counter()
        for event in history:
            payload = event["payload"]
            if event["event_type"] in ENDS:
                ends[payload["sequence"]] += 1
            if payload.get("local_outcome"):
                outcomes[payload["activity_attempt_id"]] += 1
        assert set(ends.values()) <= {1}, f"a call ended more than once: {ends}"
        assert set(outcomes.values()) <= {1}, f"an attempt was published more than once: {outcomes}"
        closed = [event["event_type"] for event in history if event["event_type"] in RUN_ENDS]
        assert len(closed) == 1, closed
        check_exchanges(self.proxy.exchanges)
        return history


def check_exchanges(exchanges: tuple[Exchange, ...]) -> None:
    """After a worker was told that an attempt is not its own any more, it publishes nothing of it."""
    lost: dict[str, Exchange] = {}
    for exchange in exchanges:
        if exchange.operation not in ("control", "heartbeat", "outcome", "acknowledge_cancellation"):
            continue
        attempt = exchange.path.split("/")[-2]
        before = lost.get(attempt)
        if before is not None and before.ended is not None and exchange.operation != "control":
            assert exchange.began <= before.ended, f"published after lost authority: {before} then {exchange}"
        if exchange.given == 409 and exchange.operation == "control":
            lost.setdefault(attempt, exchange)


@asynccontextmanager
async def rig(*, within: float = 60, **server: Any) -> AsyncIterator[Rig]:
    with trio.fail_after(within):
        async with trio.open_nursery() as nursery:
            life = Life(ServerOptions(faults=True, **server))
            url = await nursery.start(life.run)
            async with Client(url) as client, open_fault_proxy(url) as proxy, trio.open_nursery() as workers:
                yield Rig(url, client, proxy, workers, partial(life.restart, nursery, url))
                workers.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pipe_in(folder: Path, name: str = "pipe") -> Path:
    os.mkfifo(folder / name)
    return folder / name


async def pid_from(pipe: Path) -> int:
    return int(await trio.to_thread.run_sync(pipe.read_text, abandon_on_cancel=True))


async def pids_from(pipe: Path, count: int) -> list[int]:
    """Read what several processes say of themselves, whoever comes first."""
    # Open for writing, too: the pipe must not end between two of them.
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    said = b""
    try:
        while said.count(b"\n") < count:
            await trio.lowlevel.wait_readable(descriptor)
            said += os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    return [int(line) for line in said.split()]
