"""What follows when a step gets its terminal event: the workflow is woken, or a group waits for its other members.

A list of calls wakes the workflow once, when its last member is resolved: replay can do nothing before (events.md §3).
A selection wakes it when its first member is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.rows import Event
from proctor.server.rules.runs import wake
from proctor.server.rules.selections import member_ended, selection_of
from proctor.server.rules.steps import Step


def outermost(group: Mapping[str, Any]) -> str | None:
    """Give the id of the outermost group of a step; None for a step outside groups."""
    path = group.get("parallel_group_path") or ()
    return str(path[0]["parallel_group_id"]) if path else None


def group_is_resolved(book: RunBook, group_id: str) -> bool:
    """Say whether no member of an outermost group is open any more."""
    rows = (*book.open_executions(), *book.open_steps())
    return not any(outermost(row.group) == group_id for row in rows)


def resolved(book: RunBook, step: Step, event: Event, *, source_kind: str) -> list[str]:
    """Wake the workflow for a step that `event` ended, and give the ids of the tasks this made (none or one)."""
    if book.run.is_closed:
        return []
    entry = selection_of(step.group)
    if entry is not None:
        if not member_ended(book, entry, step, event):
            return []
    else:
        group_id = outermost(step.group)
        if group_id is not None and not group_is_resolved(book, group_id):
            return []
    task = wake(book, source_kind=source_kind, source_id=step.step_id)
    return [] if task is None else [task.task_id]
