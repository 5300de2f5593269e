"""The `ctx` of workflow code: commands to await, and the deterministic time, randomness and log of the run.

Everything here depends on the run's identity and history only (replay.md §2). It authors and checks commands but
answers none.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from proctor.core.replay import options
from proctor.core.replay.cancelling import CancellationContext
from proctor.core.replay.commands import (
    Activity,
    ChildWorkflow,
    Command,
    ContinueAsNew,
    Group,
    LocalActivity,
    SideEffect,
    Timer,
    UpsertMemo,
    UpsertSearchAttributes,
    VersionDecision,
    WaitCondition,
)
from proctor.core.replay.failures import WorkflowCancelled
from proctor.core.replay.fingerprint import fingerprint
from proctor.core.replay.memo import canonical_memo
from proctor.core.replay.options import CancellationPolicy, ParentClosePolicy
from proctor.core.replay.saga import Saga
from proctor.core.replay.selection import Selection
from proctor.core.replay.service import ServiceOperation, idempotency_key
from proctor.core.replay.streams import (
    Inbox,
    MessageStream,
    WorkflowStreamAppendItem,
    append_directive,
    end_directive,
)
from proctor.core.retry import ActivityRetryPolicy, RetryPolicy
from proctor.errors import NonDeterminismError

T = TypeVar("T")
_C = TypeVar("_C", bound=Command[Any])

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER = logging.getLogger("proctor.workflow")

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class ReplaySilentLogger(_Adapter):
    """The run's logger: mute while code runs again that history shows as already run."""

    def __init__(self, extra: Mapping[str, object], is_live: Callable[[], bool]) -> None:
        super().__init__(_LOGGER, dict(extra))
        self._is_live = is_live

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # the name of the standard library
        """Say whether a record of `level` would be written now."""
        return self._is_live() and super().isEnabledFor(level)


