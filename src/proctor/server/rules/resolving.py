"""What follows when a step gets its terminal event: the workflow is woken, or a group waits for its other members.

A list of calls wakes the workflow once, when its last member is resolved: replay can do nothing before (events.md §3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.runs import wake


def outermost(group: Mapping[str, Any]) -> str | None:
    """Give the id of the outermost group of a step; None for a step outside groups."""
    path = group.get("parallel_group_path") or ()
    return str(path[0]["parallel_group_id"]) if path else None


def group_is_resolved(book: RunBook, group_id: str) -> bool:
    """Say whether no member of an outermost group is open any more."""
    rows = (*book.open_executions(), *book.open_steps())
    return not any(outermost(row.group) == group_id for row in rows)


def resolved(book: RunBook, group: Mapping[str, Any], *, source_kind: str, source_id: str) -> list[str]:
    """Wake the workflow for a resolved step, and give the ids of the tasks this made (none or one)."""
    group_id = outermost(group)
    if book.run.is_closed or (group_id is not None and not group_is_resolved(book, group_id)):
        return []
    task = wake(book, source_kind=source_kind, source_id=source_id)
    return [] if task is None else [task.task_id]
