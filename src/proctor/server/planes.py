"""The two planes of the API: version headers, and the envelope round every body; credentials are beside this.

Checks come in the order of transport.md §1: authenticate, role, protocol version, namespace. A worker-plane answer
carries the advertised version and capabilities, a control-plane answer its operation; never the other's header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from proctor.server.discovery import (
    CONTROL_HEADER,
    CONTROL_PLANE_VERSION,
    RESPONSE_SCHEMA,
    WORKER_HEADER,
    server_capabilities,
)
from proctor.server.rules.book import Settings
from proctor.server.rules.refusal import Answer, Refusal

_encode = msgspec.json.Encoder().encode
POLL_MEDIA_TYPE = "application/vnd.durable-workflow.poll.v1+json"
_POLL_SCHEMA = "durable-workflow.poll-transport.v1"
_POLL_HEADERS = ("retry-after", WORKER_HEADER.lower())
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")

UNKNOWN_MINOR = -1


def worker_minor(headers: Mapping[str, str], settings: Settings) -> int:
    """Give the minor version of a worker request; raises the 400 refusals of transport.md §6."""
    requested = headers.get(WORKER_HEADER.lower())
    details = {"supported_version": settings.protocol, "requested_version": requested}
    remedy = f"send {WORKER_HEADER}: {settings.protocol}"
    if not requested:
        raise Refusal(
            400, "missing_protocol_version", "the worker protocol version is missing", details | {"remediation": remedy}
        )
    match = _VERSION.fullmatch(requested)
    if match is None or int(match[1]) != 1 or int(match[2]) > settings.minor:
        raise Refusal(
            400,
            "unsupported_protocol_version",
            f"this server speaks worker protocol {settings.protocol}, not {requested[:32]!r}",
            details | {"remediation": remedy},
        )
    return int(match[2])


def check_control_version(headers: Mapping[str, str]) -> None:
    """Raise the 400 refusals of transport.md §8."""
    requested = headers.get(CONTROL_HEADER.lower())
    if requested == CONTROL_PLANE_VERSION:
        return
    kind = "unsupported" if requested else "missing"
    raise Refusal(
        400,
        f"{kind}_control_plane_version",
        f"send {CONTROL_HEADER}: {CONTROL_PLANE_VERSION}",
        {"supported_version": CONTROL_PLANE_VERSION, "requested_version": requested},
    )


class Envelopes:
    """Makes the responses of both planes; the parts that never change are encoded once."""

    def __init__(self, settings: Settings) -> None:
        self._worker_part = {
            "protocol_version": settings.protocol,
            "server_capabilities": msgspec.Raw(_encode(server_capabilities(settings))),
        }
        self._worker_headers = {WORKER_HEADER: settings.protocol}
        self._control_headers = {CONTROL_HEADER: CONTROL_PLANE_VERSION}

    def worker(self, result: Answer | Refusal) -> Response:
        """Give the worker-plane response of a result."""
        if isinstance(result, Refusal):
            body = {"error": result.text, "reason": result.reason, **result.extra}
        else:
            body = dict(result.body)
        body |= self._worker_part
        return _respond(body, result.status, self._worker_headers)

    def poll(self, result: Answer | Refusal, accepted: str) -> Response:
        """Give the answer of a poll, whole inside a document of its own where the client understands that.

        What stands between may then change status and headers of the answer without harm (transport.md §4.1).
        """
        plain = self.worker(result)
        if not any(part.partition(";")[0].strip().lower() == POLL_MEDIA_TYPE for part in accepted.split(",")):
            return plain
        told = {name: plain.headers[name] for name in _POLL_HEADERS if name in plain.headers}
        envelope = {
            "schema": _POLL_SCHEMA,
            "status": plain.status_code,
            "headers": told,
            "body": msgspec.Raw(plain.body),
        }
        return Response(_encode(envelope), status_code=plain.status_code, headers=told, media_type=POLL_MEDIA_TYPE)

    def control(self, result: Answer | Refusal, *, operation: str, path: Mapping[str, str]) -> Response:
        """Give the control-plane response of a result."""
        if isinstance(result, Refusal):
            body = {"message": result.text, "reason": result.reason, **result.extra}
            if "errors" in body:
                body["validation_errors"] = body["errors"]
        else:
            body = dict(result.body)
            if result.sealed:
                return _respond(body, result.status, self._control_headers)
        manifest: dict[str, Any] = {"schema": RESPONSE_SCHEMA, "version": 1, "operation": operation}
        for name in ("workflow_id", "run_id"):
            value = body.get(name, path.get(name))
            if value is not None:
                manifest[name] = value
        manifest["contract"] = {
            "schema": f"{RESPONSE_SCHEMA}.contract",
            "version": 1,
            "legacy_field_policy": "reject_non_canonical",
        }
        body["control_plane"] = manifest
        return _respond(body, result.status, self._control_headers)

    def content(self, content: bytes, headers: Mapping[str, str], *, plane: str) -> Response:
        """Give the bytes of a stored payload with the headers that say what they are."""
        version = self._worker_headers if plane == "worker" else self._control_headers
        return Response(content, headers={**version, **headers}, media_type="application/octet-stream")

    def discovery(self, body: Mapping[str, Any], *, status: int = 200) -> Response:
        """Give a discovery response, which belongs to neither plane."""
        return _respond(body, status, {})


def _respond(body: Mapping[str, Any], status: int, headers: Mapping[str, str]) -> Response:
    retry_after = body.get("retry_after_seconds")
    extra = dict(headers)
    if retry_after is not None:
        extra["Retry-After"] = str(retry_after)
    return Response(_encode(body), status_code=status, headers=extra, media_type="application/json")