class WorkflowContext:
    """What `run` gets as its first argument after self.

    `workflow_id`, `run_id` and `workflow_type` name the run; `logger` adds them to every record.
    """

    def __init__(
        self,
        *,
        workflow_id: str,
        run_id: str,
        workflow_type: str,
        started_at: datetime | None,
        is_live: Callable[[], bool],
        command_id: str | None = None,
        cancel_requested: bool = False,
    ) -> None:
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.workflow_type = workflow_type
        self.logger = ReplaySilentLogger(
            {"workflow_id": workflow_id, "run_id": run_id, "workflow_type": workflow_type}, is_live
        )
        self._started_at = started_at
        seed = sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._random = random.Random(int(seed, 16))
        self._uuid7_calls = 0
        self._command_id = command_id
        self._stream_commands = 0
        self._service_calls = 0
        self._inbox = Inbox()
        self._cancel_requested = cancel_requested
        self._request_id: str | None = None
        self._cancellation: CancellationContext | None = None
        self._shields = 0
        self._unclaimed: dict[int, Command[Any]] = {}
        self._refusal: NonDeterminismError | None = None

    def schedule_activity(  # the official keyword set
        self,
        activity_type: str,
        arguments: Sequence[Any] = (),
        *,
        queue: str | None = None,
        retry_policy: ActivityRetryPolicy | Mapping[str, Any] | None = None,
        start_to_close_timeout: int | None = None,
        schedule_to_start_timeout: int | None = None,
        schedule_to_close_timeout: int | None = None,
        heartbeat_timeout: int | None = None,
        worker_session: object = None,
        cancellation_policy: CancellationPolicy | str | None = None,
    ) -> Activity:
        """Run an activity on a worker of `queue`; awaiting gives its result or raises ActivityFailed.

        Timeouts are whole seconds >= 1: one attempt (start_to_close, at most schedule_to_close), waiting for a worker
        (schedule_to_start), all attempts together (schedule_to_close), between heartbeats. Without `retry_policy`
        there is one attempt. ``abandon`` needs a schedule_to_close_timeout. TypeError or ValueError for a wrong option.
        """
        policy = options.policy(CancellationPolicy, cancellation_policy)
        start_to_close = options.seconds("start_to_close_timeout", start_to_close_timeout)
        schedule_to_start = options.seconds("schedule_to_start_timeout", schedule_to_start_timeout)
        schedule_to_close = options.seconds("schedule_to_close_timeout", schedule_to_close_timeout)
        heartbeat = options.seconds("heartbeat_timeout", heartbeat_timeout)
        options.at_most("start_to_close_timeout", start_to_close, "schedule_to_close_timeout", schedule_to_close)
        options.at_most("schedule_to_start_timeout", schedule_to_start, "schedule_to_close_timeout", schedule_to_close)
        options.at_most("heartbeat_timeout", heartbeat, "start_to_close_timeout", start_to_close)
        if policy is CancellationPolicy.ABANDON and schedule_to_close is None:
            raise ValueError("an activity that may be abandoned has a schedule_to_close_timeout")
        return self._issue(
            Activity(
                activity_type=options.name("activity type", activity_type),
                arguments=options.arguments("activity", arguments),
                queue=options.optional_name("queue", queue),
                retry_policy=options.retry(retry_policy),
                start_to_close_timeout=start_to_close,
                schedule_to_start_timeout=schedule_to_start,
                schedule_to_close_timeout=schedule_to_close,
                heartbeat_timeout=heartbeat,
                worker_session=options.session(worker_session),
                cancellation_policy=policy,
            )
        )

    def local_activity(  # the official keyword set
        self,
        activity_type: str,
        arguments: Sequence[Any] = (),
        *,
        retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        start_to_close_timeout: int | None = None,
        schedule_to_close_timeout: int | None = None,
        heartbeat_timeout: int | None = None,
        cancellation_policy: CancellationPolicy | str | None = None,
    ) -> LocalActivity:
        """Run an activity in this worker; awaiting gives its result or raises ActivityFailed.

        Timeouts are whole seconds >= 1 (start_to_close <= schedule_to_close, heartbeat <= start_to_close), None means
        none. Without `retry_policy` there is one attempt. TypeError or ValueError for a wrong option (replay.md §2).
        """
        policy = options.policy(CancellationPolicy, cancellation_policy)
        if policy is CancellationPolicy.ABANDON:
            raise ValueError("a local activity cannot be abandoned: the worker stops its child")
        start_to_close = options.seconds("start_to_close_timeout", start_to_close_timeout)
        schedule_to_close = options.seconds("schedule_to_close_timeout", schedule_to_close_timeout)
        heartbeat = options.seconds("heartbeat_timeout", heartbeat_timeout)
        options.at_most("start_to_close_timeout", start_to_close, "schedule_to_close_timeout", schedule_to_close)
        options.at_most("heartbeat_timeout", heartbeat, "start_to_close_timeout", start_to_close)
        return self._issue(
            LocalActivity(
                activity_type=options.name("activity type", activity_type),
                arguments=options.arguments("local activity", arguments),
                retry_policy=options.local_retry(retry_policy),
                start_to_close_timeout=start_to_close,
                schedule_to_close_timeout=schedule_to_close,
                heartbeat_timeout=heartbeat,
                cancellation_policy=policy,
            )
        )

    def start_timer(self, seconds: int) -> Timer:
        """Wait for whole `seconds` >= 0 of durable time."""
        if isinstance(seconds, bool) or not isinstance(seconds, int):
            raise TypeError(f"a timer runs for whole seconds, not {seconds!r}; ctx.sleep rounds up")
        if seconds < 0:
            raise ValueError(f"a timer runs for at least 0 seconds, not {seconds}")
        return self._issue(Timer(seconds))

    def sleep(self, seconds: float) -> Timer:
        """Wait for `seconds` of durable time, rounded up to whole seconds."""
        return self._issue(Timer(options.rounded_seconds("sleep", seconds)))

    def wait_condition(
        self, predicate: Callable[[], object], *, key: str | None = None, timeout: float | None = None
    ) -> WaitCondition:
        """Wait until `predicate` is true of the workflow's own state; awaiting gives True, or False on timeout.

        The predicate reads what signal and update handlers set on `self`. `key` names the wait in history, which lets
        its code change; `timeout` is rounded up to whole seconds. A predicate that raises fails the run.
        """
        if not callable(predicate):
            raise TypeError(f"wait_condition takes a function, not {type(predicate).__qualname__}")
        return self._issue(
            WaitCondition(
                predicate=predicate,
                key=options.optional_name("condition key", key),
                fingerprint=fingerprint(predicate),
                timeout_seconds=None if timeout is None else options.rounded_seconds("timeout", timeout),
            )
        )

    def start_child_workflow(  # the official keyword set
        self,
        workflow_type: str,
        arguments: Sequence[Any] | None = None,
        *,
        task_queue: str | None = None,
        parent_close_policy: ParentClosePolicy | str | None = None,
        cancellation_policy: CancellationPolicy | str | None = None,
        retry_policy: ActivityRetryPolicy | Mapping[str, Any] | None = None,
        execution_timeout_seconds: int | None = None,
        run_timeout_seconds: int | None = None,
    ) -> ChildWorkflow:
        """Run another workflow; awaiting gives its result or raises ChildWorkflowFailed.

        Timeouts are whole seconds >= 1, the run's at most the execution's. No policy means ``abandon``.
        """
        execution = options.seconds("execution_timeout_seconds", execution_timeout_seconds)
        run = options.seconds("run_timeout_seconds", run_timeout_seconds)
        options.at_most("run_timeout_seconds", run, "execution_timeout_seconds", execution)
        return self._issue(
            ChildWorkflow(
                workflow_type=options.name("workflow type", workflow_type),
                arguments=options.arguments("child workflow", arguments),
                queue=options.optional_name("task queue", task_queue),
                parent_close_policy=options.policy(ParentClosePolicy, parent_close_policy),
                cancellation_policy=options.policy(CancellationPolicy, cancellation_policy),
                retry_policy=options.retry(retry_policy),
                execution_timeout_seconds=execution,
                run_timeout_seconds=run,
            )
        )

    def gather(self, members: Sequence[Any]) -> Group:
        """Run commands side by side; awaiting gives their results in the same nesting of lists.

        The first failure in authored order is raised when all members have ended. ``yield [a, [b, c]]`` means the
        same. Members are activities, timers, child workflows and lists of them, at most 1000.
        """
        if not isinstance(members, (list, tuple)):
            raise TypeError(f"gather takes a list of commands, not {type(members).__qualname__}")
        return self._issue(Group(_lists(members)))

    def select(self, operations: Mapping[int | str, Any] | Sequence[Any]) -> Selection:
        """Start commands side by side and wait for the first to end; awaiting gives its SelectionResult.

        Members have the keys of the mapping, or their index. The others go on; await their handles later, or cancel
        them. Members may be conditions and lists, too.
        """
        return self._issue(Selection.of(operations))

    def continue_as_new(
        self, *args: Any, workflow_type: str | None = None, task_queue: str | None = None
    ) -> ContinueAsNew:
        """End this run and go on in a new one with these arguments: return it, or await it."""
        return self._issue(
            ContinueAsNew(
                list(args),
                options.optional_name("workflow type", workflow_type),
                options.optional_name("task queue", task_queue),
            )
        )

    def side_effect(self, function: Callable[[], T]) -> SideEffect[T]:
        """Awaiting calls `function` once in the life of the run and gives its recorded value from then on.

        The value must have a payload form (payloads.md §4). An exception of `function` is raised at the await and is
        not recorded.
        """
        if not callable(function):
            raise TypeError(f"side_effect takes a function, not {type(function).__qualname__}")
        return self._issue(SideEffect(function))

    def get_version(self, change_id: str, min_supported: int, max_supported: int) -> VersionDecision[int]:
        """Awaiting gives the version of changed code this run was started with, `max_supported` for new code.

        Runs that passed this place before the change existed get -1 (replay.md §5).
        """
        return self._version(change_id, min_supported, max_supported, int)

    def patched(self, change_id: str) -> VersionDecision[bool]:
        """Awaiting says whether this run goes the new way (True) or passed here before the patch (False)."""
        return self._version(change_id, -1, 1, _is_patched)

    def deprecate_patch(self, change_id: str) -> VersionDecision[None]:
        """Keep the marker of a patch whose old way is gone; awaiting gives None."""
        return self._version(change_id, -1, 1, _nothing)

    def upsert_memo(self, entries: Mapping[str, Any]) -> UpsertMemo:
        """Merge `entries` into the memo of the run; None deletes one. Limits: payloads.md §9."""
        return self._issue(UpsertMemo(canonical_memo(entries)))

    def upsert_search_attributes(self, attributes: Mapping[str, Any]) -> UpsertSearchAttributes:
        """Set search attributes of the run: scalars or lists of texts; None deletes one."""
        if not isinstance(attributes, Mapping):
            raise TypeError(f"search attributes are a mapping, not {type(attributes).__qualname__}")
        return self._issue(UpsertSearchAttributes(dict(attributes)))

    def message_stream(self, name: str) -> MessageStream:
        """Open the input stream `name` (1 to 128 of letters, digits and ``. _ : -``)."""
        return MessageStream(name, self._inbox)

    def append_workflow_stream(
        self, stream_name: str, items: Sequence[WorkflowStreamAppendItem], *, max_pending_items: int | None = None
    ) -> SideEffect[None]:
        """Append items to an output stream of this run, once."""
        return self._stream(append_directive(self, stream_name, items, max_pending_items))

    def close_workflow_stream(self, stream_name: str, *, retention_seconds: int | None = None) -> SideEffect[None]:
        """Close an output stream of this run."""
        return self._stream(end_directive(self, stream_name, None, retention_seconds))

    def error_workflow_stream(
        self, stream_name: str, error_reason: str, *, retention_seconds: int | None = None
    ) -> SideEffect[None]:
        """Mark an output stream of this run as broken."""
        return self._stream(end_directive(self, stream_name, error_reason or "", retention_seconds))

    def call_nexus_service(
        self,
        endpoint_name: str,
        service_name: str,
        operation_name: str,
        arguments: Sequence[Any] | None = None,
        *,
        idempotency_key: str | None = None,
        mode: str | None = "sync",
        wait_for: str | None = "completed",
        target_namespace: str | None = None,
        **more: Any,
    ) -> ServiceOperation:
        """Call an operation of another service; awaiting gives a NexusOperationResult or raises NexusOperationFailed.

        `more` are the optional fields of ``start_service_operation`` by their wire names (commands.md §2).
        """
        names = (
            options.name("endpoint name", endpoint_name),
            options.name("service name", service_name),
            options.name("operation name", operation_name),
        )
        target = options.optional_name("target namespace", target_namespace)
        values = options.arguments("service operation", arguments)
        metadata = {"target_namespace": target} | {
            key: more.pop(key, None)
            for key in ("service_sdk_language", "artifact_tuple", "published_artifact_worker_execution")
        }
        ordinal, self._service_calls = self._service_calls, self._service_calls + 1
        return self._issue(
            ServiceOperation(
                *names,
                arguments=values,
                idempotency_key=options.optional_name("idempotency key", idempotency_key)
                or _call_key(self, ordinal, names, values, target),
                mode=mode,
                wait_for=wait_for,
                target_namespace=target,
                metadata={key: value for key, value in metadata.items() if value is not None},
                options=options.service(more),
            )
        )

    def start_nexus_operation(
        self,
        endpoint_name: str,
        service_name: str,
        operation_name: str,
        arguments: Sequence[Any] | None = None,
        **more: Any,
    ) -> ServiceOperation:
        """Start an operation of another service and go on as soon as it is accepted."""
        given = {"mode": "async", "wait_for": "accepted"} | more
        return self.call_nexus_service(endpoint_name, service_name, operation_name, arguments, **given)

    def saga(self) -> Saga:
        """Begin a sequence of steps that are undone in reverse order when one fails."""
        return Saga(self)

    @property
    def is_cancellation_requested(self) -> bool:
        """Whether a cancellation was delivered to this code (or the task carries the legacy flag)."""
        return self._cancel_requested

    @property
    def cancellation_context(self) -> CancellationContext | None:
        """Who asked for the delivered cancellation and until when cleanup may last; None before."""
        return self._cancellation

    def throw_if_cancellation_requested(self) -> None:
        """Raise WorkflowCancelled at this place if a cancellation was delivered and no shield is open."""
        if self._cancel_requested and not self._shields:
            raise WorkflowCancelled(request_id=self._request_id, context=self._cancellation)

    @contextmanager
    def cancellation_shield(self) -> Generator[None, None, None]:
        """Let calls run that belong to cleanup: inside, no cancellation is delivered. It extends no deadline."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    def now(self) -> datetime:
        """Give the start of the run (UTC); it never advances.

        A history without a usable WorkflowStarted time makes the workflow task fail (replay.md §3).
        """
        if self._started_at is None:
            self._refusal = NonDeterminismError(
                "the workflow asks for the time, but the history has no WorkflowStarted event with a timestamp; "
                "replay the whole history from its first event",
                sequence=0,
                expected="the time of WorkflowStarted",
                found="no usable time",
            )
            raise self._refusal
        return self._started_at

    def random(self) -> random.Random:
        """Give the run's own random generator, seeded from the run id."""
        return self._random

    def uuid4(self) -> uuid.UUID:
        """Give the next random UUID of this run."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uuid7(self) -> uuid.UUID:
        """Give the next UUID of this run; they sort by the start of the run, then (the first 4096) by call."""
        milliseconds = (self.now() - _EPOCH) // timedelta(milliseconds=1)
        value = (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | (self._uuid7_calls & 0xFFF) << 64 | 2 << 62
        self._uuid7_calls += 1
        return uuid.UUID(int=value | self._random.getrandbits(62))

    def _issue(self, command: _C) -> _C:
        self._unclaimed[id(command)] = command
        return command

    def _claim(self, command: object) -> None:
        """Take note that `command` is awaited, with everything inside it."""
        self._unclaimed.pop(id(command), None)
        if isinstance(command, Group):
            self._claim(command.members)
        elif isinstance(command, Selection):
            for _, member in command.operations:
                self._claim(member)
        elif isinstance(command, list):
            for member in command:
                self._claim(member)

    def _version(
        self, change_id: str, min_supported: int, max_supported: int, convert: Callable[[int], T]
    ) -> VersionDecision[T]:
        options.versions(min_supported, max_supported)
        return self._issue(VersionDecision(options.name("change id", change_id), min_supported, max_supported, convert))

    def _stream(self, directive: Mapping[str, Any]) -> SideEffect[None]:
        return self._issue(SideEffect(_nothing_drawn, directive))

    def _next_stream_ordinal(self) -> int:
        self._stream_commands += 1
        return self._stream_commands - 1

    def _deliver(self, request_id: str, cancellation: CancellationContext | None) -> None:
        self._cancel_requested = True
        self._request_id = request_id
        self._cancellation = cancellation


def _lists(members: Sequence[Any]) -> list[Any]:
    return [_lists(member) if isinstance(member, (list, tuple)) else member for member in members]


def _call_key(
    ctx: WorkflowContext, ordinal: int, names: tuple[str, str, str], arguments: list[Any], target: str | None
) -> str:
    return idempotency_key(
        workflow_id=ctx.workflow_id,
        run_id=ctx.run_id,
        ordinal=ordinal,
        names=names,
        arguments=arguments,
        target=target,
    )


def _nothing_drawn() -> None:
    return None


def _is_patched(version: int) -> bool:
    return version == 1


def _nothing(_version: int) -> None:
    return None
