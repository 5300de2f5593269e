"""A batch of commands: checked as a whole, then applied in order (commands.md §1).

A batch is parsed into small records first; only a batch without any mistake is applied, so a refused batch leaves no
trace. Commands that are not listed in `SUPPORTED` are refused, never ignored. What a kind of command means is written
in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proctor.server.rules import limits, signal_waits, waits
from proctor.server.rules.book import RunBook
from proctor.server.rules.children import start_child
from proctor.server.rules.commands import answers, endings, markers, relatives, reported, selections, steps
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.commands.groups import check_groups, without_recorded
from proctor.server.rules.fields import Fields
from proctor.server.rules.local.reported import record_reported_call
from proctor.server.rules.queued.schedule import schedule
from proctor.server.rules.rows import Task
from proctor.server.rules.timers import start_timer

_ABSENT = {"start_service_operation": ", which has no service endpoints"}
TERMINAL = tuple(endings.READERS)
MARKERS = tuple(markers.READERS)
SUPPORTED = (
    *TERMINAL,
    *MARKERS,
    "record_local_activity",
    *steps.READERS,
    "start_child_workflow",
    "cancel_selection_operation",
    *answers.READERS,
)

# The minor version from which workers may send a command (commands.md §0); the others are as old as the protocol.
_FLOORS = {
    "upsert_search_attributes": 8,
    "open_condition_wait": 9,
    "upsert_memo": 14,
    "record_local_activity": 18,
    "cancel_selection_operation": 19,
}


def supported(minor: int) -> list[str]:
    """Give the commands that protocol 1.`minor` has."""
    return [kind for kind in SUPPORTED if _FLOORS.get(kind, 0) <= minor]


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


def parse_commands(fields: Fields, items: Sequence[Mapping[str, Any]], grammar: Grammar) -> list[Command]:
    """Check a batch of commands; mistakes are noted in `fields` under ``commands.{index}.{field}``."""
    read = [
        parse_command(Fields(item, f"commands.{index}.", fields.errors), grammar) for index, item in enumerate(items)
    ]
    commands = [command for command in read if command is not None]
    terminals = [index for index, item in enumerate(items) if item.get("type") in TERMINAL]
    for index in terminals[1:]:
        fields.wrong(f"commands.{index}.type", "a completion may hold only one terminal command")
    return commands


def parse_command(reader: Fields, grammar: Grammar) -> Command | None:
    """Check one command; mistakes are noted in `reader`, and one of an unknown kind gives None."""
    kind = reader.body.get("type")
    if not isinstance(kind, str) or kind not in SUPPORTED:
        reader.wrong("type", f"{kind!r} is not supported by this server{_ABSENT.get(str(kind), '')}")
        return None
    if grammar.minor < _FLOORS.get(kind, 0):
        reader.wrong("type", f"{kind} needs worker protocol 1.{_FLOORS[kind]}")
    for name, owners in _FIELD_SCOPE.items():
        if reader.body.get(name) is not None and kind not in owners:
            reader.wrong(name, f"does not belong to {kind}")
    return Command(kind, _READERS[kind](reader, grammar))


def apply_commands(book: RunBook, task: Task, commands: Sequence[Command]) -> None:
    """Apply everything but the terminal command, in order; each takes the next durable number."""
    relatives.check_policies(task, commands)
    markers.check_declared(task, commands)
    markers.check(book, commands)
    selections.check(book, commands)
    commands = without_recorded(book, commands)
    limits.check_turn(book, commands)
    check_groups(commands, waits.first_number(book, commands))
    commands, inherited = waits.settle(book, task, commands)
    for command in commands:
        if command.type == "open_condition_wait":
            waits.open_wait(book, task, command.facts, group=command.facts["group"], fire_at=inherited)
        else:
            apply_command(book, task, command)
    signal_waits.take_early(book, task)


def apply_command(book: RunBook, task: Task, command: Command) -> None:
    """Apply one command that neither opens a condition wait nor ends the run."""
    if command.type in MARKERS:
        markers.record(book, task, command.type, command.facts)
    elif command.type == "record_local_activity":
        record_reported_call(book, task, command.facts)
    elif command.type == "schedule_activity":
        schedule(book, task, command.facts)
    elif command.type == "start_child_workflow":
        start_child(book, task, command.facts)
    elif command.type == "cancel_selection_operation":
        selections.cancel(book, task, command.facts)
    elif command.type == "open_signal_wait":
        signal_waits.open_wait(book, task, command.facts)
    elif command.type == "start_timer":
        start_timer(book, task, **command.facts)


def apply_terminal(book: RunBook, task: Task, commands: Sequence[Command]) -> bool:
    """Close the run on the batch's terminal command; give False when there is none."""
    last = next((command for command in commands if command.type in TERMINAL), None)
    if last is None:
        return False
    endings.close_run(book, task, last.type, last.facts)
    return True


_READERS: Mapping[str, Callable[[Fields, Grammar], Any]] = {
    **markers.READERS,
    **endings.READERS,
    **steps.READERS,
    "record_local_activity": reported.read,
    "start_child_workflow": relatives.start_child_workflow,
    "cancel_selection_operation": selections.read,
    **answers.READERS,
}
