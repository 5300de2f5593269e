"""The replay itself: runs the code, has each awaited command answered from history, and concludes one Decision.

The code is resumed at once with every recorded answer (replay.md §3), until it ends, contradicts its history, or asks
for something history does not answer. Each kind of command is answered by its own module; single steps are here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from proctor.core import codec
from proctor.core.replay.answering.answers import WAIT, Answer, Fail, Outcome, Throw, Wait
from proctor.core.replay.answering.boundaries import at_call, must_not_pass, pending_delivery, refuse_passing
from proctor.core.replay.answering.conditions import answer_wait, skip_reopenings
from proctor.core.replay.answering.cursor import Cursor
from proctor.core.replay.answering.groups import answer_group
from proctor.core.replay.answering.local import answer_local
from proctor.core.replay.answering.receivers import Receivers
from proctor.core.replay.answering.run import Replaying, read_results, recorded_value
from proctor.core.replay.answering.selecting import answer_cancel, answer_handle, answer_select, require_none_left
from proctor.core.replay.answering.versions import answer_version, skip_repeated_markers
from proctor.core.replay.authoring import wire_form
from proctor.core.replay.authoring.commands import (
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
from proctor.core.replay.authoring.context import WorkflowContext
from proctor.core.replay.authoring.placing import Placed
from proctor.core.replay.authoring.selection import CancelOperation, DurableOperationHandle, Selection
from proctor.core.replay.authoring.service import ServiceOperation, result_of
from proctor.core.replay.body import Progress, Raised, Returned, open_body
from proctor.core.replay.decision import Commands, Decision, ReplayTask, WorkflowDefinition
from proctor.core.replay.recorded.cancelling import ReplayTime
from proctor.core.replay.recorded.history import read_history
from proctor.core.replay.recorded.ledger import History
from proctor.core.replay.reporting import fail_workflow
from proctor.errors import PayloadError

T = TypeVar("T")
_CALL_KINDS: Final[dict[type[Any], str]] = {Activity: "activity", Timer: "timer", ChildWorkflow: "child"}


def replay(definition: WorkflowDefinition, task: ReplayTask) -> Decision:
    """Run the workflow code of `task` against its history and say what follows.

    Raises, all meaning that the workflow task fails and the run stays open: NonDeterminismError, HistoryError,
    PayloadError, EntryArgumentsMismatch and WorkflowCodeBroken. KeyboardInterrupt passes through.
    """
    return replay_to(definition, task, lambda _run, decision: decision)


def replay_to(
    definition: WorkflowDefinition,
    task: ReplayTask,
    look: Callable[[Replaying, Decision], T],
    *,
    is_query: bool = False,
) -> T:
    """Replay and look at the state the code stands in, before it is closed; raises what `replay` raises."""
    if task.payload_codec != codec.CODEC:
        raise PayloadError("unsupported_payload_codec", "the workflow task does not name the payload codec 'avro'")
    history = read_history(task.history, run_id=task.run_id)
    read_results(history)
    arguments = codec.decode_arguments(task.arguments, task.payload_codec)
    run = _open(definition, task, history, arguments)
    run.is_query = is_query
    try:
        return look(run, _drive(run, run.body.start()))
    finally:
        run.time.active = False
        run.body.close()


def _open(definition: WorkflowDefinition, task: ReplayTask, history: History, arguments: list[Any]) -> Replaying:
    name = f"workflow {definition.name!r}"
    cursor = Cursor(history, name=definition.name, strict=history.strict or task.prepared)
    uncommitted = deque(task.uncommitted)

    def is_live() -> bool:
        return body.is_open and cursor.is_exhausted and not uncommitted and pending_delivery(run) is None

    context = WorkflowContext(
        workflow_id=task.workflow_id,
        run_id=task.run_id,
        workflow_type=task.workflow_type,
        started_at=history.started_at,
        is_live=is_live,
        command_id=task.command_id,
        cancel_requested=task.cancel_requested,
    )
    body = open_body(definition, context, arguments)
    receivers = Receivers(history, body.instance, definition.handlers, context._inbox, name=name)
    run = Replaying(
        name=definition.name,
        task=task,
        history=history,
        cursor=cursor,
        context=context,
        body=body,
        receivers=receivers,
        time=ReplayTime(),
        uncommitted=uncommitted,
    )
    return run


def _drive(run: Replaying, progress: Progress) -> Decision:
    while True:
        if run.context._refusal is not None:
            # Raised inside the code, where an `except Exception` may have hidden it.
            raise run.context._refusal
        if isinstance(progress, Raised):
            return _fail(run, Fail(progress.exception))
        failure = _receive(run)
        if failure is not None:
            return _fail(run, Fail(failure))
        if isinstance(progress, Returned):
            return _complete(run, progress.value)
        command = progress.command
        run.context._claim(command)
        if isinstance(command, ContinueAsNew):
            return _complete(run, command)
        outcome = _answer(run, command)
        if isinstance(outcome, Answer):
            skip_repeated_markers(run)
            failure = _receive(run, before_answer=True)
            if failure is not None:
                return _fail(run, Fail(failure))
            progress = run.body.send(outcome.value)
        elif isinstance(outcome, Throw):
            progress = run.body.throw(outcome.exception)
            if not isinstance(progress, Raised):
                skip_repeated_markers(run)
        elif isinstance(outcome, Fail):
            return _fail(run, outcome)
        elif isinstance(outcome, Wait):
            return run.commands()
        else:
            return outcome


def _receive(run: Replaying, *, before_answer: bool = False) -> BaseException | None:
    return run.receivers.due(
        answers=run.cursor.answers,
        selections=run.selections,
        delivered=run.cancelled,
        before_answer=before_answer,
    )


def _answer(run: Replaying, command: object) -> Outcome:
    if isinstance(command, list):
        return answer_group(run, command)
    answer = _ANSWERS.get(type(command))
    if answer is None:
        what = command if isinstance(command, Command) else type(command).__qualname__
        return Fail(TypeError(f"workflow yielded unsupported command: {what}; await ctx calls only"))
    return answer(run, command)


def _answer_operation(run: Replaying, command: Activity | Timer | ChildWorkflow) -> Outcome:
    outcome = at_call(run, command, _CALL_KINDS[type(command)], (Placed(command, ()),))
    if outcome is not None:
        return outcome
    cursor = run.cursor
    step = cursor.answered
    if step is not None:
        cursor.check_order(command, step)
        cursor.check(command, step)
        cursor.take(command)
        run.observe(step.end_position)
        return run.answer(step)
    must_not_pass(run, command)
    pending = cursor.unconsumed
    if pending is not None:
        cursor.check(command, pending, at=cursor.position)  # it is at work: asking again would start another one
    else:
        run.author(wire_form.operation(command, run.task.queue))
    return WAIT


def _answer_service(run: Replaying, command: ServiceOperation) -> Outcome:
    if command.mode in (None, "sync") and command.wait_for in (None, "completed"):
        outcome = at_call(run, command, "service_operation", (Placed(command, ()),))  # type: ignore[arg-type]
        if outcome is not None:
            return outcome
    must_not_pass(run, command)
    cursor = run.cursor
    step = cursor.answered
    if step is not None:
        cursor.check_order(command, step)
        cursor.check(command, step)
        cursor.take(command)
        result = result_of(command, step)
        return Throw(result.to_failure()) if result.is_failure else Answer(result)
    pending = cursor.unconsumed
    if pending is not None:
        cursor.check(command, pending, at=cursor.position)
    else:
        run.author(wire_form.operation(command, run.task.queue))
    return WAIT


def _answer_side_effect(run: Replaying, command: SideEffect[Any]) -> Outcome:
    must_not_pass(run, command)
    cursor = run.cursor
    step = cursor.answered
    if step is not None:
        cursor.check_order(command, step)
        cursor.check(command, step)
        cursor.take(command)
        return Answer(recorded_value(step))
    _require_nothing_pending(run, command)
    if run.uncommitted:
        return Answer(
            codec.decode_value(run.take_uncommitted(command, "record_side_effect").get("result"), codec.CODEC)
        )
    drawn = run.body.evaluate(command.function)
    if isinstance(drawn, Raised):
        return Throw(drawn.exception)
    assert isinstance(drawn, Returned)
    try:
        wire_form.refuse_async(drawn.value, "a side effect")
    except TypeError as exc:
        return Throw(exc)
    blob = wire_form.encode(drawn.value)
    wire: dict[str, Any] = {"type": "record_side_effect", "result": blob}
    if command.stream is not None:
        wire["workflow_stream"] = dict(command.stream)
    run.author(wire)
    # What the code sees now must be what it will see in every later replay.
    return Answer(codec.decode(blob))


def _answer_upsert(run: Replaying, command: UpsertMemo | UpsertSearchAttributes) -> Outcome:
    must_not_pass(run, command)
    cursor = run.cursor
    step = cursor.answered
    if step is not None:
        cursor.check_order(command, step)
        cursor.check(command, step)
        cursor.take(command)
        return Answer(None)
    _require_nothing_pending(run, command)
    wire = wire_form.upsert(command)
    if run.uncommitted:
        run.take_uncommitted(command, wire["type"])
    else:
        run.author(wire)
    return Answer(None)


def _require_nothing_pending(run: Replaying, command: Command[Any]) -> None:
    step = run.cursor.unconsumed
    if step is not None:
        run.cursor.refuse(str(command), str(step), at=step.sequence)


def _complete(run: Replaying, value: object) -> Decision:
    skip_reopenings(run)
    ending = "the end of the workflow" if not isinstance(value, ContinueAsNew) else str(value)
    _require_end(run, ending)
    run.context._claim(value)
    if isinstance(value, ContinueAsNew):
        return run.commands(wire_form.continue_as_new(value, run.task.queue))
    if run.body.is_coroutine:
        for command in run.context._unclaimed.values():
            return _fail(
                run,
                Fail(TypeError(f"the workflow ended without its {command}: write `await` before the ctx call")),
            )
    wire_form.refuse_async(value, "what run() returns")
    return run.commands({"type": "complete_workflow", "result": wire_form.envelope(value)})


def _require_end(run: Replaying, asked: str) -> None:
    delivery = pending_delivery(run)
    if delivery is not None:
        refuse_passing(run, asked, delivery)
    step = run.cursor.unconsumed
    if step is not None:
        run.cursor.refuse(asked, str(step), at=step.sequence)
    require_none_left(run, asked)


def _fail(run: Replaying, failure: Fail) -> Commands:
    # As the official SDK does, a failure is taken at its word even when recorded steps remain.
    if failure.alone:
        run.authored.commands.clear()
    return run.commands(fail_workflow(failure.exception, prefix=failure.prefix))


_ANSWERS: Final[dict[type[Any], Callable[[Replaying, Any], Outcome]]] = {
    Activity: _answer_operation,
    Timer: _answer_operation,
    ChildWorkflow: _answer_operation,
    LocalActivity: answer_local,
    WaitCondition: answer_wait,
    Group: lambda run, command: answer_group(run, command.members),
    Selection: answer_select,
    DurableOperationHandle: answer_handle,
    CancelOperation: answer_cancel,
    ServiceOperation: _answer_service,
    SideEffect: _answer_side_effect,
    VersionDecision: answer_version,
    UpsertMemo: _answer_upsert,
    UpsertSearchAttributes: _answer_upsert,
}
