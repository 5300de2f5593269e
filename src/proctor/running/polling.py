"""One poller: owns one slot of the worker, polls, works on what it leased, polls again.

A slot is a child's worth of capacity. A poller whose child could not be proven gone ends for good and keeps
its slot.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import trio

from proctor.core.wire.tasks import poll_status
from proctor.errors import ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.running.outages import PollOutage
from proctor.running.registration import UNSUPPORTED_VERSION
from proctor.running.turn_report import TurnEnd
from proctor.transport.calls import Answer, Call, Transport, accepted
from proctor.transport.retrying import stated_delay

POLL_MARGIN_SECONDS = 5.0
HISTORY_PAGE_SIZE = 500
_FIRST_BACKOFF, _LAST_BACKOFF = 1.0, 30.0
_HASTY_SECONDS = 0.5
_FIRST_HASTY_PAUSE, _LAST_HASTY_PAUSE = 0.05, 1.0

_STALE_REASONS = frozenset({"worker_not_registered", "stale_worker_registration", UNSUPPORTED_VERSION})
"""What a server says when the registration behind a call is gone, replaced or too old, or its version not spoken."""


def poll_backoff(failures: int, *, jitter: float) -> float:
    """Give the pause after `failures` failed polls: ceiling 1 s doubling to 30 s, uniform in its upper
    half.
    """
    ceiling = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2.0 ** min(failures - 1, 10))
    return ceiling * (0.5 + 0.5 * jitter)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Errand(Generic[T]):
    """What a poller is for: where it asks, how it reads an answer, and who works on what was leased."""

    path: str
    prefix: str
    read: Callable[[Answer], T | None]
    work: Callable[[T], Awaitable[TurnEnd]]
    extra: Mapping[str, Any] = field(default_factory=dict)
    offered: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    """Waits until the server can be asked at all."""


class Poller(Generic[T]):
    """Polls one task queue for one slot. `polling` is the scope that a drain cancels; work is outside of it.

    `transport` and `wait_seconds` give what the newest agreement with the server says. `on_stale` is called whenever
    the server calls this worker's registration unknown or stale; `outage`, which all pollers of a worker share, is told
    of failed and answered polls.
    """

    def __init__(
        self,
        transport: Callable[[], Transport],
        *,
        worker_id: str,
        task_queue: str,
        wait_seconds: Callable[[], int],
        build_id: str | None,
        errand: Errand[T],
        draining: Callable[[], bool],
        on_stale: Callable[[], None],
        outage: PollOutage,
    ) -> None:
        self.polling = trio.CancelScope()
        self.busy = False
        self._transport = transport
        self._worker_id = worker_id
        self._task_queue = task_queue
        self._wait_seconds = wait_seconds
        self._build_id = build_id
        self._errand = errand
        self._draining = draining
        self._on_stale = on_stale
        self._outage = outage

    async def run(self) -> None:
        """Poll and work until a drain, or until a stop could not be confirmed: that slot is never used
        again.
        """
        failed_turns = 0
        while not self._draining():
            task: T | None = None
            self.polling = trio.CancelScope()
            with self.polling:
                if failed_turns:
                    # A failed task is ready again at once; without a pause its failure would spin.
                    await trio.sleep(poll_backoff(failed_turns, jitter=random.random()))
                task = await self._lease()
            if task is None:
                continue
            self.busy = True
            try:
                end = await self._errand.work(task)
            finally:
                self.busy = False
            if end.reason in _STALE_REASONS:
                self._on_stale()
            failed_turns = failed_turns + 1 if end.how == "failed" else 0
            if end.unproven is not None:
                self.busy = True
                return

    async def _lease(self) -> T:
        """Poll until a task is leased."""
        await self._errand.offered()
        failures = 0
        hasty = 0
        while True:
            request_id = f"{self._errand.prefix}-{secrets.token_hex(16)}"
            try:
                answer = await self._poll(request_id)
                task = self._errand.read(answer)
            except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
                failures += 1
                if isinstance(exc, ServerRefused) and exc.reason in _STALE_REASONS:
                    self._on_stale()
                pause = self._pause_after(exc, failures)
                self._outage.failed(exc)
                await trio.sleep(pause)
                continue
            failures = 0
            self._outage.answered()
            if task is not None:
                return task
            if poll_status(answer.body) in _STALE_REASONS:
                self._on_stale()
            if self._wait_seconds() == 0 or answer.received - answer.started >= _HASTY_SECONDS:
                hasty = 0
                await trio.lowlevel.checkpoint()
                continue
            # "Nothing" without waiting (draining, throttled, a stale registration): not to be asked in a
            # tight loop.
            await trio.sleep(min(_LAST_HASTY_PAUSE, _FIRST_HASTY_PAUSE * 2.0 ** min(hasty, 10)))
            hasty += 1

    async def _poll(self, request_id: str) -> Answer:
        wait_seconds = self._wait_seconds()
        body = {
            "worker_id": self._worker_id,
            "task_queue": self._task_queue,
            "poll_request_id": request_id,
            "timeout_seconds": wait_seconds,
            **self._errand.extra,
        }
        if self._build_id is not None:
            body["build_id"] = self._build_id
        call = Call("worker", "POST", self._errand.path, body, poll=True)
        within = wait_seconds + POLL_MARGIN_SECONDS
        for last in (False, True):
            try:
                return accepted(call, await self._transport().send(call, within=within))
            except ServerUnreachable:
                # The same request id gives back a task that was leased while its answer was lost.
                if last:
                    raise
        raise AssertionError("unreachable")

    def _pause_after(self, exc: Exception, failures: int) -> float:
        if isinstance(exc, ServerRefused):
            stated = stated_delay(exc.status, exc.body)
            if stated is not None:
                return stated
        return poll_backoff(failures, jitter=random.random())
