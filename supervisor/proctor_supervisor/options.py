"""What a caller says to the supervisor: options, stop policy, deadlines and tasks. Plain frozen data.

Owns defaults and their validation. The instants in `Deadlines` are on Trio's clock; `owner.clock` turns them into
CLOCK_MONOTONIC for the supervisor process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

_LIMIT_MOST = 1 << 62  # what the kernel and the frames can carry
_SECONDS_MOST = 10**15  # more than a lifetime; sums of it still have a meaning


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def require_instant(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a number of seconds: what is not, compares as never due."""
    if not _is_number(value) or value != value:  # NaN; `isnan` takes no number over 1e308
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")
    if isinstance(value, int) and abs(value) > _SECONDS_MOST:
        raise ValueError(f"{name} must be at most {_SECONDS_MOST} seconds; infinity stands for never")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """How a stop proceeds; all values in seconds.

    Attributes:
        notice_grace: how long the handler may react to the cooperative notice (default 0.25).
        raise_grace: how long it may run `finally` blocks after the exception in its main thread (default 0.25).
        stack_budget: the most a stack capture may delay a forced step (default 0.05; normally under 1 ms).
        kill_budget: how long after SIGKILL the processes must be proven gone, or the stop is unconfirmed
            (default 5).

    A grace of 0 skips its step. Lost authority and a dead owner always kill at once.
    """

    notice_grace: float = 0.25
    raise_grace: float = 0.25
    stack_budget: float = 0.05
    kill_budget: float = 5.0

    def __post_init__(self) -> None:
        for name in ("notice_grace", "raise_grace", "stack_budget", "kill_budget"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value < math.inf):
                raise ValueError(f"StopPolicy.{name} must be a finite number of seconds >= 0, not {value!r}")
            if value > _SECONDS_MOST:
                raise ValueError(f"StopPolicy.{name} must be at most {_SECONDS_MOST} seconds")

    @property
    def total(self) -> float:
        """The whole stop budget in seconds: when a stop must be over, or is reported as unconfirmed."""
        return self.notice_grace + self.raise_grace + 2 * self.stack_budget + self.kill_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an attempt may use; None means no limit.

    Attributes:
        memory_bytes: resident memory of the child and everything below it. Watched by the supervisor process about 40
            times a second; over it the attempt is stopped (reason ``memory``).
        address_space_bytes: what the child may map beyond what it has at the start. Over it the handler sees
            MemoryError. Counts reservations, too: some numeric libraries reserve much more than they use.
        cpu_seconds: processor time of the child; the kernel ends it with SIGXCPU.
        open_files: highest number of descriptors; the handler sees OSError.
    """

    memory_bytes: int | None = None
    address_space_bytes: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "address_space_bytes", "cpu_seconds", "open_files"):
            value = getattr(self, name)
            if value is not None and not (_is_whole(value) and 1 <= value < _LIMIT_MOST):
                raise ValueError(f"Limits.{name} must be a whole number >= 1 and < 2**62, or None, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """How a supervisor works.

    Attributes:
        children: how many attempts may run at once (default 4).
        isolation: ``fresh`` starts each attempt in a process of its own, taken from pre-forked standby children.
            ``reuse`` lets a warm child run attempts one after the other, until one fails, is stopped, leaves a
            process, a thread, a signal handler or another working directory or user behind, or its memory grows.
        attempts_per_child: with ``reuse``, the most attempts of one child (default 1000).
        reuse_growth_bytes: with ``reuse``, a child whose peak memory grew by more is retired (default 64 MiB).
        preload: modules imported once in the supervisor process, so that no attempt pays for them. If one leaves a
            thread or a socket there, forking is unsafe: then each child is a new interpreter that imports for itself.
        strict: refuse to start instead, naming the module (default False).
        standby: how many idle children are kept forked ahead at least (default 1; at most `children`). While attempts
            find none ready more are kept, up to `children`.
        stop: the default stop policy of tasks.
        limits: the default limits of tasks.
        max_payload_bytes: the largest task or result, checked before a byte is sent (default 64 MiB).
        output_limit: most bytes kept of each of stdout and stderr of an attempt (default 64 KiB).
        withhold: names of environment variables that no supervisor process or child ever sees.
        start_timeout: seconds the supervisor process may take to start and preload (default 60).
    """

    children: int = 4
    isolation: Literal["fresh", "reuse"] = "fresh"
    preload: tuple[str, ...] | list[str] = ()
    strict: bool = False
    attempts_per_child: int = 1000
    reuse_growth_bytes: int = 64 * 1024 * 1024
    standby: int = 1
    stop: StopPolicy = field(default_factory=StopPolicy)
    limits: Limits = field(default_factory=Limits)
    max_payload_bytes: int = 64 * 1024 * 1024
    output_limit: int = 64 * 1024
    withhold: tuple[str, ...] = ()
    start_timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.isolation not in ("fresh", "reuse"):
            raise ValueError(f"SupervisorOptions.isolation is 'fresh' or 'reuse', not {self.isolation!r}")
        for name, least in _WHOLE_OPTIONS.items():
            value = getattr(self, name)
            if not (_is_whole(value) and least <= value < _LIMIT_MOST):
                raise ValueError(f"SupervisorOptions.{name} must be a whole number >= {least}, not {value!r}")
        for name, kind in (("stop", StopPolicy), ("limits", Limits)):
            if not isinstance(getattr(self, name), kind):
                text = f"SupervisorOptions.{name} must be {kind.__name__}, not {getattr(self, name)!r}"
                raise ValueError(text)  # noqa: TRY004 - as for every other option
        for name in ("preload", "withhold"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
                raise ValueError(f"SupervisorOptions.{name} must be a list of names, not {value!r}")
        if not (_is_number(self.start_timeout) and self.start_timeout > 0):
            raise ValueError(f"SupervisorOptions.start_timeout must be seconds > 0, not {self.start_timeout!r}")
        require_instant("SupervisorOptions.start_timeout", self.start_timeout)


_WHOLE_OPTIONS = {
    "children": 1, "attempts_per_child": 1, "reuse_growth_bytes": 0, "standby": 0, "max_payload_bytes": 1,
    "output_limit": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The instants at which an attempt must end. Absolute, on Trio's clock (`trio.current_time`), in seconds.

    Attributes:
        attempt: end of this attempt (reason ``attempt_timeout``).
        total: end of all attempts together (reason ``total_timeout``).
        authority: the instant to which the right to run is known; moved by `AttemptControl.extend_authority`.
            At that instant the child is killed without notice (reason ``authority_lost``), even if the owner is
            frozen or gone.
        heartbeat_timeout: longest silence between heartbeats in seconds, counted from dispatch and from each beat
            (reason ``heartbeat_timeout``).
    """

    attempt: float | None = None
    total: float | None = None
    authority: float | None = None
    heartbeat_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("attempt", "total", "authority", "heartbeat_timeout"):
            value = getattr(self, name)
            if value is not None:
                require_instant(f"Deadlines.{name}", value)


