"""The commands of a workflow turn: checked as a whole batch, then applied in order (commands.md §1, §2).

A batch is parsed into small records first; only a batch without any mistake is applied, so a refused batch leaves no
trace. Commands that are not listed in `SUPPORTED` are refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.rows import Task
from proctor.server.rules.runs import close, close_as_cancelled

TERMINAL = ("complete_workflow", "fail_workflow")
MARKERS = ("record_side_effect", "record_version_marker", "upsert_search_attributes")
SUPPORTED = (*TERMINAL, *MARKERS)

MAX_COMMANDS = 1_000

_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

# Which commands may carry a field; elsewhere a non-null value is a mistake (commands.md §1, the field scope rule).
_FIELD_SCOPE: Mapping[str, tuple[str, ...]] = {
    "retry_policy": ("schedule_activity", "record_local_activity", "start_child_workflow"),
    "start_to_close_timeout": ("schedule_activity", "record_local_activity"),
    "schedule_to_close_timeout": ("schedule_activity", "record_local_activity"),
    "heartbeat_timeout": ("schedule_activity", "record_local_activity"),
    "schedule_to_start_timeout": ("schedule_activity",),
    "worker_session": ("schedule_activity",),
    "execution_timeout_seconds": ("start_child_workflow",),
    "run_timeout_seconds": ("start_child_workflow",),
    "parent_close_policy": ("start_child_workflow",),
    "non_retryable": ("fail_workflow", "fail_update", "record_local_activity"),
    "timeout_kind": ("record_local_activity",),
    "exception": ("fail_workflow",),
    "delay_seconds": ("start_timer",),
    "timeout_seconds": ("open_condition_wait", "open_signal_wait"),
    "entries": ("upsert_memo",),
}


@dataclass(frozen=True, slots=True)
class Command:
    """One checked command. `facts` are the payload fields of the event it records."""

    type: str
    facts: dict[str, Any] = field(default_factory=dict)


def parse_commands(fields: Fields, items: Sequence[Mapping[str, Any]], *, limit: int) -> list[Command]:
    """Check a batch of commands; mistakes are noted in `fields` under ``commands.{index}.{field}``."""
    commands: list[Command] = []
    terminals = 0
    for index, item in enumerate(items):
        reader = Fields(item, f"commands.{index}.", fields.errors)
        kind = item.get("type")
        if kind not in SUPPORTED:
            reader.wrong("type", f"{kind!r} is not supported by this server")
            continue
        for name, owners in _FIELD_SCOPE.items():
            if item.get(name) is not None and kind not in owners:
                reader.wrong(name, f"does not belong to {kind}")
        if kind in TERMINAL:
            terminals += 1
            if terminals > 1:
                reader.wrong("type", "a completion may hold only one terminal command")
        commands.append(Command(kind, _READERS[kind](reader, limit)))
    return commands


def _complete_workflow(reader: Fields, limit: int) -> dict[str, Any]:
    return {"output": reader.payload("result", limit=limit), "payload_codec": "avro"}


def _fail_workflow(reader: Fields, limit: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "message": reader.text("message", limit=limit).strip(),
        "exception_type": reader.optional_text("exception_type"),
        "exception_class": reader.optional_text("exception_class", limit=1_024),
        "exception": reader.optional_object("exception"),
        "non_retryable": reader.flag("non_retryable"),
        "failure_category": "application",
        "failed_step_sequence": reader.optional_integer("failed_step_sequence", low=1),
    }
    execution = reader.optional_text("failed_activity_execution_id")
    if (execution is None) != (facts["failed_step_sequence"] is None):
        reader.wrong("failed_step_sequence", "needs failed_activity_execution_id, and the reverse")
    if execution is not None:
        facts |= {"failed_step_kind": "activity", "source_kind": "activity", "source_id": execution}
    return facts


def _record_side_effect(reader: Fields, limit: int) -> dict[str, Any]:
    blob = reader.payload("result", limit=limit)
    if reader.body.get("result") is None:
        reader.wrong("result", "is required")
    return {"result": blob, "payload_codec": "avro"}


def _record_version_marker(reader: Fields, limit: int) -> dict[str, Any]:
    low = -(2**31)
    facts: dict[str, Any] = {
        "change_id": reader.text("change_id").strip(),
        "version": reader.integer("version", low=low),
        "min_supported": reader.integer("min_supported", low=low),
        "max_supported": reader.integer("max_supported", low=low),
    }
    if not reader.errors and not facts["min_supported"] <= facts["version"] <= facts["max_supported"]:
        reader.wrong("version", "must lie within min_supported and max_supported")
    return facts


def _upsert_search_attributes(reader: Fields, limit: int) -> dict[str, Any]:
    attributes = reader.object("attributes")
    clean: dict[str, Any] = {}
    for name, value in attributes.items():
        if not _ATTRIBUTE_NAME.fullmatch(name):
            reader.wrong(f"attributes.{name}", "a name is 1 to 64 of A-Z a-z 0-9 _ . : -")
        elif isinstance(value, str):
            clean[name] = value.strip() or None
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            clean[name] = [item.strip() for item in value]
        elif value is None or isinstance(value, bool | int | float):
            clean[name] = value
        else:
            reader.wrong(f"attributes.{name}", "must be a scalar, a list of strings or null")
    if not attributes:
        reader.wrong("attributes", "must not be empty")
    facts: dict[str, Any] = {"attributes": clean}
    types = reader.optional_object("attribute_types")
    if types is not None:
        facts["attribute_types"] = types
    return facts


_READERS = {
    "complete_workflow": _complete_workflow,
    "fail_workflow": _fail_workflow,
    "record_side_effect": _record_side_effect,
    "record_version_marker": _record_version_marker,
    "upsert_search_attributes": _upsert_search_attributes,
}

_EVENTS = {
    "record_side_effect": "SideEffectRecorded",
    "record_version_marker": "VersionMarkerRecorded",
    "upsert_search_attributes": "SearchAttributesUpserted",
}


def apply_markers(book: RunBook, task: Task, commands: Sequence[Command]) -> None:
    """Record the commands that need no answer: each takes the next durable number."""
    for command in commands:
        if command.type in TERMINAL:
            continue
        facts = dict(command.facts)
        if command.type == "upsert_search_attributes":
            facts["merged"] = _merge_attributes(book, facts["attributes"])
        sequence = book.take_sequence()
        book.record(_EVENTS[command.type], {"sequence": sequence, **facts}, task_id=task.task_id)


def apply_terminal(book: RunBook, task: Task, commands: Sequence[Command]) -> bool:
    """Close the run on the batch's terminal command; give False when there is none.

    After a delivered cancellation either terminal command ends the run as cancelled (cancellation.md §5).
    """
    last = next((command for command in commands if command.type in TERMINAL), None)
    if last is None:
        return False
    cancellation = book.run.cancellation
    if cancellation is not None and cancellation.delivery is not None:
        close_as_cancelled(book, task_id=task.task_id)
        return True
    if last.type == "complete_workflow":
        output = envelope(last.facts["output"])
        book.output = output
        close(
            book,
            status="completed",
            reason="completed",
            event_type="WorkflowCompleted",
            payload={**last.facts, "output": output},
            task_id=task.task_id,
        )
        return True
    payload = {name: value for name, value in last.facts.items() if value is not None}
    close(
        book,
        status="failed",
        reason="failed",
        event_type="WorkflowFailed",
        payload={"failure_id": book.new_id(), **payload},
        task_id=task.task_id,
    )
    return True


def _merge_attributes(book: RunBook, changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**(book.run.search_attributes or {}), **changes}
    merged = {name: value for name, value in merged.items() if value is not None}
    book.update_run(search_attributes=merged)
    return merged
