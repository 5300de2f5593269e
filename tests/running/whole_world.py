"""The real service, the real replay and the real server rules on one mocked clock, with a network that can be spoilt.

Only children, sockets and the server's writer thread are stood in for, so a story of minutes takes milliseconds.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import trio

from proctor import workflow
from proctor.core.codec import envelope
from proctor.core.replay import replay
from proctor.errors import ServerUnreachable
from proctor.running.registration import WorkerIdentity
from proctor.running.service import ServiceOptions, WorkerService
from proctor.running.surroundings import Surroundings
from proctor.server.app import Api
from proctor.server.database import open_database
from proctor.server.ids import Ids
from proctor.server.rules.book import Settings
from proctor.server.store import Store
from proctor.server.waiting import DeadlineSweep, QueueBell
from proctor.transport.calls import Answer, Call
from proctor.transport.retrying import TRIES, backoff, delay_after_answer
from proctor.transport.settings import POLL_MEDIA_TYPE, ServerSettings
from running.scripted_children import Behaviour, ScriptedChildren
from running.scripted_server import _operation
from server.wire import Wire

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class TrioClock:
    """The server's clock is the mocked clock of the test."""

    def __init__(self) -> None:
        self._begun = trio.current_time()

    def now(self) -> datetime:
        return START + timedelta(seconds=trio.current_time() - self._begun)

    async def sleep_until(self, instant: datetime) -> None:
        await trio.sleep(max(0.0, (instant - self.now()).total_seconds()) + 1e-6)


class LoopStore(Store):
    """Commits in the loop: a mocked clock must not jump while a thread works."""

    async def write(self) -> None:
        while True:
            await self._arrived.wait()
            batch, self._queue, self._arrived = self._queue, [], trio.Event()
            self._commit(batch)
            self._announce(batch)


class Broken(Exception):
    """No answer came back over this connection."""


Pass = Callable[[], Any]
Fault = Callable[["Pass"], Any]
"""Gets the honest exchange as a coroutine function and gives status and body, or raises Broken."""


@dataclass(frozen=True)
class Late:
    """The request arrives after so many seconds, also when its sender has given up."""

    seconds: float


@dataclass
class Network:
    """A transport to the server's ASGI face. Each fault spoils one exchange of its operation, retries included.

    What is late is under way in `nursery`.
    """

    wire: Wire
    nursery: trio.Nursery
    settings: ServerSettings = field(default_factory=lambda: ServerSettings("http://server"))
    faults: dict[str, list[Fault | Late]] = field(default_factory=lambda: defaultdict(list))
    seen: list[tuple[str, int, Any]] = field(default_factory=list)

    async def send(self, call: Call, *, within: float) -> Answer:
        started = trio.current_time()
        with trio.move_on_after(within):
            failures = 0
            while True:
                try:
                    status, body = await self._exchange(call)
                except Broken as exc:
                    failures += 1
                    if call.single or failures >= TRIES:
                        raise ServerUnreachable("broken") from exc
                    await trio.sleep(backoff(failures, jitter=0.5))
                    continue
                failures += 1
                delay = delay_after_answer(status, body, failures=failures, poll=call.poll, jitter=0.5)
                if delay is None or call.single:
                    return Answer(status, body, started, trio.current_time(), self.wire.clock.now())
                await trio.sleep(delay)
        raise ServerUnreachable(f"nothing within {within}")

    async def _exchange(self, call: Call) -> tuple[int, Any]:
        operation = _operation(call)

        async def honest() -> tuple[int, Any]:
            path = f"/api{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
            reply = await self.wire.request(call.method, path, call.body, headers=self.settings.headers(call))
            status, body = reply.status, reply.body
            if reply.headers.get("content-type") == POLL_MEDIA_TYPE:
                status, body = body["status"], body["body"]
            self.seen.append((operation, status, copy.deepcopy(body)))
            return status, body

        await trio.sleep(0.001)
        fault = self.faults[operation].pop(0) if self.faults[operation] else None
        if isinstance(fault, Late):
            return await self._late(honest, fault.seconds)
        answer: tuple[int, Any] = await (honest() if fault is None else fault(honest))
        return answer

    async def _late(self, honest: Pass, seconds: float) -> tuple[int, Any]:
        answers: list[tuple[int, Any]] = []
        arrived = trio.Event()

        async def arrive() -> None:
            await trio.sleep(seconds)
            answers.append(await honest())
            arrived.set()

        self.nursery.start_soon(arrive)
        await arrived.wait()
        return answers[0]


