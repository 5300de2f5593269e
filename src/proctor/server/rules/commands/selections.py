"""The command that cancels a member of a selection which has lost (commands.md §6).

It takes no durable number and is answered by its event alone. A worker authors it again until history shows it, so a
member that has ended meanwhile is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules import signal_waits, waits
from proctor.server.rules.book import FollowUp, RunBook
from proctor.server.rules.children import end_as_cancelled
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.fields import LARGEST, Fields
from proctor.server.rules.queued import ending
from proctor.server.rules.refusal import Refusal
from proctor.server.rules.rows import Task
from proctor.server.rules.selections import is_resolved, member_fields, open_leaves, selection_of
from proctor.server.rules.steps import ActivityCall, ChildCall, ConditionWait, SignalWait, Step, Timer
from proctor.server.rules.timers import cancel_timer

_KINDS = ("activity", "child", "timer", "condition", "signal", "group")


def read(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    """Read the name of the member to cancel."""
    key = reader.body.get("member_key")
    number = isinstance(key, int) and not isinstance(key, bool) and 0 <= key <= LARGEST
    if not number and not (isinstance(key, str) and key):
        reader.wrong("member_key", "must be a non-empty string or an integer of at least 0")
    return {
        "selection_group_id": reader.text("selection_group_id"),
        "member_key": key,
        "member_index": reader.integer("member_index", low=0),
        "member_base_sequence": reader.integer("member_base_sequence", low=1),
        "member_size": reader.integer("member_size", low=1),
        "operation_kind": reader.choice("operation_kind", _KINDS, default="group"),
        "operation_identity": reader.text("operation_identity"),
    }


def check(book: RunBook, commands: Sequence[Command]) -> None:
    """Refuse a cancellation whose fields do not name a member of a selection that has its winner."""
    for command in commands:
        if command.type != "cancel_selection_operation":
            continue
        for leaf in _leaves(book, command.facts):
            entry = selection_of(leaf.group)
            if entry is None or not is_resolved(book, entry) or member_fields(entry, leaf) != command.facts:
                name = f"{command.facts['member_key']!r} of {command.facts['selection_group_id']}"
                text = f"{name} is not a losing member of a resolved selection"
                raise Refusal(422, "invalid_commands", text)


def cancel(book: RunBook, task: Task, facts: Mapping[str, Any]) -> None:
    """Cancel what is open of a member; nothing is recorded for a member that has ended."""
    leaves = _leaves(book, facts)
    if not leaves:
        return
    for leaf in leaves:
        _stop(book, leaf, task_id=task.task_id)
    payload = {**facts, "cancelled_at": format_instant(book.now)}
    book.record("SelectionOperationCancelled", payload, task_id=task.task_id)


def _leaves(book: RunBook, facts: Mapping[str, Any]) -> list[Step]:
    member = {
        "selection_member_base_sequence": facts["member_base_sequence"],
        "selection_member_size": facts["member_size"],
    }
    return open_leaves(book, member)


def _stop(book: RunBook, leaf: Step, *, task_id: str) -> None:
    match leaf:
        case Timer():
            cancel_timer(book, leaf, task_id=task_id)
        case ConditionWait():
            waits.abandon(book, leaf, task_id=task_id)
        case SignalWait():
            signal_waits.abandon(book, leaf, task_id=task_id)
        case ActivityCall():
            ending.cancel(book, leaf, task_id=task_id)
        case ChildCall():
            closed = book.run.last_event + 1
            book.put(msgspec.structs.replace(leaf, status="cancelled", closed_event_sequence=closed))
            reason = f"the parent workflow {book.run.workflow_id} has cancelled this member of a selection"
            book.follow_ups.append(FollowUp(leaf.child_run_id, partial(end_as_cancelled, reason=reason)))
