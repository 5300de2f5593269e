"""The ctx calls that start operations: activities, timers, conditions, children, groups, selections.

Each checks its options and builds one immutable command; nothing happens before the command is awaited or yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from proctor.core.replay.authoring import options
from proctor.core.replay.authoring.commands import (
    Activity,
    ChildWorkflow,
    Command,
    ContinueAsNew,
    Group,
    LocalActivity,
    Timer,
    WaitCondition,
)
from proctor.core.replay.authoring.fingerprint import fingerprint
from proctor.core.replay.authoring.options import CancellationPolicy, ParentClosePolicy
from proctor.core.replay.authoring.selection import Selection
from proctor.core.retry import ActivityRetryPolicy, RetryPolicy

_C = TypeVar("_C", bound=Command[Any])


class OperationCalls:
    """The part of the `ctx` that starts operations, and knows which commands were not awaited yet."""

    def __init__(self) -> None:
        self._unclaimed: dict[int, Command[Any]] = {}

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

    def _issue(self, command: _C) -> _C:
        self._unclaimed[id(command)] = command
        return command

    def _claim(self, command: object) -> None:
        """Take note that `command` is awaited, with everything inside it."""
        left, seen = [command], set()  # by hand: what code yields or returns may be nested for ever
        while left:
            item = left.pop()
            self._unclaimed.pop(id(item), None)
            if isinstance(item, Group):
                left.append(item.members)
            elif isinstance(item, Selection):
                left += [member for _, member in item.operations]
            elif isinstance(item, list) and id(item) not in seen:
                seen.add(id(item))
                left += item


def _lists(members: Sequence[Any]) -> list[Any]:
    return [_lists(member) if isinstance(member, (list, tuple)) else member for member in members]