async def lost_before_commit(honest: Pass) -> Any:
    raise Broken


async def lost_after_commit(honest: Pass) -> Any:
    await honest()
    raise Broken


async def duplicated(honest: Pass) -> Any:
    await honest()
    return await honest()


def answered_late(seconds: float) -> Fault:
    async def fault(honest: Pass) -> Any:
        answer = await honest()
        await trio.sleep(seconds)
        return answer

    return fault


def malformed(paths: Iterable[tuple[str, ...]], value: Any) -> Fault:
    async def fault(honest: Pass) -> Any:
        status, body = await honest()
        for path in paths:
            inner = body
            for key in path[:-1]:
                inner = inner.get(key) if isinstance(inner, dict) else None
            if isinstance(inner, dict) and path[-1] in inner:
                inner[path[-1]] = value
        return status, body

    return fault


class Story:
    """One run, one worker, and what can be said about them afterwards."""

    def __init__(
        self,
        wire: Wire,
        nursery: trio.Nursery,
        workflow_class: type[Any],
        behaviours: list[Behaviour],
        profile: str,
        *,
        slots: int = 1,
        provable: bool = True,
    ) -> None:
        self.wire = wire
        self.profile = profile
        self.network = Network(wire, nursery)
        self.children = ScriptedChildren(*behaviours, provable=provable)
        self.events: list[dict[str, Any]] = []
        definition = workflow.definition_of(workflow_class)
        self.service = WorkerService(
            ServiceOptions(WorkerIdentity("w", "q", (definition.name,), slots, profile=profile)),
            self.network,
            workflows={definition.name: definition},
            replay=replay,
            surroundings=Surroundings(self.children, frozenset({"act"}), "w", "q", self.events.append),
        )
        self._name = definition.name

    async def run(self, *, within: float = 400, meanwhile: Callable[[], Any] | None = None) -> dict[str, Any]:
        """Work until the run is closed; gives its description."""
        await self.wire.start("wf", self._name, arguments=envelope([]))
        with trio.fail_after(within):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.service.run)
                if meanwhile is not None:
                    nursery.start_soon(meanwhile)
                open_states = ("pending", "running", "waiting")
                while (described := await self.wire.describe())["status"] in open_states:  # noqa: ASYNC110 - mocked time
                    await trio.sleep(0.5)
                nursery.cancel_scope.cancel()
        return described

    async def check(self) -> list[dict[str, Any]]:
        """Hold history against the promises; gives it."""
        history = await self.wire.events()
        ends: Counter[Any] = Counter()
        published: Counter[Any] = Counter()
        for event in history:
            payload = event["payload"]
            if event["event_type"] in ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"):
                ends[payload["sequence"]] += 1
            if payload.get("local_outcome"):
                published[payload["activity_attempt_id"]] += 1
        assert all(count == 1 for count in ends.values()), f"more than one end: {ends}"
        assert all(count == 1 for count in published.values()), f"an attempt was published twice: {published}"
        assert (
            sum(event["event_type"].startswith(("WorkflowComp", "WorkflowFail", "WorkflowCanc")) for event in history)
            == 1
        )
        if self.profile == "supervised":
            identities = [job.attempt_id for job in self.children.jobs]
            assert len(identities) == len(set(identities)), "an attempt was started twice"
        assert self.children.running == 0
        return history


@asynccontextmanager
async def story(
    workflow_class: type[Any],
    *behaviours: Behaviour,
    profile: str = "supervised",
    lease: float = 10.0,
    slots: int = 1,
    provable: bool = True,
) -> AsyncIterator[Story]:
    """Open a server and a worker that is not started yet, on the mocked clock."""
    clock, stopping = TrioClock(), trio.Event()
    with open_database(None) as database:
        store = LoopStore(database, clock, Ids(), Settings(lease_seconds=lease))
        bell = QueueBell()
        sweep = DeadlineSweep(store, bell)
        store.listen(bell.hear)
        store.listen(sweep.hear)
        api = Api(store, bell, server_id="test", stopping=stopping)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write)
            nursery.start_soon(sweep.run)
            wire = Wire(api, store, clock, stopping)  # type: ignore[arg-type]
            yield Story(wire, nursery, workflow_class, list(behaviours), profile, slots=slots, provable=provable)
            nursery.cancel_scope.cancel()
