"""Talking to the server without sockets: a clock moved by hand, an ASGI caller, and a scripted worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio
import trio.testing

from proctor.server.app import Api
from proctor.server.credentials import Credentials
from proctor.server.database import open_database
from proctor.server.faults import Faults, JumpingClock
from proctor.server.ids import Ids
from proctor.server.polling import CAPACITY
from proctor.server.rules.book import Settings
from proctor.server.store import Store, open_store
from proctor.server.waiting import DeadlineSweep, QueueBell

EMPTY_LIST = "wwHioz3/VYAiNwwA"  # the payload of []
TEXT = "wwHioz3/VYAiNwoMb2stQWRh"  # the payload of "ok-Ada"
ENVELOPE = {"codec": "avro", "blob": TEXT}
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COOPERATIVE = ("cooperative_cancellation", "prepared_local_activities")
WITH_POLICIES = (*COOPERATIVE, "prepared_local_activity_cancellation_policies")
METADATA = ("memo_upserts", "typed_search_attributes")
WITH_GROUPS = (*WITH_POLICIES, "prepared_local_activity_groups")


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self._now = START
        self._sleepers: list[tuple[datetime, trio.Event]] = []
        self._fell_asleep = trio.Event()

    def now(self) -> datetime:
        return self._now

    async def sleep_until(self, instant: datetime) -> None:
        if instant <= self._now:
            await trio.lowlevel.checkpoint()
            return
        entry = (instant, trio.Event())
        self._sleepers.append(entry)
        self._fell_asleep.set()
        try:
            await entry[1].wait()
        finally:
            self._sleepers.remove(entry)

    async def sleeper(self, instant: datetime) -> None:
        """Return when somebody sleeps until exactly this instant."""
        while not any(due == instant for due, _ in self._sleepers):
            self._fell_asleep = trio.Event()
            await self._fell_asleep.wait()

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        for instant, event in self._sleepers:
            if instant <= self._now:
                event.set()


def instant(seconds: float) -> str:
    """Give the wire text of the instant `seconds` after the start of the test."""
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]
    raw: bytes = b""

    @property
    def reason(self) -> Any:
        return self.body.get("reason")

    def ok(self, status: int = 200) -> dict[str, Any]:
        assert self.status == status, (self.status, self.body)
        return self.body

    def refused(self, status: int, reason: str) -> dict[str, Any]:
        assert (self.status, self.reason) == (status, reason), (self.status, self.body)
        return self.body


class Wire:
    """The HTTP face of one server, called as ASGI."""

    def __init__(self, api: Api, store: Store, clock: ManualClock, stopping: trio.Event) -> None:
        self.app = api.application()
        self.store = store
        self.clock = clock
        self.stopping = stopping

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        left: trio.Event | None = None,
    ) -> Reply:
        """Make one request; setting `left` is the client closing its connection."""
        path, _, query = path.partition("?")
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        gone = trio.Event() if left is None else left
        sent: list[Any] = []
        requested = False

        async def receive() -> dict[str, Any]:
            nonlocal requested
            if not requested:
                requested = True
                return {"type": "http.request", "body": content, "more_body": False}
            if not gone.is_set():
                await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self.app(scope, receive, send)
        raw_body = b"".join(message.get("body", b"") for message in sent[1:])
        names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        is_json = names.get("content-type", "").partition(";")[0].endswith("json")
        return Reply(sent[0]["status"], names, json.loads(raw_body) if raw_body and is_json else {}, raw_body)

    async def worker(
        self, path: str, body: Any = None, *, version: str = "1.20", method: str = "POST", **options: Any
    ) -> Reply:
        headers = {"X-Durable-Workflow-Protocol-Version": version, "X-Namespace": "default"}
        return await self.request(method, f"/api/worker{path}", body, headers=headers, **options)

    async def control(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "X-Namespace": "default"}
        return await self.request(method, f"/api{path}", body, headers=headers, **options)

    async def start(self, workflow_id: str = "wf", workflow_type: str = "t", **fields: Any) -> dict[str, Any]:
        body = {"workflow_id": workflow_id, "workflow_type": workflow_type, "task_queue": "q", **fields}
        return (await self.control("POST", "/workflows", body)).ok(201)

    async def describe(self, workflow_id: str = "wf") -> dict[str, Any]:
        return (await self.control("GET", f"/workflows/{workflow_id}")).ok()

    async def events(self, workflow_id: str = "wf") -> list[dict[str, Any]]:
        run_id = (await self.describe(workflow_id))["run_id"]
        path = f"/workflows/{workflow_id}/runs/{run_id}/history?page_size=1000"
        events = (await self.control("GET", path)).ok()["events"]
        assert isinstance(events, list)
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        return events

    async def event_types(self, workflow_id: str = "wf") -> list[str]:
        return [event["event_type"] for event in await self.events(workflow_id)]

    async def settle(self) -> None:
        """Return when every request made so far that is not parked has been answered."""
        await self.store.transact(lambda tx: None)
        await trio.testing.wait_all_tasks_blocked()

    async def parked(self) -> None:
        """Return when a request that was started just now waits for something else to happen."""
        for _ in range(3):  # it is begun, its transaction is done, it has looked once more
            await self.settle()

    async def cancel_cooperatively(self, workflow_id: str = "wf", **body: Any) -> dict[str, Any]:
        reply = await self.control("POST", f"/workflows/{workflow_id}/request-cancellation", body)
        assert reply.status in (200, 202), reply
        return reply.body


def manifest(capabilities: tuple[str, ...]) -> dict[str, Any]:
    """Give the manifest that fits a list of capabilities."""
    keys = ("local_activities", "worker_sessions", "sticky_execution")
    return {key: {"supported": key in capabilities, "minimum_protocol_version": "1.18"} for key in keys}


@dataclass
class Worker:
    """A scripted worker on queue ``q`` for workflow type ``t``."""

    wire: Wire
    worker_id: str = "w"
    capabilities: tuple[str, ...] = (*WITH_POLICIES, *METADATA)
    version: str = "1.20"
    polls: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    async def register(self, **changes: Any) -> dict[str, Any]:
        body = {
            "worker_id": self.worker_id,
            "task_queue": "q",
            "runtime": "python",
            "supported_workflow_types": ["t"],
            "capabilities": list(self.capabilities),
            "capability_manifest": manifest(self.capabilities),
            **changes,
        }
        return (await self.wire.worker("/register", body, version=self.version)).ok(201)

    async def try_poll(
        self, *, request_id: str | None = None, left_client: trio.Event | None = None, **changes: Any
    ) -> Reply:
        self.polls += 1
        body = {
            "worker_id": self.worker_id,
            "task_queue": "q",
            "poll_request_id": request_id or f"{self.worker_id}-{self.polls}",
            "timeout_seconds": 0,
            **changes,
        }
        return await self.wire.worker("/workflow-tasks/poll", body, version=self.version, left=left_client)

    async def poll(self, **changes: Any) -> Claim:
        task = (await self.try_poll(**changes)).ok()["task"]
        assert task is not None, "no task was ready"
        return Claim(self, task)

    async def idle(self) -> bool:
        return (await self.try_poll()).ok()["task"] is None


@dataclass
class Claim:
    """A leased task and what its holder may ask."""

    worker: Worker
    task: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "lease_owner": self.task["lease_owner"],
            "workflow_task_attempt": self.task["workflow_task_attempt"],
        }

    async def post(self, path: str, **body: Any) -> Reply:
        return await self.worker.wire.worker(
            f"/workflow-tasks/{self.task['task_id']}{path}",
            {**self.identity, **body},
            version=self.worker.version,
        )

    async def complete(self, *commands: dict[str, Any]) -> Reply:
        finish = {"type": "complete_workflow", "result": ENVELOPE}
        return await self.post("/complete", commands=list(commands) or [finish])

    async def prepare(self, nonce: str = "n1", *, sequence: int = 1, **descriptor: Any) -> Reply:
        return await self.post(
            "/local-activities/prepare",
            sequence=sequence,
            worker_attempt_id=nonce,
            descriptor=describe_call(**descriptor),
        )

    async def prepared(self, nonce: str = "n1", *, sequence: int = 1, **descriptor: Any) -> Attempt:
        return Attempt(self, (await self.prepare(nonce, sequence=sequence, **descriptor)).ok())

    async def recover(self, *, sequence: int = 1, **descriptor: Any) -> Reply:
        return await self.post("/local-activities/recover", sequence=sequence, descriptor=describe_call(**descriptor))

    async def checkpoint(self, checkpoint_id: str, start: int, *commands: dict[str, Any], **extra: Any) -> Reply:
        return await self.post(
            "/local-activities/checkpoint",
            checkpoint_id=checkpoint_id,
            start_sequence=start,
            commands=list(commands),
            **extra,
        )

    async def checkpoint_group(self, checkpoint_id: str, start: int, *commands: dict[str, Any]) -> Reply:
        return await self.post(
            "/local-activities/checkpoint-group",
            checkpoint_id=checkpoint_id,
            start_sequence=start,
            commands=list(commands),
        )


@dataclass
class Attempt:
    """A prepared attempt and what its owner may report."""

    claim: Claim
    receipt: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.receipt["activity_attempt_id"])

    async def post(self, operation: str, **body: Any) -> Reply:
        return await self.claim.post(f"/local-activities/{self.id}/{operation}", **body)

    async def control(self, *, renew: bool = True) -> Reply:
        return await self.post("control", renew_lease=renew)

    async def beat(self, **details: Any) -> Reply:
        return await self.post("heartbeat", progress={"details": details})

    async def outcome(self, outcome: str = "completed", **report: Any) -> Reply:
        if outcome == "completed" and "result" not in report:
            report["result"] = ENVELOPE
        return await self.post("outcome", report={"outcome": outcome, **report})

    async def acknowledge(self, request_id: str) -> Reply:
        return await self.post("acknowledge-cancellation", request_id=request_id)


def describe_call(**changes: Any) -> dict[str, Any]:
    """Give a descriptor of the local activity ``crunch``; ``cancellation_policy`` and the like may be added."""
    return {
        "type": "record_local_activity",
        "activity_type": "crunch",
        "execution_mode": "local",
        "arguments": {"codec": "avro", "blob": EMPTY_LIST},
        "payload_codec": "avro",
        **changes,
    }


def retries(attempts: int, *pauses: int) -> dict[str, Any]:
    return {"max_attempts": attempts, "backoff_seconds": list(pauses)}


def side_effect() -> dict[str, Any]:
    return {"type": "record_side_effect", "result": TEXT}


@asynccontextmanager
async def running_server(
    settings: Settings | None = None,
    *,
    credentials: Credentials | None = None,
    sweeping: bool = False,
    faults: bool = False,
    database: Path | None = None,
    power_loss_safe: bool = True,
    clock: ManualClock | None = None,
    poll_capacity: int = CAPACITY,
    namespaces: tuple[str, ...] = ("default",),
) -> AsyncIterator[Wire]:
    """Run a server on a clock that stands still, in memory unless a file is given.

    Without the sweep only requests notice the time.
    """
    clock = clock or ManualClock()
    jumping = JumpingClock(clock)
    stopping = trio.Event()
    with open_database(database, power_loss_safe=power_loss_safe) as opened:
        async with open_store(opened, clock=jumping, ids=Ids(), settings=settings or Settings()) as store:
            bell = QueueBell()
            sweep = DeadlineSweep(store, bell)
            store.listen(bell.hear)
            store.listen(sweep.hear)
            induced = Faults(store, jumping, credentials or Credentials(), "default") if faults else None
            api = Api(
                store,
                bell,
                server_id="test",
                credentials=credentials,
                stopping=stopping,
                faults=induced,
                poll_capacity=poll_capacity,
                namespaces=namespaces,
            )
            async with trio.open_nursery() as nursery:
                if sweeping:
                    nursery.start_soon(sweep.run)
                yield Wire(api, store, clock, stopping)
                nursery.cancel_scope.cancel()
