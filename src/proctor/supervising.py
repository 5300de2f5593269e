"""The only bridge to `proctor_supervisor`: jobs become its tasks, its outcomes become the core's child ends.

Bytes from a child are hostile: a result is checked as a whole frame before it becomes a wire blob, and is
never unpickled. Nothing of workflows goes over this bridge except opaque bytes and instants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from proctor.activity import ActivityDefinition
from proctor.core.attempt import (
    ChildEnd,
    ChildFacts,
    NotStarted,
    Raised,
    StopCause,
    Unproven,
    WasStopped,
)
from proctor.core.jobs import Job, Reins
from proctor.core.results import returned
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Deadlines,
    Failed,
    Heartbeat,
    Outcome,
    OutputLine,
    StopReason,
    StopUnconfirmed,
    SupervisorClosed,
    Task,
    TaskRefused,
)

CHILD_CODEC = "proctor.child:CODEC"

_TYPE_OF_KIND = {
    "exited": "ChildExited",
    "signalled": "ChildSignalled",
    "unloadable": "HandlerUnloadable",
    "result_refused": "ResultRefused",
    "protocol": "ChildProtocolBreach",
    "start_failed": "ChildStartFailed",
    "supervisor_died": "SupervisorDied",
}
_NEVER_BETTER = frozenset({"result_refused"})
"""Kinds of failure that another attempt of the same handler cannot cure."""


class RunsTasks(Protocol):
    """What is used of `proctor_supervisor.Supervisor`."""

    async def run(
        self,
        task: Task,
        *,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
        on_output: Callable[[OutputLine], None] | None = None,
        control: AttemptControl | None = None,
    ) -> Outcome:
        """Run one attempt and give its outcome."""
        ...


class SupervisorReins:
    """The reins of one attempt, over the supervisor's handle."""

    def __init__(self) -> None:
        self.control = AttemptControl()

    def request_stop(self, cause: StopCause, detail: str) -> None:
        """Ask for a stop; before the child runs it is kept, after its end it does nothing."""
        self.control.request_stop(StopReason(cause.value), detail)

    def extend_authority(self, until: float) -> None:
        """Move the dead man's instant of the supervisor process."""
        self.control.extend_authority(until)


class SupervisedChildren:
    """Runs attempts of registered handlers in supervised children. Satisfies
    `proctor.core.jobs.Children`.
    """

    def __init__(
        self,
        supervisor: RunsTasks,
        activities: Mapping[str, ActivityDefinition],
        *,
        on_output: Callable[[OutputLine], None] | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._activities = activities
        self._on_output = on_output

    def reins(self) -> Reins:
        """Make the reins of one attempt."""
        return SupervisorReins()

    async def run(self, job: Job, reins: Any, on_heartbeat: Callable[[bytes], None]) -> ChildEnd:
        """Run one attempt; the call is to be shielded, its stop goes through `reins`."""
        assert isinstance(reins, SupervisorReins)
        try:
            outcome = await self._supervisor.run(
                self._task(job),
                control=reins.control,
                on_heartbeat=lambda beat: on_heartbeat(beat.payload),
                on_output=self._on_output,
            )
        except StopUnconfirmed as exc:
            return Unproven(exc, ChildFacts(pid=exc.pid))
        except TaskRefused as exc:
            return Raised("TaskRefused", str(exc), non_retryable=True)
        except SupervisorClosed:
            return NotStarted("worker_shutdown")
        return child_end(outcome, max_result_bytes=job.max_result_bytes)

    def _task(self, job: Job) -> Task:
        definition = self._activities[job.activity_type]
        limits = job.limits
        return Task(
            handler=definition.function,
            payload=job.payload,
            codec=CHILD_CODEC,
            context=job.context,
            attempt_id=job.attempt_id,
            deadlines=Deadlines(
                attempt=limits.attempt,
                total=limits.total,
                authority=limits.authority,
                heartbeat_timeout=limits.heartbeat_timeout,
            ),
            stop=definition.stop,
        )


def child_end(outcome: Outcome, *, max_result_bytes: int) -> ChildEnd:
    """Give the end of a child in the words of the core."""
    facts = ChildFacts(
        duration_ms=round(outcome.duration * 1000),
        pid=outcome.pid,
        heartbeats=outcome.heartbeats,
        heartbeats_dropped=outcome.heartbeats_dropped,
    )
    if isinstance(outcome, Completed):
        return returned(outcome.result, facts, limit=max_result_bytes)
    if isinstance(outcome, Failed):
        return _raised(outcome, facts)
    return WasStopped(StopCause(str(outcome.reason)), outcome.proof.as_dict(), facts)


def _raised(outcome: Failed, facts: ChildFacts) -> Raised:
    failure = outcome.failure
    known = outcome.kind == "raised"
    return Raised(
        exception_type=failure.type_name if known else _TYPE_OF_KIND.get(outcome.kind, failure.type_name),
        message=failure.message,
        non_retryable=failure.non_retryable or failure.cancelled or outcome.kind in _NEVER_BETTER,
        facts=facts,
        exception_class=f"{failure.module}.{failure.type_name}" if known and failure.module else "",
    )
