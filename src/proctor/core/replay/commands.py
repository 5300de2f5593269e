"""The commands workflow code authors: immutable requests that a workflow awaits (``await``) or yields (``yield``).

A command says what is asked and checks it at construction; which wire command or descriptor it becomes, and whether
history already answers it, is decided in `proctor.core.replay.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar

from proctor.core.retry import RetryPolicy

T = TypeVar("T")


class CancellationPolicy(StrEnum):
    """What a cancelled run does about a running activity (prepared-local.md §7)."""

    TRY_CANCEL = "try_cancel"
    WAIT_CANCELLATION_COMPLETED = "wait_cancellation_completed"
    ABANDON = "abandon"


class Command(Generic[T]):
    """Something asked of the outside world; nothing happens before it is awaited or yielded."""

    __slots__ = ()

    def __await__(self) -> Generator[Command[Any], Any, T]:
        answer: T = yield self
        return answer

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self} is a command and not yet a value: write `await` or `yield` before it")


@dataclass(frozen=True, slots=True, eq=False)
class LocalActivity(Command[Any]):
    """Run an activity in this worker; timeouts are whole seconds, None means no limit."""

    activity_type: str
    arguments: list[Any]
    retry_policy: RetryPolicy | None
    start_to_close_timeout: int | None
    schedule_to_close_timeout: int | None
    heartbeat_timeout: int | None
    cancellation_policy: CancellationPolicy | None

    def __str__(self) -> str:
        return f"local activity {self.activity_type!r}"


@dataclass(frozen=True, slots=True, eq=False)
class SideEffect(Command[T]):
    """Call `function` once and keep its value for ever."""

    function: Callable[[], T]

    def __str__(self) -> str:
        return "side effect"


@dataclass(frozen=True, slots=True, eq=False)
class VersionDecision(Command[T]):
    """Decide once per run which version of changed code applies; `convert` gives the caller's form of it."""

    change_id: str
    min_supported: int
    max_supported: int
    convert: Callable[[int], T]

    def __str__(self) -> str:
        return f"version marker {self.change_id!r}"


def local_activity(  # the official keyword set
    activity_type: str,
    arguments: list[Any] | tuple[Any, ...],
    *,
    retry_policy: RetryPolicy | Mapping[str, Any] | None,
    start_to_close_timeout: int | None,
    schedule_to_close_timeout: int | None,
    heartbeat_timeout: int | None,
    cancellation_policy: CancellationPolicy | str | None,
) -> LocalActivity:
    """Check the options of a local activity (replay.md §2); TypeError or ValueError names the wrong one."""
    if not isinstance(arguments, (list, tuple)):
        raise TypeError(f"local activity arguments are a list, not {type(arguments).__qualname__}")
    if isinstance(retry_policy, Mapping):
        retry_policy = RetryPolicy.from_wire(retry_policy)
    elif retry_policy is not None and not isinstance(retry_policy, RetryPolicy):
        raise TypeError(
            f"the retry_policy of a local activity is a RetryPolicy or a mapping, not {type(retry_policy).__qualname__}"
        )
    _seconds("start_to_close_timeout", start_to_close_timeout)
    _seconds("schedule_to_close_timeout", schedule_to_close_timeout)
    _seconds("heartbeat_timeout", heartbeat_timeout)
    if start_to_close_timeout and schedule_to_close_timeout and start_to_close_timeout > schedule_to_close_timeout:
        raise ValueError("start_to_close_timeout is at most schedule_to_close_timeout")
    if heartbeat_timeout and start_to_close_timeout and heartbeat_timeout > start_to_close_timeout:
        raise ValueError("heartbeat_timeout is at most start_to_close_timeout")
    return LocalActivity(
        activity_type=_name("activity type", activity_type),
        arguments=list(arguments),
        retry_policy=retry_policy,
        start_to_close_timeout=start_to_close_timeout,
        schedule_to_close_timeout=schedule_to_close_timeout,
        heartbeat_timeout=heartbeat_timeout,
        cancellation_policy=_local_policy(cancellation_policy),
    )


def version_decision(
    change_id: str, min_supported: int, max_supported: int, convert: Callable[[int], T]
) -> VersionDecision[T]:
    """Check a version request (replay.md §5); TypeError or ValueError names what is wrong."""
    for bound in (min_supported, max_supported):
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise TypeError(f"versions are whole numbers, not {bound!r}")
    if min_supported > max_supported:
        raise ValueError(f"min_supported {min_supported} is above max_supported {max_supported}")
    return VersionDecision(_name("change id", change_id), min_supported, max_supported, convert)


def _local_policy(value: CancellationPolicy | str | None) -> CancellationPolicy | None:
    if value is None:
        return None
    policy = CancellationPolicy(value)
    if policy is CancellationPolicy.ABANDON:
        raise ValueError("a local activity cannot be abandoned: the worker stops its child")
    return policy


def _name(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} is a text, not {type(value).__qualname__}")
    if not value.strip():
        raise ValueError(f"the {what} is blank")
    return value.strip()


def _seconds(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number of seconds, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} is at least 1 second, not {value}")
