"""Reading the bodies of requests: bounded, whole, and as JSON where JSON belongs."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from proctor.core.external import KEY
from proctor.server.rules.refusal import Refusal

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_NESTING = 200
"""Like payloads: what nests deeper can be kept, but not by everybody be read again."""
_KEY = f'"{KEY}"'.encode()
_decode = msgspec.json.Decoder().decode


async def read_bytes(request: Request, limit: int, too_large: Refusal) -> bytes:
    """Read a whole body of at most `limit` bytes; raises `too_large` for a larger one."""
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "request_incomplete", "the client left before the whole request had arrived")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def read_body(request: Request) -> tuple[dict[str, Any], bool]:
    """Read a JSON object, and say whether it may hold references; no body at all counts as an empty object."""
    too_large = Refusal(413, "request_too_large", f"a request may hold {MAX_BODY_BYTES} bytes")
    raw = await read_bytes(request, MAX_BODY_BYTES, too_large)
    if not raw:
        return {}, False
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise Refusal(400, "invalid_json", f"the body is not valid JSON: {exc}") from exc
    if _nests_too_deep(raw, body):
        raise Refusal(400, "invalid_json", f"the body nests deeper than {MAX_NESTING} levels")
    if not isinstance(body, dict):
        raise Refusal(
            422, "validation_failed", "the body must be a JSON object", {"errors": {"": ["must be an object"]}}
        )
    return body, _KEY in raw


def _nests_too_deep(raw: bytes, body: Any) -> bool:
    if raw.count(b"{") + raw.count(b"[") <= MAX_NESTING:
        return False
    level = [body]
    for _ in range(MAX_NESTING):
        deeper = []
        for outer in level:
            for value in outer.values() if isinstance(outer, dict) else outer:
                if isinstance(value, dict | list):
                    deeper.append(value)
        if not deeper:
            return False
        level = deeper
    return True
