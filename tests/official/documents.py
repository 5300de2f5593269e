"""The official documents as validators, with the differences of `differences` applied, and what only the reference has.

Owns reading and preparing the documents, and finding the part that speaks of an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from official import reference
from official.differences import CLUSTER_INFO, NEWER_STATUSES, WORKER_API, Difference

Schema = dict[str, Any]

_WORKER_API = "worker-protocol-api.openapi.yaml"
_SESSIONS = "worker-sessions-runtime.schema.json"
_EXTERNAL = "external-payload-transport.openapi.yaml"  # not among the fixtures; only the request side names it
_BASE = "urn:official/"
_UNAVAILABLE = {
    "backend_unavailable": "WorkerBackendUnavailable",
    "storage_pressure": "WorkerStorageAdmissionRefusal",
    "storage_admission_unavailable": "WorkerStorageAdmissionRefusal",
}


class Documents:
    """The official documents of the shared fixtures."""

    def __init__(self, fixtures: Path) -> None:
        self._api = yaml.safe_load((fixtures / "specs" / "worker-protocol-api-1.20.openapi.yaml").read_text())
        apply(self._api, WORKER_API)
        capabilities = self._api["components"]["schemas"]["WorkerServerCapabilities"]
        # Every answer repeats this large object: it is validated by itself, once for each value it takes.
        self._api["components"]["schemas"]["WorkerServerCapabilities"] = {"type": "object"}
        self._api["components"]["schemas"]["TheServerCapabilities"] = capabilities
        # So are events, each of which comes with many answers.
        self._api["components"]["schemas"]["TheHistoryEvent"] = self._api["components"]["schemas"]["WorkerHistoryEvent"]
        self._api["components"]["schemas"]["WorkerHistoryEvent"] = {"type": "object"}
        sessions = json.loads((fixtures / "scenarios" / _SESSIONS).read_text())
        self._registry: Any = Registry().with_resources(
            [
                (_BASE + _WORKER_API, DRAFT202012.create_resource(self._api)),
                # Named as the worker's document refers to it: a reference cannot be relative to a URN.
                (f"./{_SESSIONS}", DRAFT202012.create_resource(sessions)),
            ]
        )
        info = json.loads((fixtures / "specs" / "cluster-info-envelope.schema.json").read_text())
        apply(info, CLUSTER_INFO)
        self._info = Draft202012Validator(info)
        self.operations = {
            (method.upper(), path): described["responses"]
            for path, methods in self._api["paths"].items()
            for method, described in methods.items()
        }
        self._places = [(re.compile(_pattern(path)), path) for path in self._api["paths"]]
        self._prepared: dict[tuple[str, ...], Draft202012Validator] = {}

    def place(self, path: str) -> str | None:
        """Give the path as the worker's document names it."""
        return next((place for pattern, place in self._places if pattern.fullmatch(path)), None)

    def discovery(self, body: Any) -> Iterator[str]:
        """Give what is wrong with a discovery body."""
        yield from _said(self._info, body)

    def capabilities(self, value: Any) -> Iterator[str]:
        """Give what is wrong with the capabilities that every worker answer repeats."""
        yield from _said(self._of("TheServerCapabilities"), value)

    def event(self, value: Any) -> Iterator[str]:
        """Give what is wrong with a history event as workers read it."""
        yield from _said(self._of("TheHistoryEvent"), value)

    def worker_answer(self, method: str, path: str, status: int, body: Any) -> Iterator[str]:
        """Give what is wrong with an answer of the worker plane."""
        place = self.place(path)
        responses = self.operations.get((method, place or ""), {})
        found = responses.get(str(status))
        newer = reference.worker_schema(method, path)
        if newer is not None and status < 300:
            yield from _said(Draft202012Validator(newer), body)
        elif found is None and status not in NEWER_STATUSES:
            yield f"status {status} is not one that this operation answers"
            return
        exact = _UNAVAILABLE.get(body.get("reason")) if status == 503 and body.get("operation", place) else None
        if exact is not None:
            # The document allows any error beside these; whoever gives such a reason must give all of it.
            yield from _said(self._of(exact), body)
        if found is None:
            found = {"$ref": "#/components/responses/" + ("WorkerEnvelope" if status < 300 else "WorkerError")}
        key = (method, place or path if newer is None else "", str(status))
        if key not in self._prepared:
            self._prepared[key] = self._validator(found)
        yield from _said(self._prepared[key], body)

    def _of(self, name: str) -> Draft202012Validator:
        if (name,) not in self._prepared:
            self._prepared[name,] = Draft202012Validator(
                {"$ref": f"{_BASE}{_WORKER_API}#/components/schemas/{name}"}, registry=self._registry
            )
        return self._prepared[name,]

    def _validator(self, response: Schema) -> Draft202012Validator:
        if "$ref" in response:
            name = response["$ref"].rpartition("/")[2]
            response = self._api["components"]["responses"][name]
        schema = response["content"]["application/json"]["schema"]
        return Draft202012Validator(_absolute(schema), registry=self._registry)


def _absolute(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: f"{_BASE}{_WORKER_API}{value}" if key == "$ref" and value.startswith("#") else _absolute(value)
            for key, value in schema.items()
        }
    return [_absolute(item) for item in schema] if isinstance(schema, list) else schema


def _pattern(path: str) -> str:
    # The names of sessions may hold slashes, which arrive decoded.
    return re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path).replace(r"\{sessionId\}", ".+"))


def _said(validator: Draft202012Validator, value: Any) -> Iterator[str]:
    for error in validator.iter_errors(value):
        causes = [cause.message[:200] for cause in error.context or ()]
        yield f"{error.json_path}: {error.message[:300]}" + (f" ({'; '.join(causes)})" if causes else "")


def apply(document: Any, differences: Iterable[Difference]) -> None:
    """Put the differences into a document, in place; `instead` None removes the place."""
    for difference in differences:
        names = [name.replace("~1", "/") for name in _steps(difference.path)]
        place = document
        for name in names[:-1]:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if isinstance(place, list) or names[-1] not in place:
            raise KeyError(f"{difference.path} is not in the document")
        if difference.instead is None:
            del place[names[-1]]
        else:
            place[names[-1]] = difference.instead


def _steps(path: str) -> list[str]:
    # A path of the API is one step: written with a leading slash of its own, it ends before the method.
    found = re.fullmatch(r"paths/(/.+)/(get|post|delete)/(.+)", path)
    return ["paths", found[1], found[2], *found[3].split("/")] if found else path.split("/")


@cache
def official_documents(fixtures: Path) -> Documents:
    """Give the documents, read once in a test process."""
    return Documents(fixtures)
