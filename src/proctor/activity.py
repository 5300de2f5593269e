"""What a handler uses: its definition, its heartbeats, its stop, its facts. Loads neither Trio nor HTTP.

A handler runs in a supervised child process, in the main thread. `heartbeat`, `info` and the others speak of the
attempt that runs in this process; anywhere else they raise NoActivityContext.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from proctor_supervisor import attempt as _attempt
from proctor_supervisor.options import StopPolicy
from proctor_supervisor.outcome import StopReason

_P = ParamSpec("_P")
_R = TypeVar("_R")

_DEFINITION = "__proctor_activity__"


class _RunningAttempt(Protocol):
    """What this module asks of an attempt, in a child or inline."""

    @property
    def context(self) -> bytes: ...

    @property
    def stop_reason(self) -> StopReason | None: ...

    def heartbeat(self, payload: bytes) -> None: ...


_inline: ContextVar[_RunningAttempt | None] = ContextVar("proctor_inline_attempt", default=None)

Cancelled = _attempt.AttemptCancelled
"""Raised in a handler that is being stopped, by `heartbeat` or out of blocking Python code. Clean up and let it pass.

It is no `Exception`; `reason` says why (timeout, cancellation, lost authority, shutdown)."""

HeartbeatTooLarge = _attempt.HeartbeatTooLarge
"""Raised by `heartbeat` for details over about 4 KB; nothing was sent."""


class NoActivityContext(RuntimeError):
    """The call speaks of a running attempt, but no attempt runs in this process."""


class NonRetryableError(Exception):
    """Raise it, or a subclass, when another attempt would fail in the same way."""

    non_retryable = True


@dataclass(frozen=True, slots=True)
class ActivityDefinition:
    """A handler under its wire name. `stop` is its own stop policy, or None for the worker's."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    stop: StopPolicy | None = None


@dataclass(frozen=True, slots=True)
class ActivityInfo:
    """The facts of the running attempt. `attempt_number` counts from 1."""

    task_id: str
    activity_type: str
    activity_execution_id: str
    activity_attempt_id: str
    attempt_number: int
    task_queue: str
    worker_id: str
    workflow_id: str
    run_id: str


def defn(*, name: str | None = None, stop: StopPolicy | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function a handler under `name` (default: its own name). Blocking and ``async def`` functions both do.

    `stop` replaces the worker's stop policy for this handler: for code that never runs Python (one long C call),
    ``StopPolicy(raise_grace=0)`` skips the step that could not work anyway.

    Raises TypeError for something that cannot be called, ValueError for a blank name.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        if not callable(function):
            raise TypeError(f"activity.defn decorates a function, not a {type(function).__name__}")
        given = name if name is not None else getattr(function, "__name__", "")
        wire_name = given.strip()
        if not wire_name:
            raise ValueError("an activity needs a name that is not blank")
        definition = ActivityDefinition(wire_name, function, inspect.iscoroutinefunction(function), stop)
        setattr(function, _DEFINITION, definition)
        return function

    return decorate


def definition_of(function: object) -> ActivityDefinition:
    """Give the definition that `defn` attached. Raises TypeError when there is none."""
    definition = getattr(function, _DEFINITION, None)
    if not isinstance(definition, ActivityDefinition):
        shown = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{shown} is not an activity: decorate it with @activity.defn(name=…)")
    return definition


def heartbeat(details: Mapping[str, Any] | None = None) -> None:
    """Say that the attempt is alive and how far it is. Never blocks: newest wins when the worker is slow.

    `details` is a mapping of JSON values; the next attempt reads it with `last_heartbeat_details`.

    Raises Cancelled when the attempt is being stopped, TypeError or ValueError for details that JSON cannot hold, and
    HeartbeatTooLarge (prepared-local.md §2.5).
    """
    from proctor.core import codec

    running = _running("heartbeat")
    plain = dict(details) if details is not None else {}
    json.dumps(plain, allow_nan=False)  # the wire carries details as JSON: refuse here, where the handler can see it
    running.heartbeat(codec.encode_bytes(plain))


def is_cancelled() -> bool:
    """Whether the attempt is being stopped. Costs one memory read; meant for tight loops."""
    return _running("is_cancelled").stop_reason is not None


def info() -> ActivityInfo:
    """Give the facts of the running attempt."""
    facts = _facts("info")
    return ActivityInfo(**{name: facts[name] for name in ActivityInfo.__dataclass_fields__})


def last_heartbeat_details() -> dict[str, Any] | None:
    """Give the details of the last heartbeat that an earlier attempt got recorded, or None."""
    from proctor.core import codec

    held = _facts("last_heartbeat_details").get("last_heartbeat")
    if held is None:
        return None
    details = codec.decode_bytes(base64.b64decode(held))
    return details if isinstance(details, dict) else None


class ActivityContext:
    """The same facts under the official SDK's method names, so that its handlers run by changing the import."""

    @property
    def info(self) -> ActivityInfo:
        """The facts of the running attempt."""
        return info()

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt is being stopped."""
        return is_cancelled()

    async def heartbeat(self, details: Mapping[str, Any] | None = None) -> None:
        """As `proctor.activity.heartbeat`; it does not wait, so there is nothing to await but the call itself."""
        heartbeat(details)

    def heartbeat_sync(self, details: Mapping[str, Any] | None = None) -> None:
        """As `proctor.activity.heartbeat`."""
        heartbeat(details)


def context() -> ActivityContext:
    """Give the official SDK's spelling of this module. Raises NoActivityContext outside an attempt."""
    _running("context")
    return ActivityContext()


def enter_inline(attempt: _RunningAttempt) -> None:
    """Make `attempt` the one that the calling task, and what it starts, speaks of. For `proctor.inline` only."""
    _inline.set(attempt)


def _running(what: str) -> _RunningAttempt:
    running = _inline.get() or _attempt.current()
    if running is None:
        raise NoActivityContext(
            f"activity.{what}() speaks of a running attempt, and none runs in this process. It works inside a "
            f"handler that a Proctor worker runs; in a unit test, keep it out of the code you call directly."
        )
    return running


def _facts(what: str) -> dict[str, Any]:
    facts = json.loads(_running(what).context or b"{}")
    if not isinstance(facts, dict):
        raise NoActivityContext(f"activity.{what}(): the attempt was started without activity facts")
    return facts
