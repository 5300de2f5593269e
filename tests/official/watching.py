"""Every answer of every in-process server of the test run, and every event it records, held against the documents.

Owns the places where answers and events are seen, and the record of what did not fit; a test fails at its end when
something was added during it. Servers in other processes are not seen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from jsonschema import Draft202012Validator

from official import reference
from official.documents import Documents
from official.events import EventDocuments
from proctor.core.instants import format_instant
from proctor.server.app import Api
from proctor.server.rules.rows import Event
from proctor.server.tables.events import EventTable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Application = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

_WORKER_HEADER = "x-durable-workflow-protocol-version"
_CONTROL_HEADER = "x-durable-workflow-control-plane-version"
_OF_USERS = frozenset({"memo", "search_attributes", "details", "payload", "process_metrics", "search_attribute_types"})
_POLL_MEDIA_TYPE = "application/vnd.durable-workflow.poll.v1+json"
_POLL_SCHEMA = "durable-workflow.poll-transport.v1"
_INSTANTS = frozenset({"server_time", "timestamp"})
_NOT_PROTOCOL = frozenset({499})  # the client has left; nobody reads it


class Watch:
    """What was seen so far in this test process."""

    def __init__(self, documents: Documents, events: EventDocuments) -> None:
        self.problems: list[str] = []
        self.answers: Counter[str] = Counter()
        self._documents = documents
        self._events = events
        self._capabilities: list[Any] = []
        self._seen_events: set[str] = set()

    def answer(self, method: str, path: str, status: int, headers: dict[str, str], raw: bytes) -> None:
        """Look at one answer."""
        if status in _NOT_PROTOCOL or not path.startswith("/api/"):
            return
        path = path.removeprefix("/api")
        self.answers[f"{method} {self._documents.place(path) or path} {status}"] += 1
        for problem in self._wrong_with(method, path, status, headers, raw):
            self.problems.append(f"{method} {path} answered {status}: {problem}")

    def recorded(self, events: Iterable[Event]) -> None:
        """Look at events that are being recorded."""
        for event in events:
            shown = {
                "id": event.id,
                "sequence": event.sequence,
                "event_type": event.event_type,
                "payload": json.loads(event.payload),
                "recorded_at": format_instant(event.recorded_at),
                "workflow_command_id": event.workflow_command_id,
            }
            for problem in (*self._events.problems(shown), *self._documents.event(shown)):
                self.problems.append(f"event {event.event_type} was recorded: {problem}")

    def _wrong_with(self, method: str, path: str, status: int, headers: dict[str, str], raw: bytes) -> Iterator[str]:
        if status >= 500 and status != 503 and status != 504:
            yield f"a server may not fail: {raw[:300]!r}"
            return
        if headers.get("content-type", "").split(";")[0] == "application/octet-stream":
            return
        try:
            body = json.loads(raw)
        except ValueError:
            yield f"this is not JSON: {raw[:100]!r}"
            return
        if headers.get("content-type") == _POLL_MEDIA_TYPE:
            if body.keys() != {"schema", "status", "headers", "body"} or body["schema"] != _POLL_SCHEMA:
                yield f"this is no poll transport: {sorted(body)}"
            if body["status"] != status or not body["headers"].items() <= headers.items():
                yield f"inside is {body['status']} {body['headers']}, outside {status} {headers}"
            body = body["body"]
        yield from _untimely(body)
        if path == "/cluster/info":
            if status == 200:
                yield from self._documents.discovery(body)
                yield from self._capable(body["worker_protocol"]["server_capabilities"])
        elif path.startswith("/worker/") or (path.startswith("/external-payloads/") and _CONTROL_HEADER not in headers):
            yield from self._worker(method, path, status, headers, body)
        else:
            yield from _control(method, path, status, headers, body)

    def _worker(self, method: str, path: str, status: int, headers: dict[str, str], body: Any) -> Iterator[str]:
        if body.get("reason") == "operation_not_found":
            return
        if _CONTROL_HEADER in headers or headers.get(_WORKER_HEADER) != body.get("protocol_version"):
            yield f"the headers are not those of the worker plane: {headers}"
        if status >= 400 and not (body.get("error") and body.get("reason")):
            yield f"a refusal needs error and reason: {body}"
        yield from self._capable(body.get("server_capabilities"))
        yield from self._documents.worker_answer(method, path, status, body)
        for event in _events(body):
            if event["id"] not in self._seen_events:
                self._seen_events.add(event["id"])
                yield from self._documents.event(event)
                yield from self._events.problems(event)

    def _capable(self, capabilities: Any) -> Iterator[str]:
        if capabilities not in self._capabilities:
            self._capabilities.append(capabilities)
            yield from self._documents.capabilities(capabilities)


def _events(body: dict[str, Any]) -> list[dict[str, Any]]:
    task = body.get("task")
    found = [*body.get("history_events", ()), *(task.get("history_events", ()) if isinstance(task, dict) else ())]
    return [event for event in found if isinstance(event, dict)]


def _control(method: str, path: str, status: int, headers: dict[str, str], body: Any) -> Iterator[str]:
    if body.get("reason") == "operation_not_found":
        return
    if _WORKER_HEADER in headers or headers.get(_CONTROL_HEADER) != "2":
        yield f"the headers are not those of the control plane: {headers}"
    if {"protocol_version", "server_capabilities"} & body.keys():
        yield "the body has fields of the worker plane"
    if status >= 400:
        schemas = reference.refusal_schemas(status, body.get("reason"))
    else:
        found = reference.control_schema(method, path)
        if found is None:
            yield "no schema describes this operation: add one to tests/official/reference.py"
            return
        if status not in found[0]:
            yield f"a success of this operation is one of {sorted(found[0])}"
        schemas = (found[1],)
    for schema in schemas:
        for error in _prepared(json.dumps(schema)).iter_errors(body):
            yield f"{error.json_path}: {error.message[:300]}"


@cache
def _prepared(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def _untimely(value: Any, name: str = "") -> Iterator[str]:
    """Find instants that do not have the form of transport.md §2."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in _OF_USERS:
                yield from _untimely(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _untimely(part, name)
    elif (
        isinstance(value, str)
        and (name.endswith("_at") or name in _INSTANTS)
        and not reference.INSTANT.fullmatch(value)
    ):
        yield f"{name} is {value!r}: not six fractional digits and Z"


def watched(application: Application, watch: Watch) -> Application:
    """Give an application that shows its answers to the watch and is otherwise the same."""

    async def watching(
        scope: Scope, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        status, headers, chunks = 0, {}, []

        async def sending(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            elif message["type"] == "http.response.body":
                chunks.append(bytes(message.get("body", b"")))
                if not message.get("more_body", False):
                    watch.answer(scope["method"], scope["path"], status, headers, b"".join(chunks))
            await send(message)

        await application(scope, receive, sending)

    return watching


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Show every answer and every recorded event of this process to the watch."""
    make, save = Api.application, EventTable.save_events

    def application(self: Api) -> Any:
        return watched(make(self), watch)

    def save_events(self: EventTable, events: list[Event]) -> None:
        save(self, events)
        watch.recorded(events)

    with (
        mock.patch.object(Api, "application", application),
        mock.patch.object(EventTable, "save_events", save_events),
    ):
        yield
