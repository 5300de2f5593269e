"""``async def`` handlers of the ordinary profile: run on the worker's own Trio loop, stopped by a cancel scope.

There is no process to kill here: a stop cancels the handler and waits until it has ended, however long its clean-up
takes. Code that blocks the loop blocks the worker; such code belongs into a plain function, which runs in a child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog
import trio

from proctor import activity
from proctor.activity import ActivityDefinition
from proctor.core.attempt import ChildEnd, ChildFacts, Raised, StopCause, WasStopped
from proctor.core.codec import decode_bytes, encode_bytes
from proctor.core.jobs import Children, Job, Limits, Reins
from proctor.core.results import returned
from proctor_supervisor import StopReason
from proctor_supervisor.attempt import AttemptCancelled, HeartbeatTooLarge
from proctor_supervisor.frames import BEAT_LIMIT

_PATIENCE_SECONDS = 5.0
"""After this long in clean-up a handler is complained about; it is still waited for."""

_log = structlog.get_logger("proctor.inline")


class InlineReins:
    """The reins of one inline attempt. The first stop decides the cause."""

    def __init__(self) -> None:
        self.stop: tuple[StopCause, str] | None = None
        self.authority: float | None = None
        self.scope = trio.CancelScope()
        self.changed = trio.Event()
        self.stopped = trio.Event()

    def request_stop(self, cause: StopCause, detail: str) -> None:
        """Cancel the handler."""
        if self.stop is None:
            self.stop = (cause, detail)
            self.scope.cancel()
            self.stopped.set()

    def extend_authority(self, until: float) -> None:
        """Move the instant at which the handler is cancelled without being asked."""
        self.authority = until
        self.changed.set()


class _InlineAttempt:
    """What `proctor.activity` asks about an inline attempt."""

    def __init__(self, context: bytes, reins: InlineReins, on_heartbeat: Callable[[bytes], None]) -> None:
        self.context = context
        self.beats = 0
        self.last_beat = trio.current_time()
        self._reins = reins
        self._on_heartbeat = on_heartbeat

    @property
    def stop_reason(self) -> StopReason | None:
        return None if self._reins.stop is None else StopReason(self._reins.stop[0].value)

    def heartbeat(self, payload: bytes) -> None:
        if len(payload) > BEAT_LIMIT:
            raise HeartbeatTooLarge(f"heartbeat details of {len(payload)} bytes are over the limit of {BEAT_LIMIT}")
        reason = self.stop_reason
        if reason is not None:
            raise AttemptCancelled(reason)
        self.beats += 1
        self.last_beat = trio.current_time()
        self._reins.changed.set()
        self._on_heartbeat(payload)


class InlineHandlers:
    """Runs ``async def`` handlers inline, leaves all others to `blocking`. Satisfies `proctor.core.jobs.Children`."""

    def __init__(self, blocking: Children, activities: Mapping[str, ActivityDefinition]) -> None:
        self._blocking = blocking
        self._activities = activities

    def reins(self) -> Reins:
        """Make the reins of one attempt, whichever way it will run."""
        return _EitherReins(InlineReins(), self._blocking.reins())

    async def run(self, job: Job, reins: Any, on_heartbeat: Callable[[bytes], None]) -> ChildEnd:
        """Run one attempt to its end."""
        assert isinstance(reins, _EitherReins)
        definition = self._activities[job.activity_type]
        if not definition.is_async:
            return await self._blocking.run(job, reins.blocking, on_heartbeat)
        return await _run_inline(definition.function, job, reins.inline, on_heartbeat)


class _EitherReins:
    def __init__(self, inline: InlineReins, blocking: Reins) -> None:
        self.inline = inline
        self.blocking = blocking

    def request_stop(self, cause: StopCause, detail: str) -> None:
        self.inline.request_stop(cause, detail)
        self.blocking.request_stop(cause, detail)

    def extend_authority(self, until: float) -> None:
        self.inline.extend_authority(until)
        self.blocking.extend_authority(until)


async def _run_inline(
    function: Callable[..., Any], job: Job, reins: InlineReins, on_heartbeat: Callable[[bytes], None]
) -> ChildEnd:
    started = trio.current_time()
    attempt = _InlineAttempt(job.context, reins, on_heartbeat)
    result: bytes | Raised | None = None

    async def handle() -> None:
        nonlocal result
        activity.enter_inline(attempt)  # in this task's own context, so that it ends with the task
        with reins.scope:
            result = await _call(function, job)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_enforce, job.limits, reins, attempt)
        nursery.start_soon(_complain, job.activity_type, reins)
        async with trio.open_nursery() as running:
            running.start_soon(handle)
        nursery.cancel_scope.cancel()
    facts = ChildFacts(duration_ms=round((trio.current_time() - started) * 1000), heartbeats=attempt.beats)
    if reins.stop is not None:
        cause, detail = reins.stop
        return WasStopped(cause, {"evidence": "inline", "reason": str(cause), "detail": detail}, facts)
    if isinstance(result, bytes):
        return returned(result, facts, limit=job.max_result_bytes)
    assert isinstance(result, Raised)
    return replace(result, facts=facts)


async def _call(function: Callable[..., Any], job: Job) -> bytes | Raised:
    try:
        value = await function(*decode_bytes(job.payload))
    except AttemptCancelled as exc:
        return Raised("Cancelled", str(exc), non_retryable=True)
    except Exception as exc:  # noqa: BLE001 - whatever a handler raises is its outcome
        kind = type(exc)
        return Raised(
            kind.__name__,
            _text(exc),
            non_retryable=getattr(exc, "non_retryable", False) is True,
            exception_class=f"{kind.__module__}.{kind.__qualname__}",
        )
    try:
        return encode_bytes(value)
    except Exception as exc:  # noqa: BLE001 - encoding walks foreign objects
        return Raised("InvalidLocalActivityReport", f"the result could not be encoded: {exc}", non_retryable=True)


def _text(exc: Exception) -> str:
    try:
        return str(exc)
    except Exception as broken:  # noqa: BLE001 - a foreign __str__
        return f"<the message cannot be shown: its __str__ raised {type(broken).__name__}>"


async def _enforce(limits: Limits, reins: InlineReins, attempt: _InlineAttempt) -> None:
    """Stop the handler at the first instant that is over: deadlines, authority, silence."""
    reins.authority = limits.authority if reins.authority is None else reins.authority
    while True:
        reins.changed = trio.Event()
        silent = None if limits.heartbeat_timeout is None else attempt.last_beat + limits.heartbeat_timeout
        instants = (
            (limits.total, StopCause.TOTAL_TIMEOUT),
            (silent, StopCause.HEARTBEAT_TIMEOUT),
            (limits.attempt, StopCause.ATTEMPT_TIMEOUT),
            (reins.authority, StopCause.AUTHORITY_LOST),
        )
        due, cause = min(((at, cause) for at, cause in instants if at is not None), key=lambda one: one[0])
        if due <= trio.current_time():
            reins.request_stop(cause, "its instant has passed")
            return
        with trio.move_on_at(due):
            await reins.changed.wait()


async def _complain(name: str, reins: InlineReins) -> None:
    await reins.stopped.wait()
    await trio.sleep(_PATIENCE_SECONDS)
    _log.error("inline_handler_does_not_end", activity=name, remedy="make it a plain function: it then runs in a child")
