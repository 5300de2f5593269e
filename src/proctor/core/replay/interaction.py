"""Queries, updates and their validation: the code is replayed, and a handler is asked about the state it stands in.

Nothing here grows history by itself; what an update changes becomes durable when the server records its application
(replay.md §9).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from proctor.core import codec
from proctor.core.replay.answering.receivers import call_handler, decode_receiver
from proctor.core.replay.answering.run import Replaying
from proctor.core.replay.authoring.wire_form import encode, envelope
from proctor.core.replay.body import Raised, Returned, Yielded, sort_exceptions
from proctor.core.replay.decision import Commands, Decision, ReplayTask, WorkflowDefinition
from proctor.core.replay.engine import replay_to
from proctor.core.replay.recorded.steps import text
from proctor.core.replay.recorded.waits import Receiver
from proctor.core.replay.reporting import message_of
from proctor.errors import NonDeterminismError, PayloadError, ProctorError


class QueryFailed(ProctorError):
    """A query has no answer: its handler raised, or one of the kinds below. `reason` is what the server is told."""

    reason = "query_rejected"


class QueryUnknown(QueryFailed):
    """The workflow has no such query."""

    reason = "rejected_unknown_query"


class QueryStateUnavailable(QueryFailed):
    """The code does not come to the state that it is asked about: its replay failed."""

    reason = "query_workflow_state_unavailable"


class QueryAnswerUnsendable(QueryFailed):
    """The handler answered with something that has no payload form."""

    reason = "query_result_encode_failed"


class UpdateRejected(ProctorError):
    """The validator of an update refused it; `exception_type` names what it raised (replay.md §9)."""

    __module__ = "proctor.workflow"

    def __init__(self, message: str, *, exception_type: str | None = None) -> None:
        super().__init__(message)
        self.exception_type = exception_type or type(self).__name__


def answer_query(
    definition: WorkflowDefinition, task: ReplayTask, name: str, arguments: list[Any] | None = None
) -> Any:
    """Give the value of query `name` in the state that history leads to, as its payload form gives it back.

    Raises QueryFailed, also for a value without a payload form.
    """

    def look(run: Replaying, decision: Decision) -> Any:
        _require_alive(decision, QueryStateUnavailable)
        method = definition.handlers.queries.get(name)
        if method is None:
            known = ", ".join(sorted(definition.handlers.queries)) or "none"
            raise QueryUnknown(f"workflow {definition.name!r} has no query {name!r}; it has {known}")
        value = _read_only(run, method, arguments or [], QueryFailed)
        try:
            # Detached from the workflow's objects, which its cleanup may still change, and as the asker will see it.
            return codec.decode(encode(value))
        except PayloadError as exc:
            raise QueryAnswerUnsendable(f"query {name!r} answered with what cannot be sent: {exc}") from exc

    return _replayed(definition, task, look, QueryStateUnavailable, is_query=True)


def validate_update(definition: WorkflowDefinition, task: ReplayTask, name: str, arguments: list[Any]) -> None:
    """Ask the validator of update `name`; UpdateRejected when it refuses, ProctorError when it cannot be asked."""

    def look(run: Replaying, decision: Decision) -> None:
        _require_alive(decision, ProctorError)
        method = definition.handlers.validators.get(name)
        if method is None or name not in definition.handlers.updates:
            raise ProctorError(f"workflow {definition.name!r} has no validator for update {name!r}")
        if _read_only(run, method, arguments, UpdateRejected) is False:
            raise UpdateRejected(f"the validator of update {name!r} returned False", exception_type="ValueError")

    _replayed(definition, task, look, ProctorError)


def answer_update(definition: WorkflowDefinition, task: ReplayTask, update_id: str) -> Commands:
    """Run the handler of an accepted update and give its ``complete_update`` or ``fail_update`` command.

    Raises NonDeterminismError: the task fails then, not the update.
    """

    def look(run: Replaying, decision: Decision) -> dict[str, Any]:
        failed = _failure(decision)
        if failed is not None:
            message = f"workflow replay failed before update: {failed['message']}"
            return _fail_update(update_id, message, failed["exception_type"])
        return _run_update(run, definition, update_id)

    try:
        command = replay_to(definition, task, look)
    except NonDeterminismError:
        raise
    except ProctorError as exc:
        command = _fail_update(
            update_id,
            message_of(exc, prefix="workflow replay failed before update: "),
            type(exc).__name__,
            _class_of(exc),
        )
    return Commands((command,))


def _run_update(run: Replaying, definition: WorkflowDefinition, update_id: str) -> dict[str, Any]:
    accepted = run.history.accepted_updates.get(update_id)
    if accepted is None:
        return _fail_update(update_id, f"history does not hold the accepted update {update_id!r}", "UpdateNotFound")
    name = text(accepted.get("update_name"))
    if name is None:
        return _fail_update(update_id, f"the accepted update {update_id!r} has no name", "InvalidUpdate")
    method = definition.handlers.updates.get(name)
    if method is None:
        return _fail_update(update_id, f"unknown update {name!r}", "UnknownUpdate")
    try:
        arguments = decode_receiver(Receiver("update", name, accepted, 0, 0, 0))
    except PayloadError as exc:
        return _fail_update(update_id, f"update argument decode failed: {exc}", type(exc).__name__, _class_of(exc))
    value, failure = call_handler(run.body.instance, method, arguments, name=f"workflow {definition.name!r}")
    if failure is None:
        try:
            return {"type": "complete_update", "update_id": update_id, "result": envelope(value)}
        except PayloadError as exc:
            failure = exc
    message = message_of(failure, prefix="update handler failed: ")
    return _fail_update(update_id, message, type(failure).__name__, _class_of(failure))


def _replayed(
    definition: WorkflowDefinition,
    task: ReplayTask,
    look: Callable[[Replaying, Decision], Any],
    error: type[ProctorError],
    *,
    is_query: bool = False,
) -> Any:
    try:
        return replay_to(definition, task, look, is_query=is_query)
    except (QueryFailed, UpdateRejected):
        raise
    except ProctorError as exc:
        if type(exc) is error:
            raise
        raise error(f"workflow replay failed: {exc}") from exc


def _require_alive(decision: Decision, error: type[ProctorError]) -> None:
    failed = _failure(decision)
    if failed is not None:
        raise error(f"workflow replay failed: {failed['message']}")


def _failure(decision: Decision) -> dict[str, Any] | None:
    first = decision.commands[0] if isinstance(decision, Commands) and decision.commands else {}
    return first if first.get("type") == "fail_workflow" else None


def _read_only(run: Replaying, method: str, arguments: list[Any], error: type[ProctorError]) -> Any:
    """Call a handler that changes nothing; an async one is run to its end, and must not wait."""

    def call() -> Returned | Yielded:
        value = getattr(run.body.instance, method)(*arguments)
        if not inspect.iscoroutine(value):
            return Returned(value)
        try:
            waits_for = value.send(None)
        except StopIteration as stop:
            return Returned(stop.value)
        value.close()
        return Yielded(waits_for)

    outcome = sort_exceptions(f"handler {method}", call)
    if isinstance(outcome, Raised):
        exc = outcome.exception
        if isinstance(exc, error):
            raise exc
        if error is UpdateRejected:
            raise UpdateRejected(message_of(exc), exception_type=type(exc).__name__) from exc
        raise error(message_of(exc)) from exc
    if isinstance(outcome, Yielded):
        raise error(f"handler {method} waits for something: queries and validators answer at once")
    return outcome.value


def _fail_update(
    update_id: str, message: str, exception_type: str, exception_class: str | None = None
) -> dict[str, Any]:
    command: dict[str, Any] = {
        "type": "fail_update",
        "update_id": update_id,
        "message": message,
        "exception_type": exception_type,
        "non_retryable": True,
    }
    return command if exception_class is None else command | {"exception_class": exception_class}


def _class_of(exc: BaseException) -> str:
    return f"{type(exc).__module__}.{type(exc).__qualname__}"
