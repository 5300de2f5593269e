"""The public client: start runs, wait for them, look at them (control-plane.md).

A thin class over the transport. It never appears in a child.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from proctor.core.codec import decode_value, envelope
from proctor.core.external import inline_blobs, read_external_terms, references_in
from proctor.core.wire.fields import Fields
from proctor.errors import ServerRefused, UpdateFailed, UsageError
from proctor.handle import WorkflowHandle
from proctor.transport.calls import Answer, Call, Transport, accepted, segment
from proctor.transport.external import ExternalPayloads
from proctor.transport.lanes import open_lanes
from proctor.transport.settings import ServerSettings

_CALL_SECONDS = 30.0
_QUERY_SECONDS = 60.0
"""A server gives a query 30 s, and its worker may take all of them."""
_WAIT_SECONDS = 90.0
"""A server holds a request for the next event for as long as any poll, a minute at most."""
_MOST_PARKED = 32
"""How many calls of one client may wait for news at the same time; its other calls need connections, too."""
_PAGE_SIZE = 1000
_SURELY_INLINE_BYTES = 256
"""A payload up to this is sent as it is, whatever the namespace's threshold: a reference would not be shorter."""
_LIST_PAGE_SIZE = 200


class Client:
    """A connection to one server and namespace, used as ``async with Client(url) as client``.

    `token` is sent on both planes; `worker_token` and `control_token` win over it on theirs. Raises
    UsageError for an unusable URL or token. Any call raises ServerUnreachable when no usable answer comes,
    and ServerRefused for an error answer.

    Where the namespace stores large payloads outside of requests and histories, arguments go there and results come
    from there unseen; ExternalPayloadRejected says that one is too large, gone, or not what its reference says.
    """

    def __init__(
        self,
        server_url: str,
        *,
        namespace: str = "default",
        token: str | None = None,
        worker_token: str | None = None,
        control_token: str | None = None,
    ) -> None:
        self.settings = ServerSettings(server_url, namespace, token, worker_token, control_token)
        self._exits = AsyncExitStack()
        self._transport: Transport | None = None
        self._parked = 0
        self._payloads: ExternalPayloads | None = None

    def __repr__(self) -> str:
        return f"Client({self.settings.url!r}, namespace={self.settings.namespace!r})"

    async def __aenter__(self) -> Self:
        if self._transport is not None:
            raise UsageError("this Client is already open; use one `async with` for all of its calls")
        self._transport = await self._exits.enter_async_context(open_lanes(self.settings, pollers=1))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport = self._payloads = None
        await self._exits.aclose()

    async def cluster_info(self) -> Mapping[str, Any]:
        """Give the server's discovery document (transport.md §5)."""
        answer = await self._call("discovery", "GET", "/cluster/info")
        return Fields(answer.body, what="cluster info", section="transport §5").body

    async def start_workflow(
        self,
        workflow_type: str,
        args: Sequence[Any] = (),
        *,
        task_queue: str,
        workflow_id: str | None = None,
        execution_timeout_seconds: int = 3600,
        run_timeout_seconds: int = 600,
    ) -> WorkflowHandle:
        """Start a run and give its handle; both timeouts are whole seconds (control-plane.md §3).

        Without `workflow_id` a random one is made. An id whose run is still open is refused with
        ServerRefused, reason ``instance_already_started`` or ``duplicate_not_allowed``. Raises PayloadError
        for arguments without a wire form.
        """
        identity = workflow_id if workflow_id is not None else f"wf-{uuid.uuid4().hex}"
        answer = await self._call(
            "control",
            "POST",
            "/workflows",
            {
                "workflow_id": identity,
                "workflow_type": workflow_type,
                "task_queue": task_queue,
                "input": envelope(list(args)),
                "execution_timeout_seconds": execution_timeout_seconds,
                "run_timeout_seconds": run_timeout_seconds,
                "duplicate_policy": "fail",
            },
        )
        fields = Fields(answer.body, what="start", section="control-plane §3")
        fields.exactly("workflow_id", identity, "reply")
        return WorkflowHandle(self, identity, fields.text_or_none("run_id", "reply"))

    def handle(self, workflow_id: str, run_id: str | None = None) -> WorkflowHandle:
        """Give the handle of a run that already exists; without `run_id` the current run of the id."""
        return WorkflowHandle(self, workflow_id, run_id)

    async def describe(self, workflow_id: str) -> dict[str, Any]:
        """Give the description of the current run (control-plane.md §4)."""
        answer = await self._call("control", "GET", f"/workflows/{segment(workflow_id)}")
        return dict(Fields(answer.body, what="describe", section="control-plane §4").body)

    async def history(self, workflow_id: str, run_id: str | None = None) -> list[dict[str, Any]]:
        """Give all events of one run, oldest first; without `run_id` of the current run (control-plane.md
        §5).
        """
        run = run_id if run_id is not None else (await self.describe(workflow_id)).get("run_id")
        if not isinstance(run, str) or not run:
            raise UsageError(f"workflow {workflow_id!r} has no run to read the history of")
        path = f"/workflows/{segment(workflow_id)}/runs/{segment(run)}/history"
        pages = self._pages(path, {"page_size": str(_PAGE_SIZE)}, "events", "history", "control-plane §5")
        return [event async for event in pages]

    async def events_after(self, workflow_id: str, run_id: str, sequence: int) -> tuple[list[dict[str, Any]], bool]:
        """Give the events of a run behind a history sequence, and whether there are more at once.

        Where the server can wait, an empty answer comes late. Large payloads that are stored outside of the history
        stay references: see `whole`.
        """
        query = {"page_size": str(_PAGE_SIZE), "wait_new_event": "1"}
        if sequence:
            # The reference server's token, as its own SDK writes it for the first page (worker.md §2.2).
            query["next_page_token"] = base64.b64encode(str(sequence).encode()).decode()
        path = f"/workflows/{segment(workflow_id)}/runs/{segment(run_id)}/history"
        answer = await self._call("control", "GET", path, query=query, within=_WAIT_SECONDS, whole=False)
        fields = Fields(answer.body, what="history", section="control-plane §5")
        page = fields.present("events", "page")
        if not isinstance(page, list) or not all(isinstance(one, dict) for one in page):
            fields.breach("page", "has no list of events")
        return page, bool(fields.text_or_none("next_page_token", "page"))

    async def whole(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give a part of an answer with the payloads in it that are stored elsewhere."""
        if next(references_in(value), None) is None:
            return value
        found: Mapping[str, Any] = await (await self._stored_payloads()).resolved(value)
        return found

    @contextmanager
    def parking(self) -> Iterator[bool]:
        """Say whether one more call may wait for news now, and count it as long as the block lasts."""
        may_park = self._parked < _MOST_PARKED
        self._parked += may_park
        try:
            yield may_park
        finally:
            self._parked -= may_park

    async def cancel(self, workflow_id: str, reason: str | None = None) -> None:
        """Close the run as cancelled at once; its workflow code gets no cleanup (control-plane.md §9).

        The child of a running activity is stopped as soon as its worker's next renewal is refused.
        """
        body = {} if reason is None else {"reason": reason}
        await self._call("control", "POST", f"/workflows/{segment(workflow_id)}/cancel", body)

    async def request_cancellation(
        self, workflow_id: str, reason: str | None = None, *, cleanup_timeout_seconds: int | None = None
    ) -> dict[str, Any]:
        """Ask for a cooperative cancellation and give the server's answer (cancellation.md §3).

        The run stays open for its cleanup until `cleanup_timeout_seconds` (server default 600) are over.
        """
        body: dict[str, Any] = {}
        if reason is not None:
            body["reason"] = reason
        if cleanup_timeout_seconds is not None:
            body["cleanup_timeout_seconds"] = cleanup_timeout_seconds
        path = f"/workflows/{segment(workflow_id)}/request-cancellation"
        answer = await self._call("control", "POST", path, body)
        fields = Fields(answer.body, what="request-cancellation", section="control-plane §9")
        fields.exactly("accepted", True, "reply")
        fields.boolean("duplicate", "reply")
        return dict(fields.body)

    async def terminate(self, workflow_id: str, reason: str | None = None) -> None:
        """Close the run as terminated at once (control-plane.md §9)."""
        body = {} if reason is None else {"reason": reason}
        await self._call("control", "POST", f"/workflows/{segment(workflow_id)}/terminate", body)

    async def signal(
        self, workflow_id: str, name: str, args: Sequence[Any] = (), *, request_id: str | None = None
    ) -> dict[str, Any]:
        """Send a signal to the current run and give the server's receipt (control-plane.md §6).

        `request_id` makes a repetition harmless; a random one is made and used for all tries of this call. Raises
        ServerRefused, reason ``unknown_signal`` or ``run_not_active`` among others.
        """
        body: dict[str, Any] = {"request_id": request_id or f"proctor-signal-{uuid.uuid4().hex}"}
        if args:
            body["input"] = envelope(list(args))
        answer = await self._call("control", "POST", f"/workflows/{segment(workflow_id)}/signal/{segment(name)}", body)
        return dict(Fields(answer.body, what="signal", section="control-plane §6").body)

    async def query(self, workflow_id: str, name: str, args: Sequence[Any] = ()) -> Any:
        """Ask the workflow code of the current run and give its decoded answer (control-plane.md §7).

        A worker must be there to answer, and a completed run answers too. Raises ServerRefused, reason
        ``rejected_unknown_query``, ``query_worker_unavailable`` or ``query_worker_execution_timeout`` among others.
        """
        body = {"input": envelope(list(args))} if args else {}
        path = f"/workflows/{segment(workflow_id)}/query/{segment(name)}"
        answer = await self._call("control", "POST", path, body, within=_QUERY_SECONDS)
        return _result_of(Fields(answer.body, what="query", section="control-plane §7"))

    async def update(
        self,
        workflow_id: str,
        name: str,
        args: Sequence[Any] = (),
        *,
        wait_for: Literal["accepted", "completed"] = "completed",
        wait_timeout_seconds: int | None = None,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Send an update to the current run and give the server's answer, `result` decoded (control-plane.md §8).

        It is applied once, whatever becomes of this call; with ``wait_for="completed"`` the answer of its handler is
        waited for, `wait_timeout_seconds` long (server default 10), and `update_status` is still ``accepted`` when that
        was not enough. `request_id` makes a repetition harmless; a random one is made and used for all tries of this
        call. Raises UpdateFailed when the handler failed, and ServerRefused, reason ``update_validator_rejected``,
        ``unknown_update`` or ``run_not_active`` among others, when nothing was accepted.
        """
        body: dict[str, Any] = {
            "wait_for": wait_for,
            "request_id": request_id or f"proctor-update-{uuid.uuid4().hex}",
        }
        if args:
            body["input"] = envelope(list(args))
        if wait_timeout_seconds is not None:
            body["wait_timeout_seconds"] = wait_timeout_seconds
        path = f"/workflows/{segment(workflow_id)}/update/{segment(name)}"
        within = _CALL_SECONDS + (wait_timeout_seconds or 0)
        try:
            answer = await self._call("control", "POST", path, body, within=within)
        except ServerRefused as exc:
            if exc.body.get("update_status") != "failed":
                raise
            raise _failed_update(exc, workflow_id, name) from exc
        fields = Fields(answer.body, what="update", section="control-plane §8")
        return {**fields.body, "result": _result_of(fields)}

    async def list_workflows(
        self, *, workflow_type: str | None = None, status: str | None = None
    ) -> list[dict[str, Any]]:
        """Give the workflows of the namespace (control-plane.md §2); `status` is running, completed or failed."""
        wanted = {"workflow_type": workflow_type, "status": status, "page_size": str(_LIST_PAGE_SIZE)}
        query = {name: text for name, text in wanted.items() if text is not None}
        pages = self._pages("/workflows", query, "workflows", "list", "control-plane §2")
        return [one async for one in pages]

    async def _pages(
        self, path: str, query: Mapping[str, str], key: str, what: str, section: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Read a paged list to its end; a token that comes back would never end."""
        seen: set[str] = set()
        while True:
            answer = await self._call("control", "GET", path, query=query)
            fields = Fields(answer.body, what=what, section=section)
            page = fields.present(key, "page")
            if not isinstance(page, list) or not all(isinstance(one, dict) for one in page):
                fields.breach("page", f"has no list of {key}")
            for one in page:
                yield one
            token = fields.text_or_none("next_page_token", "page")
            if not token:
                return
            if token in seen:
                fields.breach("page", "repeats a page token")
            seen.add(token)
            query = {**query, "next_page_token": token}

    async def _call(
        self,
        plane: Any,
        method: Any,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        within: float = _CALL_SECONDS,
        whole: bool = True,
    ) -> Answer:
        if self._transport is None:
            raise UsageError("this Client is not open; use it as `async with Client(url) as client`")
        if body is not None and any(len(blob) > _SURELY_INLINE_BYTES for blob in inline_blobs(body)):
            body = await (await self._stored_payloads()).offloaded(body)
        call = Call(plane, method, path, body, query or {})
        answer = accepted(call, await self._transport.send(call, within=within))
        if whole and answer.refers and next(references_in(answer.body), None) is not None:
            answer = replace(answer, body=await (await self._stored_payloads()).resolved(answer.body))
        return answer

    async def _stored_payloads(self) -> ExternalPayloads:
        """Give what stores and fetches large payloads; the server is asked once how it does that."""
        assert self._transport is not None
        if self._payloads is None:
            terms = read_external_terms(await self.cluster_info())
            self._payloads = ExternalPayloads(self._transport, "control", terms)
        return self._payloads


def _result_of(fields: Fields) -> Any:
    """Give the decoded result of a query or an update; the envelope wins over the plain value."""
    stated = fields.body.get("result_envelope")
    if isinstance(stated, Mapping) and "blob" in stated:
        return decode_value(stated, None)
    return fields.body.get("result")


def _failed_update(refused: ServerRefused, workflow_id: str, name: str) -> UpdateFailed:
    told, update_id = refused.body.get("failure_message"), refused.body.get("update_id")
    why = f": {told}" if isinstance(told, str) and told else ""
    return UpdateFailed(
        f"update {name!r} of workflow {workflow_id!r} failed{why}",
        workflow_id=workflow_id,
        update_id=update_id if isinstance(update_id, str) else None,
    )
