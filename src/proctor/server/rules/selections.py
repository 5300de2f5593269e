"""Selections: which member of `ctx.select` has won, decided once, when the first member ends (commands.md §6).

A member is one operation, or a list of them that ends with its last success or its first failure. Members that lose go
on; the workflow may await them later, and is woken when they end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.rows import Event
from proctor.server.rules.steps import ChildCall, Step

_FAILURES = frozenset(
    {
        "ActivityFailed",
        "ActivityCancelled",
        "ActivityTimedOut",
        "ChildRunFailed",
        "ChildRunCancelled",
        "ChildRunTerminated",
    }
)


def selection_of(group: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give what a step's groups say of the selection it is a member of; None for any other step."""
    path = group.get("parallel_group_path") or ()
    return path[0] if path and path[0].get("parallel_group_mode") == "select" else None


def is_resolved(book: RunBook, entry: Mapping[str, Any]) -> bool:
    """Say whether the selection already has its winner; known as long as one of its members is open."""
    return entry["parallel_group_id"] in book.run.resolved_selections


def member_numbers(entry: Mapping[str, Any]) -> range:
    """Give the durable numbers of the member that a step belongs to."""
    base = entry["selection_member_base_sequence"]
    return range(base, base + entry["selection_member_size"])


def open_leaves(book: RunBook, entry: Mapping[str, Any]) -> list[Step]:
    """Give the operations of a member that have not ended."""
    numbers = member_numbers(entry)
    return [step for step in book.open_steps() if step.sequence in numbers]


def member_fields(entry: Mapping[str, Any], step: Step) -> dict[str, Any]:
    """Give the fields by which history and commands name a member; `step` is one of its operations."""
    base, size = entry["selection_member_base_sequence"], entry["selection_member_size"]
    kind = entry["selection_member_kind"]
    identity = step.first_run_id if isinstance(step, ChildCall) else step.step_id
    return {
        "selection_group_id": entry["parallel_group_id"],
        "member_key": entry["selection_member_key"],
        "member_index": entry["selection_member_index"],
        "member_base_sequence": base,
        "member_size": size,
        "operation_kind": kind,
        "operation_identity": f"group:{base}:{size}" if kind == "group" else identity,
    }


def member_ended(book: RunBook, entry: Mapping[str, Any], step: Step, event: Event) -> bool:
    """Take note that an operation of a member ended; say whether the workflow can go on because of it.

    The first member that ends wins, and `SelectionResolved` says so.
    """
    failed = event.event_type in _FAILURES
    if not failed and open_leaves(book, entry):
        return False
    if not is_resolved(book, entry):
        payload = {
            **member_fields(entry, step),
            "selection_group_base_sequence": entry["parallel_group_base_sequence"],
            "selection_group_size": entry["parallel_group_size"],
            "outcome": "failed" if failed else "completed",
            "resolution_event_id": event.id,
            "resolution_event_type": event.event_type,
        }
        book.record("SelectionResolved", payload)
        _remember(book, entry["parallel_group_id"])
    return True


def _remember(book: RunBook, group_id: str) -> None:
    entries = [selection_of(step.group) for step in book.open_steps()]
    alive = {entry["parallel_group_id"] for entry in entries if entry is not None}
    kept = tuple(known for known in book.run.resolved_selections if known in alive)
    book.update_run(resolved_selections=(*kept, group_id))
