"""The HTTP application: reading requests, and the long poll. What an operation does is not decided here.

Every request goes the same way: checks of its plane, one transaction, the answer in its envelope. A poll adds a wait;
while it is parked the client is watched, so that a dead worker's poll takes no task.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from proctor.server.bodies import read_body
from proctor.server.discovery import cluster_info, external_payload_storage
from proctor.server.external_payloads import ExternalPayloads
from proctor.server.faults import Faults
from proctor.server.operations import activity_tasks, fleet, queries, workflow_polls
from proctor.server.operations.calls import Call, Operation, Waiting, perform
from proctor.server.planes import Credentials, Envelopes, check_control_version, worker_minor
from proctor.server.routes import CONTROL_ROUTES, WORKER_ROUTES, identity
from proctor.server.rules.refusal import Answer, Refusal, not_found
from proctor.server.store import Store, StoreClosed
from proctor.server.transaction import Transaction, activity_queue, query_queue
from proctor.server.waiting import QueueBell, first_of

log = structlog.get_logger("proctor.server")

# Under which name the polls of each kind are woken.
_BELLS: dict[str, Callable[[str], str]] = {"workflow": str, "activity": activity_queue, "query": query_queue}


class Api:
    """The endpoints over one store. `stopping` ends parked polls at once."""

    def __init__(
        self,
        store: Store,
        bell: QueueBell,
        *,
        server_id: str,
        credentials: Credentials | None = None,
        namespaces: tuple[str, ...] = ("default",),
        stopping: trio.Event | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._store = store
        self._faults = faults
        self._bell = bell
        self._settings = store.settings
        self._envelopes = Envelopes(store.settings)
        self._server_id = server_id
        self._credentials = credentials or Credentials()
        self._namespaces = namespaces
        self._stopping = trio.Event() if stopping is None else stopping

    def application(self) -> Starlette:
        """Give the ASGI application."""
        routes = [Route(path, self._worker(operation), methods=[method]) for method, path, operation in WORKER_ROUTES]
        routes += [
            Route("/api/worker/workflow-tasks/poll", self._poll_workflow_tasks, methods=["POST"]),
            Route("/api/worker/activity-tasks/poll", self._poll_activity_tasks, methods=["POST"]),
            Route("/api/worker/query-tasks/poll", self._poll_query_tasks, methods=["POST"]),
            Route("/api/cluster/info", self._discover, methods=["GET"]),
        ]
        routes += [
            Route(path, self._control(name, operation), methods=[method])
            for method, path, name, operation in CONTROL_ROUTES
        ]
        routes += [Route("/api/namespaces/{name}", self._control("describe_namespace", self._namespace))]
        external = ExternalPayloads(
            self._settings,
            perform=lambda work: self._perform(lambda tx, call: work(tx), Call(namespace="")),
            namespace=self._resolve_namespace,
            credentials=self._credentials,
            envelopes=self._envelopes,
            faults=self._faults,
        )
        routes += external.routes()
        if self._faults is not None:
            routes += self._faults.routes()
        handlers = {404: _no_route, 405: _no_route, 500: _broken}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _worker(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                call = await self._worker_call(request)
            except Refusal as refusal:
                return self._envelopes.worker(refusal)
            result = await self._perform(operation, call)
            if isinstance(result, Refusal) and result.reason == "backend_unavailable":
                result = result.with_fields(**identity(operation, call))
            return self._envelopes.worker(result)

        return endpoint

    def _control(self, name: str, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            result: Answer | Refusal | None
            try:
                self._credentials.check(request.headers, plane="control")
                check_control_version(request.headers)
                namespace = self._resolve_namespace(request)
                body, refers = await read_body(request)
                call = Call(
                    namespace=namespace, body=body, path=request.path_params, query=request.query_params, refers=refers
                )
            except Refusal as refusal:
                result = refusal
            else:
                result = await self._perform(operation, call)
                if isinstance(result, Waiting):
                    result = await self._settle(request, call, result)
                    if result is None:
                        return Response(status_code=499)
            return self._envelopes.control(result, operation=name, path=request.path_params)

        return endpoint

    async def _worker_call(self, request: Request) -> Call:
        self._credentials.check(request.headers, plane="worker")
        minor = worker_minor(request.headers, self._settings)
        namespace = self._resolve_namespace(request)
        body, refers = await read_body(request)
        call = Call(
            namespace=namespace,
            minor=minor,
            body=body,
            path=request.path_params,
            query=request.query_params,
            refers=refers,
        )
        if self._faults is not None:
            self._faults.check_admission(request.url.path, call.body)
        return call

    def _resolve_namespace(self, request: Request) -> str:
        asked = request.headers.get("x-namespace") or request.query_params.get("namespace")
        namespace = asked or self._namespaces[0]
        if namespace not in self._namespaces:
            raise not_found("namespace_not_found", f"there is no namespace {namespace[:128]!r}")
        return namespace

    async def _perform(self, operation: Operation, call: Call) -> Answer | Refusal:
        try:
            return await self._store.transact(lambda tx: perform(operation, tx, call))
        except sqlite3.Error:
            log.exception("the database refused a transaction")
            text = "the database refused the transaction; nothing was changed, try again"
        except StoreClosed:
            text = "the server is shutting down; nothing was changed, try again"
        return _unavailable(text)

    async def _settle(self, request: Request, call: Call, waiting: Waiting) -> Answer | Refusal | None:
        """Wait for what an operation waits for; None when the client has left meanwhile."""
        while True:
            rung = self._bell.event(waiting.bell)
            result = await self._perform(waiting.look, call)
            if not isinstance(result, Waiting):
                return result
            waiting = result
            until = waiting.until

            async def time_is_up(until: datetime = until) -> None:
                await self._store.clock.sleep_until(until)

            async def client_leaves() -> None:
                await client_departure(request)

            first = await first_of(client_leaves, self._stopping.wait, rung.wait, time_is_up)
            if first == 0:
                await self._perform(waiting.leave, call)
                return None
            if first == 1:
                return _unavailable("the server is shutting down; ask again")

    def _namespace(self, tx: Transaction, call: Call) -> Answer:
        name = call.path["name"]
        if name not in self._namespaces:
            raise not_found("namespace_not_found", f"there is no namespace {name!r}")
        body = {"name": name, "description": "", "retention_days": None, "status": "active"}
        return Answer({**body, "deleted": False, "external_payload_storage": external_payload_storage(self._settings)})

    async def _discover(self, request: Request) -> Response:
        try:
            self._credentials.check(request.headers, plane="any")
            namespace = self._resolve_namespace(request)
        except Refusal as refusal:
            body = {"message": refusal.text, "reason": refusal.reason}
            return self._envelopes.discovery(body, status=refusal.status)
        listed = await self._perform(fleet.list_workers, Call(namespace=namespace))
        if isinstance(listed, Refusal):
            body = {"message": listed.text, "reason": listed.reason, "operation": "cluster_info", **listed.extra}
            return self._envelopes.discovery(body, status=listed.status)
        return self._envelopes.discovery(
            cluster_info(
                self._settings,
                server_id=self._server_id,
                namespace=namespace,
                default_namespace=self._namespaces[0],
                workers=listed.body["workers"],
            )
        )

    async def _poll_workflow_tasks(self, request: Request) -> Response:
        return await self._poll(request, "workflow", workflow_polls.poll)

    async def _poll_activity_tasks(self, request: Request) -> Response:
        return await self._poll(request, "activity", activity_tasks.poll)

    async def _poll_query_tasks(self, request: Request) -> Response:
        return await self._poll(request, "query", queries.poll)

    async def _poll(self, request: Request, kind: str, operation: Operation) -> Response:
        try:
            call = await self._worker_call(request)
            seconds, queue = workflow_polls.read_poll(call)
        except Refusal as refusal:
            return self._envelopes.worker(refusal)
        until = self._store.clock.now() + timedelta(seconds=seconds)
        while True:
            namespace, name = queue
            work_arrived = self._bell.event((namespace, _BELLS[kind](name)))
            result = await self._claim(call, kind, operation)
            if isinstance(result, Refusal) or result.body["task"] is not None:
                return await self._hand_over(request, call, result)
            stale = result.body["poll_status"] == workflow_polls.STALE
            if stale or self._stopping.is_set() or self._store.clock.now() >= until:
                return self._envelopes.worker(result)
            call = replace(call, incarnation=result.incarnation)

            async def time_is_up() -> None:
                await self._store.clock.sleep_until(until)

            async def client_leaves() -> None:
                await client_departure(request)

            if await first_of(client_leaves, self._stopping.wait, work_arrived.wait, time_is_up) == 0:
                return Response(status_code=499)

    async def _claim(self, call: Call, kind: str, operation: Operation) -> Answer | Refusal:
        # Not cancellable: a lease that is committed must reach the check of the client, or it is lost for its length.
        with trio.CancelScope(shield=True):
            result = await self._perform(operation, call)
        if isinstance(result, Refusal) and result.reason == "backend_unavailable":
            return result.with_fields(
                **identity(operation, call),
                task=None,
                poll_status="backend_unavailable",
                poll_request_id=call.body.get("poll_request_id"),
                retry_same_poll_request_id=True,
            )
        return result

    async def _hand_over(self, request: Request, call: Call, result: Answer | Refusal) -> Response:
        """Give the answer of a poll, or take the lease back when its client has left meanwhile."""
        task = None if isinstance(result, Refusal) else result.body["task"]
        if task is not None and await request.is_disconnected():

            def undo(tx: Transaction) -> None:
                if "query_task_id" in task:
                    queries.undo_poll(tx, call.namespace, task["query_task_id"], task["query_task_attempt"])
                elif "workflow_task_attempt" in task:
                    workflow_polls.undo_poll(tx, call.namespace, task["task_id"], task["workflow_task_attempt"])
                else:
                    activity_tasks.undo_poll(tx, call.namespace, task["task_id"])

            with trio.CancelScope(shield=True):
                await self._store.transact(undo)
        return self._envelopes.worker(result)


def _unavailable(text: str) -> Refusal:
    extra = {"outcome": "unknown", "retryable": True, "retry_after_seconds": 1}
    return Refusal(503, "backend_unavailable", text, extra)


async def client_departure(request: Request) -> None:
    """Return when the client has closed its connection; the request must have been read before."""
    while True:
        message: Message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def _broken(request: Request, exc: Exception) -> Response:
    text = "the server met an error of its own; its log says which"
    body = msgspec.json.encode({"message": text, "error": text, "reason": "internal_error"})
    return Response(body, status_code=500, media_type="application/json")


async def _no_route(request: Request, exc: Exception) -> Response:
    text = f"this server has no operation {request.method} {request.url.path}"
    body = msgspec.json.encode({"message": text, "error": text, "reason": "operation_not_found"})
    return Response(body, status_code=getattr(exc, "status_code", 404), media_type="application/json")
