"""Uploading and fetching payloads that are kept outside of requests and history (transport.md §5.1).

Both planes use the same two paths; which one a request belongs to is told by its version header. Bytes are taken only
when they are what their headers say, and given only with the headers that say what they are.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proctor.core.codec import CODEC
from proctor.core.external import (
    CODEC_HEADER,
    ROOT,
    SHA256_HEADER,
    SIZE_HEADER,
    UPLOAD_SCHEMA,
    integrity_headers,
    is_sha256,
)
from proctor.server.bodies import read_bytes
from proctor.server.credentials import Credentials
from proctor.server.discovery import WORKER_HEADER
from proctor.server.faults import Faults
from proctor.server.operations.references import mismatch, unknown
from proctor.server.planes import Envelopes, check_control_version, worker_minor
from proctor.server.rules.book import Settings
from proctor.server.rules.refusal import Answer, Refusal
from proctor.server.transaction import Transaction

_MEDIA_TYPE = "application/octet-stream"

Plane = Literal["worker", "control"]
Perform = Callable[[Callable[[Transaction], Answer]], Awaitable[Answer | Refusal]]


class ExternalPayloads:
    """The two endpoints. `perform` runs a transaction, `namespace` says which one a request is for."""

    def __init__(
        self,
        settings: Settings,
        *,
        perform: Perform,
        namespace: Callable[[Request], str],
        credentials: Credentials,
        envelopes: Envelopes,
        faults: Faults | None,
    ) -> None:
        self._settings = settings
        self._perform = perform
        self._namespace = namespace
        self._credentials = credentials
        self._envelopes = envelopes
        self._faults = faults

    def routes(self) -> list[Route]:
        """Give the routes of both endpoints."""
        return [
            Route(f"/api{ROOT}", self._endpoint("upload_external_payload", self._upload), methods=["POST"]),
            Route(
                f"/api{ROOT}/{{reference_id}}", self._endpoint("fetch_external_payload", self._fetch), methods=["GET"]
            ),
        ]

    def _endpoint(
        self, name: str, act: Callable[[Request, str], Awaitable[Answer]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            plane: Plane = "control" if WORKER_HEADER.lower() not in request.headers else "worker"
            result: Answer | Refusal
            try:
                result = await act(request, self._checked(request, plane))
            except Refusal as refusal:
                result = refusal
            if isinstance(result, Answer) and isinstance(result.body.get("content"), bytes):
                return self._envelopes.content(result.body["content"], result.body["headers"], plane=plane)
            if plane == "worker":
                return self._envelopes.worker(result)
            return self._envelopes.control(result, operation=name, path={})

        return endpoint

    def _checked(self, request: Request, plane: Plane) -> str:
        """Check plane and namespace in the order of transport.md §1, and give the namespace."""
        self._credentials.check(request.headers, plane=plane)
        if plane == "worker":
            worker_minor(request.headers, self._settings)
        else:
            check_control_version(request.headers)
        namespace = self._namespace(request)
        if self._settings.external_threshold_bytes is None:
            raise _unsupported("this namespace stores no external payloads; send payloads inline")
        if self._faults is not None and plane == "worker":
            self._faults.check_admission(request.url.path, {})
        return namespace

    async def _upload(self, request: Request, namespace: str) -> Answer:
        size, sha256 = self._announced(request.headers)
        limit = self._settings.external_max_bytes
        too_large = Refusal(
            413,
            "external_payload_oversized",
            f"a stored payload may have {limit} bytes",
            {"retryable": False, "max_payload_bytes": limit},
        )
        if size > limit:
            raise too_large
        content = await read_bytes(request, limit, too_large)
        await trio.to_thread.run_sync(_check_content, content, size, sha256)
        keep = timedelta(seconds=self._settings.external_unclaimed_seconds)

        def store(tx: Transaction) -> Answer:
            reference = tx.store_external(namespace, content, sha256, forget_at=tx.now + keep)
            body = {
                "schema": UPLOAD_SCHEMA,
                "transport_version": 1,
                "reference": msgspec.to_builtins(reference),
            }
            return Answer(body, status=201)

        return await self._transact(store)

    async def _fetch(self, request: Request, namespace: str) -> Answer:
        reference_id = request.path_params["reference_id"]

        def read(tx: Transaction) -> Answer:
            content = tx.external(namespace, reference_id)
            if content is None:
                raise unknown(reference_id)
            facts = tx.external_facts(namespace, reference_id)
            assert facts is not None
            return Answer({"content": content, "headers": integrity_headers(*facts)})

        answer = await self._transact(read)
        for name, value in answer.body["headers"].items():
            if request.headers.get(name.lower(), value) != value:
                raise mismatch(reference_id)
        return answer

    async def _transact(self, work: Callable[[Transaction], Answer]) -> Answer:
        result = await self._perform(work)
        if not isinstance(result, Refusal):
            return result
        if result.reason == "backend_unavailable":
            extra = {"retryable": True, "retry_after_seconds": 1}
            raise Refusal(503, "external_payload_unavailable", result.text, extra)
        raise result

    @staticmethod
    def _announced(headers: Mapping[str, str]) -> tuple[int, str]:
        """Give size and SHA-256 as the headers of an upload state them."""
        if headers.get("content-type", "").partition(";")[0].strip().lower() != _MEDIA_TYPE:
            raise _unsupported(f"send the text of a payload with Content-Type: {_MEDIA_TYPE}")
        if headers.get(CODEC_HEADER.lower()) != CODEC:
            raise _unsupported(f"send {CODEC_HEADER}: {CODEC}, no other codec is supported")
        size, sha256 = headers.get(SIZE_HEADER.lower(), ""), headers.get(SHA256_HEADER.lower(), "")
        if not (size.isascii() and size.isdigit() and len(size) <= 18) or not is_sha256(sha256):
            raise _unsupported(f"send {SIZE_HEADER} and {SHA256_HEADER} (lower-case hex) of the bytes")
        return int(size), sha256


def _check_content(content: bytes, size: int, sha256: str) -> None:
    """Refuse bytes that are not what was announced, or no payload at all. Not in the event loop: it takes a while."""
    if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
        raise Refusal(
            422,
            "external_payload_integrity_mismatch",
            f"{len(content)} bytes arrived that are not the {size} bytes of the announced SHA-256; send them again",
            {"retryable": True},
        )
    try:
        if not content or not binascii.a2b_base64(content, strict_mode=True):
            raise _unsupported("the bytes are empty; a payload is base64 text")
    except binascii.Error as exc:
        raise _unsupported("the bytes are not the base64 text of a payload") from exc


def _unsupported(text: str) -> Refusal:
    extra: dict[str, Any] = {"retryable": False}
    return Refusal(422, "external_payload_unsupported", text, extra)
