"""The commands workflow code authors: immutable requests that a workflow awaits (``await``) or yields (``yield``).

A command says what is asked. `context` builds and checks it, `wire_form` turns it into a wire command, and whether
history already answers it is decided in `engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from proctor.core.replay.authoring.options import CancellationPolicy as CancellationPolicy
from proctor.core.replay.authoring.options import ParentClosePolicy
from proctor.core.retry import RetryPolicy

T = TypeVar("T")


class Command(Generic[T]):
    """Something asked of the outside world; nothing happens before it is awaited or yielded."""

    __slots__ = ()

    def __await__(self) -> Generator[Command[Any], Any, T]:
        answer: T = yield self
        return answer

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self} is a command and not yet a value: write `await` or `yield` before it")


class Operation(Command[T]):
    """A command that has one durable number and may be a member of a group."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Activity(Operation[Any]):
    """Run an activity on a worker of its queue; timeouts are whole seconds, None means no limit."""

    activity_type: str
    arguments: list[Any]
    queue: str | None = None
    retry_policy: Mapping[str, Any] | None = None
    start_to_close_timeout: int | None = None
    schedule_to_start_timeout: int | None = None
    schedule_to_close_timeout: int | None = None
    heartbeat_timeout: int | None = None
    worker_session: Mapping[str, Any] | None = None
    cancellation_policy: CancellationPolicy | None = None

    def __str__(self) -> str:
        return f"activity {self.activity_type!r}"


@dataclass(frozen=True, slots=True, eq=False)
class LocalActivity(Operation[Any]):
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
class Timer(Operation[None]):
    """Wait for `delay_seconds` of durable time."""

    delay_seconds: int

    def __str__(self) -> str:
        return f"timer of {self.delay_seconds} s"


@dataclass(frozen=True, slots=True, eq=False)
class ChildWorkflow(Operation[Any]):
    """Run another workflow and wait for its result; no policy means ``abandon``."""

    workflow_type: str
    arguments: list[Any]
    queue: str | None = None
    parent_close_policy: ParentClosePolicy | None = None
    cancellation_policy: CancellationPolicy | None = None
    retry_policy: Mapping[str, Any] | None = None
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None

    def __str__(self) -> str:
        return f"child workflow {self.workflow_type!r}"


@dataclass(frozen=True, slots=True, eq=False)
class WaitCondition(Operation[bool]):
    """Wait until `predicate` is true of the workflow's own state; False when the timeout comes first."""

    predicate: Callable[[], object]
    key: str | None
    fingerprint: str | None
    timeout_seconds: int | None

    def __str__(self) -> str:
        return "condition wait" if self.key is None else f"condition wait {self.key!r}"


@dataclass(frozen=True, slots=True, eq=False)
class SideEffect(Command[T]):
    """Call `function` once and keep its value for ever; `stream` is the directive of an output stream instead."""

    function: Callable[[], T]
    stream: Mapping[str, Any] | None = None

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


@dataclass(frozen=True, slots=True, eq=False)
class UpsertMemo(Command[None]):
    """Merge canonical `entries` into the memo of the run."""

    entries: Mapping[str, Any]

    def __str__(self) -> str:
        return "memo upsert"


@dataclass(frozen=True, slots=True, eq=False)
class UpsertSearchAttributes(Command[None]):
    """Set search attributes of the run; None deletes one."""

    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return "search attributes upsert"


@dataclass(frozen=True, slots=True, eq=False)
class ContinueAsNew(Command[NoReturn]):
    """End the run and start its workflow anew; returned or awaited."""

    arguments: list[Any]
    workflow_type: str | None = None
    queue: str | None = None

    def __str__(self) -> str:
        return "continue as new"


@dataclass(frozen=True, slots=True, eq=False)
class Group(Command[list[Any]]):
    """Run all members side by side; the results come in the same nesting. Yielding a list means the same."""

    members: list[Any]

    def __str__(self) -> str:
        return f"group of {len(self.members)}"
