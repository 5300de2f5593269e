"""Offline replay: a saved history and workflow code in, a verdict out (replay.md §11).

A saved history is a list of events, or an object around one. What the history does not hold (start arguments, ids) can
be given beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proctor.core import codec
from proctor.core.replay.authoring import wire_form
from proctor.core.replay.decision import Commands, Decision, ReplayTask, WorkflowDefinition
from proctor.core.replay.engine import replay
from proctor.core.replay.recorded.history import read_history
from proctor.errors import HistoryError, NonDeterminismError

_LISTS: Final = ("events", "history_events", "history")
_INPUTS: Final = ("input_envelope", "input", "arguments")
_ENDINGS: Final = {"WorkflowCompleted": "complete_workflow", "WorkflowContinuedAsNew": "continue_as_new"}


def task_of_document(document: object, *, workflow_type: str) -> ReplayTask:
    """Read a saved history as JSON gives it: a list of events, or an object around one.

    The object has ``events`` (or ``history_events``, ``history``), and perhaps ``workflow_id``, ``run_id`` and the
    start input, at its top or under ``workflow``; an input that is no payload is taken as plain JSON. The bundle of a
    history export (control-plane.md §5) has its own places for these. Raises HistoryError and PayloadError as
    `read_history` does.
    """
    if not isinstance(document, Mapping):
        return task_of_history(document, workflow_type=workflow_type)  # type: ignore[arg-type]  # checked in reading
    events = next((document[key] for key in _LISTS if key in document), None)
    if events is None:
        raise HistoryError(f"a saved history has its list of events under one of {', '.join(_LISTS)}")
    about = document.get("workflow")
    facts = {**(about if isinstance(about, Mapping) else {}), **document}
    given = _first(facts, _INPUTS)
    payloads = document.get("payloads")
    bundled = payloads.get("arguments") if isinstance(payloads, Mapping) else None
    if given is None and isinstance(bundled, Mapping):
        given = bundled.get("data")
    return task_of_history(
        events,
        workflow_type=workflow_type,
        workflow_id=_text(facts, "workflow_id", "instance_id") or None,
        run_id=_text(facts, "run_id") or None,
        arguments=_wire_field(given),
    )


def task_of_history(
    events: Sequence[Mapping[str, Any]],
    *,
    workflow_type: str,
    workflow_id: str | None = None,
    run_id: str | None = None,
    arguments: object = None,
) -> ReplayTask:
    """Take start input and identities from the recorded WorkflowStarted, as far as they are not given.

    The input is the first of ``input_envelope``, ``input``, ``arguments`` that is there; none means no arguments, and
    what is no payload is taken as plain JSON. Raises HistoryError and PayloadError as `read_history` does.
    """
    started = read_history(events).started or {}
    if arguments is None:
        arguments = _start_input(started)
    return ReplayTask(
        workflow_id=workflow_id or _text(started, "workflow_id", "workflow_instance_id"),
        run_id=run_id or _text(started, "workflow_run_id"),
        workflow_type=workflow_type,
        payload_codec=codec.CODEC,
        arguments=arguments,
        history=events,
    )


def verify(definition: WorkflowDefinition, task: ReplayTask) -> Decision:
    """Replay a saved history and hold how the code ends against how the history ended.

    Raises what `replay` raises; NonDeterminismError, too, when history closed the run and the code asks for more, or
    ends it in another way.
    """
    decision = replay(definition, task)
    history = read_history(task.history, run_id=task.run_id)
    ended = next((_type(event) for event in reversed(task.history) if _type(event) in _ENDINGS), None)
    if ended is None:
        return decision
    last = decision.commands[-1]["type"] if isinstance(decision, Commands) and decision.commands else "no end"
    if last != _ENDINGS[ended] and not (last == "fail_workflow" and history.cancellation is not None):
        sequence = 1 + max(history.by_sequence, default=0)
        expected = f"{last}" if isinstance(decision, Commands) else type(decision).__name__
        raise NonDeterminismError(
            f"workflow {definition.name!r} does not end as its history did: at sequence {sequence} the code comes to "
            f"{expected}, the history records {ended}. Deploy the code that recorded it, or guard the change with "
            "ctx.get_version",
            sequence=sequence,
            expected=expected,
            found=ended,
        )
    return decision


def _start_input(started: Mapping[str, Any]) -> object:
    codec.require_named(started)
    return _wire_field(_first(started, _INPUTS))


def _wire_field(given: object) -> object:
    """Give an input as a wire field; what is neither a text nor an envelope is plain JSON."""
    if given is None or isinstance(given, str) or (isinstance(given, Mapping) and "codec" in given):
        return given
    return wire_form.envelope(given if isinstance(given, list) else [given])


def _type(event: Mapping[str, Any]) -> str:
    return str(event.get("event_type") or event.get("type"))


def _first(fields: Mapping[str, Any], keys: Sequence[str]) -> object:
    return next((fields[key] for key in keys if fields.get(key) is not None), None)


def _text(started: Mapping[str, Any], *keys: str) -> str:
    return next((value for key in keys if isinstance(value := started.get(key), str)), "")
