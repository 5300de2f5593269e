"""Faults inside the server for kill tests: a lease that ends now, a clock that jumps, admission that is refused.

Off unless asked for (``proctor server --faults``): the routes then exist under ``/faults``, outside the protocol's
``/api``, behind a token with the role `admin`, and everything that was done is recorded. A worker's own clock does not
jump with the server's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proctor.core.instants import format_instant
from proctor.server.clock import Clock
from proctor.server.credentials import Credentials
from proctor.server.operations.calls import Call, perform
from proctor.server.operations.induced import expire_lease
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Refusal, invalid, not_found
from proctor.server.store import Store
from proctor.server.unavailable import not_admitted, poll_refusal

_Act = Callable[[Request], Awaitable[dict[str, Any]]]

_REMEMBERED = 1000
_LONGEST_JUMP = 366 * 86_400
_FARTHEST = timedelta(days=36_525)
_REASONS = ("storage_pressure", "storage_admission_unavailable")


class JumpingClock:
    """Another clock, moved forward by what was asked for so far. Jumps are made in the Trio thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta()
        self._jumped = trio.Event()

    @property
    def ahead(self) -> timedelta:
        """How far this clock is ahead of the one below."""
        return self._ahead

    def now(self) -> datetime:
        """Give the present instant."""
        return self._clock.now() + self._ahead

    def jump(self, seconds: float) -> None:
        """Move forward; whoever sleeps until an instant that has now passed wakes."""
        self._ahead += timedelta(seconds=seconds)
        self._jumped.set()
        self._jumped = trio.Event()

    async def sleep_until(self, instant: datetime) -> None:
        """Return once `now()` has reached `instant`."""
        await trio.lowlevel.checkpoint()
        while self.now() < instant:
            jumped = self._jumped
            async with trio.open_nursery() as nursery:

                async def sleep() -> None:
                    await self._clock.sleep_until(instant - self._ahead)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(sleep)
                await jumped.wait()
                nursery.cancel_scope.cancel()


class Faults:
    """What may be done to a running server, and the record of what was."""

    def __init__(self, store: Store, clock: JumpingClock, credentials: Credentials, namespace: str) -> None:
        self._store = store
        self._clock = clock
        self._credentials = credentials
        self._namespace = namespace
        self._refusing: dict[str, Any] | None = None
        self._refused = 0
        self._record: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._done = 0

    def routes(self) -> list[Route]:
        """Give the routes, to be added to those of the protocol."""
        return [
            Route("/faults", self._endpoint(self._show), methods=["GET"]),
            Route("/faults/expire-lease", self._endpoint(self._expire), methods=["POST"]),
            Route("/faults/advance-clock", self._endpoint(self._advance), methods=["POST"]),
            Route("/faults/refuse-admission", self._endpoint(self._refuse), methods=["POST"]),
            Route("/faults/admit", self._endpoint(self._admit), methods=["POST"]),
        ]

    def check_admission(self, path: str, body: dict[str, Any]) -> None:
        """Raise the 503 of transport.md §4 for a request of the worker plane while admission is refused."""
        if self._refusing is None:
            return
        self._refused += 1
        reason = self._refusing["reason"]
        refusal = not_admitted(
            reason,
            "admission is refused by a fault that a test asked for",
            fenced=reason != "storage_pressure",
            retry_after_seconds=self._refusing["retry_after_seconds"],
        )
        raise poll_refusal(refusal, body) if path.endswith("/poll") else refusal

    def _endpoint(
        self, act: Callable[[Request], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                self._credentials.check(request.headers, plane="admin")
                body = await act(request)
            except Refusal as refusal:
                told = {"error": refusal.text, "reason": refusal.reason, **refusal.extra}
                return _json(told, refusal.status)
            return _json(body, 200)

        return endpoint

    async def _show(self, request: Request) -> dict[str, Any]:
        return {
            "now": format_instant(self._clock.now()),
            "clock_ahead_seconds": self._clock.ahead.total_seconds(),
            "refusing": self._refusing,
            "refused": self._refused,
            "done": self._done,
            "record": list(self._record),
        }

    async def _expire(self, request: Request) -> dict[str, Any]:
        body = await _body(request)
        namespace = body.pop("namespace", self._namespace)
        result = await self._store.transact(
            lambda tx: perform(expire_lease, tx, Call(namespace=str(namespace), body=body))
        )
        if isinstance(result, Refusal):
            raise result
        return self._note("expire-lease", **result.body)

    async def _advance(self, request: Request) -> dict[str, Any]:
        seconds = (await _body(request)).get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_JUMP:
            raise invalid({"seconds": [f"a number above 0 and at most {_LONGEST_JUMP}"]})
        if self._clock.ahead + timedelta(seconds=seconds) > _FARTHEST:
            # Behind the last year that there is no server could go on with the file.
            raise invalid({"seconds": [f"would put the clock more than {_FARTHEST.days} days ahead"]})
        self._clock.jump(seconds)
        return self._note("advance-clock", seconds=seconds)

    async def _refuse(self, request: Request) -> dict[str, Any]:
        fields = Fields(await _body(request))
        reason = fields.choice("reason", _REASONS, default=_REASONS[0])
        after = fields.optional_integer("retry_after_seconds", low=1, high=60)
        fields.check()
        self._refusing = {"reason": reason, "retry_after_seconds": after or 1}
        return self._note("refuse-admission", **self._refusing)

    async def _admit(self, request: Request) -> dict[str, Any]:
        await _body(request)
        if self._refusing is None:
            raise not_found("nothing_refused", "admission is not refused")
        self._refusing = None
        return self._note("admit", refused=self._refused)

    def _note(self, fault: str, **facts: Any) -> dict[str, Any]:
        self._done += 1
        entry = {"number": self._done, "at": format_instant(self._clock.now()), "fault": fault, **facts}
        self._record.append(entry)
        return entry


async def _body(request: Request) -> dict[str, Any]:
    # A web page of somebody else cannot send this type without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refusal(415, "json_expected", "send a JSON object with Content-Type: application/json")
    try:
        body = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, RecursionError) as exc:
        raise Refusal(400, "invalid_json", f"the body is not valid JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise invalid({"": ["must be an object"]})
    return body


def _json(body: dict[str, Any], status: int) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
