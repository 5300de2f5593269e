"""Compensation in reverse order: what was done is undone when a later step fails or the run is cancelled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from proctor.core.replay.authoring.commands import Activity, Command
from proctor.core.replay.authoring.routine import Routine
from proctor.core.replay.failures import SagaCompensationFailed, WorkflowCancelled

if TYPE_CHECKING:
    from proctor.core.replay.authoring.context import WorkflowContext


class Saga:
    """Activities to run in reverse order of registration when the forward steps fail; usable once.

    ``await saga.run(forward)`` (or ``yield from``) calls ``forward(saga)``, a coroutine function, a generator function
    or a plain one, and compensates when it raises. Each compensation runs shielded from cancellation.
    """

    def __init__(self, ctx: WorkflowContext) -> None:
        self._ctx = ctx
        self._compensations: list[Activity] = []
        self._closed = False

    def add_compensation(self, activity_type: str, arguments: list[Any] | None = None, **options: Any) -> Saga:
        """Register an activity that undoes a step which has just succeeded; options as for `schedule_activity`."""
        if self._closed:
            raise RuntimeError("the saga is over: compensations are registered before it ends")
        command = self._ctx.schedule_activity(activity_type, arguments or [], **options)
        self._ctx._claim(command)  # it is awaited only if something fails
        self._compensations.append(command)
        return self

    def compensate(self, initiating_failure: BaseException) -> Routine[None]:
        """Run the compensations in reverse order; SagaCompensationFailed when one fails."""
        return Routine(lambda: self._compensate(initiating_failure))

    def run(self, forward: Callable[[Saga], Any]) -> Routine[Any]:
        """Run the forward steps; when they fail, compensate and raise their failure again."""
        return Routine(lambda: self._run(forward))

    def _close(self) -> None:
        if self._closed:
            raise RuntimeError("a saga runs and compensates once")
        self._closed = True

    def _compensate(self, initiating_failure: BaseException) -> Generator[Command[Any], Any, None]:
        self._close()
        with self._ctx.cancellation_shield():
            for order in range(len(self._compensations), 0, -1):
                command = self._compensations[order - 1]
                try:
                    yield command
                except (Exception, WorkflowCancelled) as failure:
                    raise SagaCompensationFailed(
                        initiating_failure,
                        failure,
                        compensation_activity_type=command.activity_type,
                        compensation_registration_order=order,
                    ) from failure

    def _run(self, forward: Callable[[Saga], Any]) -> Generator[Command[Any], Any, Any]:
        if self._closed:
            raise RuntimeError("a saga runs and compensates once")
        try:
            value = forward(self)
            if inspect.isawaitable(value):
                value = yield from value.__await__()
            elif inspect.isgenerator(value):
                value = yield from value
        except (Exception, WorkflowCancelled) as failure:
            yield from self._compensate(failure)
            raise
        self._closed = True
        return value