NO_DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One attempt to run.

    Attributes:
        handler: ``module:qualname``, or a callable. Callables with an import path travel by name, others
            (lambdas, closures, functions of ``__main__``) by cloudpickle, from owner to child only.
        payload: the arguments in the codec's bytes.
        codec: ``module:attribute`` of an object with ``decode_arguments(bytes) -> (args, kwargs)`` and
            ``encode_result(value) -> bytes``, imported in the child (default: JSON, see `Task.call`).
        context: bytes handed to the handler side unread (`proctor_supervisor.attempt`).
        attempt_id: names the attempt in events, logs and captured output.
        deadlines: when it must end; none by default.
        stop: its stop policy; None takes the supervisor's.
        limits: what it may use; None takes the supervisor's.
        descendants: what happens to processes that are left when the handler *returns*: ``kill`` (default, and they
            are reported) or ``keep``. A stop always takes the whole tree.
    """

    handler: str | Callable[..., Any]
    payload: bytes = b"[[],{}]"
    codec: str = "proctor_supervisor.child.codecs:JSON"
    context: bytes = b""
    attempt_id: str = ""
    deadlines: Deadlines = NO_DEADLINES
    stop: StopPolicy | None = None
    limits: Limits | None = None
    descendants: Literal["kill", "keep"] = "kill"

    @classmethod
    def call(cls, handler: str | Callable[..., Any], *args: object, **kwargs: object) -> Task:
        """Make a task that calls `handler` with JSON values; its result is read with `json.loads`.

        Raises TypeError or ValueError when an argument has no JSON form.
        """
        from proctor_supervisor.child.codecs import JSON

        return cls(handler=handler, payload=JSON.encode_arguments(args, kwargs))
