"""The real transport: two HTTP lanes to one server, so that a parked poll never delays a lease renewal.

Polls have a client of their own with one connection a poller; everything else has another. A call runs
under one Trio cancel scope, because the HTTP client's time limits are per phase and add up. Idle
connections are dropped well before the server's own limit of 5 s, so that a request is not written into a
connection that is just being closed.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import trio

from proctor.core.external import KEY
from proctor.errors import ServerUnreachable, UsageError
from proctor.transport.calls import Answer, Call
from proctor.transport.retrying import TRIES, backoff, delay_after_answer
from proctor.transport.settings import POLL_MEDIA_TYPE, ServerSettings

_KEEPALIVE_SECONDS = 2.0
_CONNECT_SECONDS = 5.0
_CONTROL_CONNECTIONS = 100
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_POLL_SCHEMA = "durable-workflow.poll-transport.v1"
_POLL_HEADERS = frozenset({"retry-after", "x-durable-workflow-protocol-version"})

_REFERENCE = f'"{KEY}"'.encode()

_decoder = msgspec.json.Decoder()


class Lanes:
    """The calls to one server; made by `open_lanes`. Implements `proctor.transport.calls.Transport`."""

    def __init__(self, settings: ServerSettings, *, control: httpx2.AsyncClient, polls: httpx2.AsyncClient) -> None:
        self.settings = settings
        self._control = control
        self._polls = polls

    def speaking(self, protocol: str) -> Lanes:
        """Give the same lanes, whose calls announce this worker protocol version."""
        return Lanes(replace(self.settings, protocol=protocol), control=self._control, polls=self._polls)

    async def send(self, call: Call, *, within: float) -> Answer:
        """Send one call, again if that is allowed, for at most `within` seconds (transport.md §4).

        Raises ServerUnreachable, and UsageError for a body without a JSON form.
        """
        content = _encoded(call)
        started = trio.current_time()
        if within <= 0:
            raise ServerUnreachable(self._unreachable(call, "there was no time left to send it"))
        trouble = "no answer came"
        with trio.move_on_after(within):
            failures = 0
            while True:
                delay: float | None
                try:
                    answer = await self._once(call, content, started)
                except (httpx2.RequestError, _Unreadable) as exc:
                    failures += 1
                    trouble = self.settings.redacted(str(exc)) or type(exc).__name__
                    if call.single or failures >= TRIES:
                        raise ServerUnreachable(self._unreachable(call, trouble)) from exc
                    delay = backoff(failures, jitter=random.random())
                else:
                    failures += 1
                    delay = delay_after_answer(
                        answer.status, answer.body, failures=failures, poll=call.poll, jitter=random.random()
                    )
                    if delay is None or call.single:
                        return answer
                    trouble = f"it answered {answer.status} ({answer.reason or 'no reason code'})"
                await trio.sleep(delay)
        raise ServerUnreachable(self._unreachable(call, f"{trouble} within {within:.3g} s"))

    def _unreachable(self, call: Call, trouble: str) -> str:
        return (
            f"no usable answer from the server at {self.settings.url} to {call.method} {call.path}: "
            f"{trouble}. Check that the server runs and that the URL is right"
        )

    async def _once(self, call: Call, content: bytes | None, started: float) -> Answer:
        client = self._polls if call.poll else self._control
        headers = {**self.settings.headers(call), **call.headers}
        if content is not None:
            headers["Content-Type"] = "application/json" if call.content is None else "application/octet-stream"
        if call.most_bytes:
            headers["Accept"] = "application/octet-stream"
        request = client.build_request(
            call.method,
            self.settings.base + call.path,
            headers=headers,
            content=content,
            params=dict(call.query),
        )
        response = await client.send(request, stream=True)
        try:
            as_bytes = call.most_bytes > 0 and response.status_code < 300
            raw = await _read_bounded(response, keep=call.most_bytes if as_bytes else _MAX_ANSWER_BYTES)
        finally:
            await response.aclose()
        received, date = trio.current_time(), _latest_time(response.headers.get("date"))
        if as_bytes:
            stated = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, raw, started, received, date, refers=False, headers=stated)
        status, body = _unwrapped(response, _decoded(raw, response.status_code))
        return Answer(status, body, started, received, date, refers=_REFERENCE in raw)


def _latest_time(date: str | None) -> datetime | None:
    """Read a Date header, which is cut to whole seconds, as the latest instant it can stand for."""
    try:
        stated = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return None if stated.tzinfo is None else stated + timedelta(seconds=1)


class _Unreadable(Exception):
    """An answer that is too large, no JSON, or not what its content type says."""


def _encoded(call: Call) -> bytes | None:
    if call.content is not None or call.body is None:
        return call.content
    try:
        return msgspec.json.encode(call.body)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:  # lone surrogates are a ValueError
        raise UsageError(f"the body of {call.method} {call.path} has no JSON form: {exc}") from exc


async def _read_bounded(response: httpx2.Response, *, keep: int) -> bytes:
    """Read a whole answer and give the first `keep` bytes; that these are too many is for others to see."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > _MAX_ANSWER_BYTES:
            raise _Unreadable(f"the answer is larger than {_MAX_ANSWER_BYTES} bytes")
        if size - len(chunk) < keep:
            chunks.append(chunk)
    return b"".join(chunks)[:keep]


def _decoded(raw: bytes, status: int) -> Any:
    if not raw.strip():
        return None
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if status >= 400:
            return None  # a proxy's error page: the status alone decides
        raise _Unreadable(f"the answer with status {status} is not JSON") from exc


def _unwrapped(response: httpx2.Response, body: Any) -> tuple[int, Any]:
    """Give status and body, taking them out of the negotiated poll transport (transport.md §4.1)."""
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != POLL_MEDIA_TYPE:
        return response.status_code, body
    inner = body.get("status") if isinstance(body, Mapping) else None
    headers = body.get("headers") if isinstance(body, Mapping) else None
    if (
        not isinstance(body, Mapping)
        or body.get("schema") != _POLL_SCHEMA
        or not isinstance(inner, int)
        or isinstance(inner, bool)
        or not 200 <= inner <= 599
        or response.status_code not in (200, inner)
        or not isinstance(headers, Mapping)
        or not set(headers) <= _POLL_HEADERS
        or not all(isinstance(value, str) for value in headers.values())
    ):
        raise _Unreadable("the poll answer is not in the negotiated poll transport form")
    return inner, body.get("body")


@asynccontextmanager
async def open_lanes(settings: ServerSettings, *, pollers: int) -> AsyncIterator[Lanes]:
    """Open both lanes; nothing is sent yet. `pollers` is the number of polls that may be parked at once."""
    # Proxies of the environment are for other machines; a loopback server is never behind one.
    proxied = urlsplit(settings.url).hostname not in _LOOPBACK
    control = _client(connections=_CONTROL_CONNECTIONS, trust_env=proxied)
    polls = _client(connections=max(1, pollers), trust_env=proxied)
    async with control, polls:
        yield Lanes(settings, control=control, polls=polls)


def _client(*, connections: int, trust_env: bool) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        ),
        follow_redirects=False,
        trust_env=trust_env,
    )
