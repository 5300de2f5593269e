"""The commands that answer an update: its result, or why its handler failed (commands.md §2).

Each is the only command of a task that was leased for this update, and no other task may hold one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.server.rules import updates
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import invalid
from proctor.server.rules.rows import Task


def _complete_update(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    return {
        "update_id": reader.text("update_id"),
        "result": reader.payload("result", limit=grammar.limit),
    }


def _fail_update(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    return {
        "update_id": reader.text("update_id"),
        "message": reader.text("message", limit=grammar.limit).strip(),
        "exception_type": reader.optional_text("exception_type"),
        "exception_class": reader.optional_text("exception_class", limit=1_024),
        "non_retryable": reader.flag("non_retryable"),
    }


READERS = {"complete_update": _complete_update, "fail_update": _fail_update}


def check(task: Task, commands: Sequence[Command]) -> None:
    """Refuse a batch that does not answer exactly the update that its task is for, if it is for one."""
    for index, command in enumerate(commands):
        if task.update_id is None and command.type in READERS:
            raise invalid({f"commands.{index}.update_id": ["this task is not for an update"]})
        if task.update_id is not None and command.type not in READERS:
            raise invalid({f"commands.{index}.type": [f"this task is for the update {task.update_id} alone"]})
        if task.update_id is not None and (index or command.facts["update_id"] != task.update_id):
            raise invalid({f"commands.{index}.update_id": [f"this task is for the update {task.update_id} alone"]})


def apply(book: RunBook, task: Task, command: Command) -> list[str]:
    """Record the answer, and give the ids of the tasks that follow it."""
    return updates.answer(book, task, command.type, command.facts)
