"""The HTTP application: every request goes through the checks of its plane and one transaction into its envelope.

What an operation does is not decided here; holding polls is in `polling`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from proctor.server.bodies import read_body
from proctor.server.credentials import Credentials
from proctor.server.discovery import cluster_info, external_payload_storage
from proctor.server.external_payloads import ExternalPayloads
from proctor.server.faults import Faults
from proctor.server.operations import fleet, workers
from proctor.server.operations.calls import Call, Operation, Waiting, perform
from proctor.server.planes import Envelopes, check_control_version, worker_minor
from proctor.server.polling import CAPACITY, Polls, client_departure
from proctor.server.routes import ADMIN_OPERATIONS, CONTROL_ROUTES, WORKER_ROUTES
from proctor.server.rules.quotas import QuotaExhausted
from proctor.server.rules.refusal import Answer, Refusal, not_found
from proctor.server.store import Store, StoreClosed
from proctor.server.transaction import Transaction
from proctor.server.unavailable import identified, refused_by_database, unavailable
from proctor.server.waiting import QueueBell, first_of

log = structlog.get_logger("proctor.server")


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
        poll_capacity: int = CAPACITY,
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
        self._polls = Polls(store, bell, perform=self._perform, stopping=self._stopping, capacity=poll_capacity)

    def application(self) -> Starlette:
        """Give the ASGI application."""
        routes = [Route(path, self._worker(operation), methods=[method]) for method, path, operation in WORKER_ROUTES]
        routes += [
            Route(f"/api/worker/{kind.replace('_', '-')}-tasks/poll", self._poll(kind), methods=["POST"])
            for kind in ("workflow", "activity", "query", "update_validation")
        ]
        routes += [Route("/api/cluster/info", self._discover, methods=["GET"])]
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
        application = Starlette(routes=routes, exception_handlers=handlers)
        application.router.redirect_slashes = False
        return application

    def _worker(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                call = await self._worker_call(request, plane="register" if operation is workers.register else "worker")
            except Refusal as refusal:
                return self._envelopes.worker(refusal)
            result = await self._perform(operation, call)
            if isinstance(result, Refusal):
                result = identified(result, operation, call)
            return self._envelopes.worker(result)

        return endpoint

    def _control(self, name: str, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            result: Answer | Refusal | None
            try:
                self._credentials.check(request.headers, plane="admin" if name in ADMIN_OPERATIONS else "control")
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

    async def _worker_call(self, request: Request, *, plane: str = "worker") -> Call:
        self._credentials.check(request.headers, plane=plane)
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
        except QuotaExhausted as exc:
            return exc.refusal
        except sqlite3.Error as exc:
            log.exception("the database refused a transaction")
            return refused_by_database(exc)
        except StoreClosed:
            return unavailable("the server is shutting down; nothing was changed, try again")

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
                return unavailable("the server is shutting down; ask again")

    def _namespace(self, tx: Transaction, call: Call) -> Answer:
        name = call.path["name"]
        if name not in self._namespaces:
            raise not_found("namespace_not_found", f"there is no namespace {name!r}")
        body = {"name": name, "description": "", "retention_days": None, "status": "active"}
        return Answer({**body, "deleted": False, "external_payload_storage": external_payload_storage(self._settings)})

    async def _discover(self, request: Request) -> Response:
        try:
            self._credentials.check(request.headers, plane="discovery")
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

    def _poll(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            result: Answer | Refusal | None
            try:
                result = await self._polls.answer(request, kind, await self._worker_call(request))
            except Refusal as refusal:
                result = refusal
            if result is None:
                return Response(status_code=499)
            return self._envelopes.poll(result, request.headers.get("accept", ""))

        return endpoint


async def _broken(request: Request, exc: Exception) -> Response:
    text = "the server met an error of its own; its log says which"
    body = msgspec.json.encode({"message": text, "error": text, "reason": "internal_error"})
    return Response(body, status_code=500, media_type="application/json")


async def _no_route(request: Request, exc: Exception) -> Response:
    text = f"this server has no operation {request.method} {request.url.path}"
    body = msgspec.json.encode({"message": text, "error": text, "reason": "operation_not_found"})
    allowed = sorted(
        {
            method
            for route in request.app.routes
            if route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods or ()
        }
    )
    headers = {"Allow": ", ".join(allowed)} if allowed else {}
    return Response(body, status_code=405 if allowed else 404, headers=headers, media_type="application/json")
