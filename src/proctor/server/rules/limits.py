"""Structural limits: how much of a kind a run may have open at once, and how large one turn may be (payloads.md §9).

What would exceed one is refused before anything is recorded. Owns counting and the words of the refusal; the numbers
are settings. Sizes of payloads are checked where they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from proctor.server.rules.book import RunBook, StructuralLimits
from proctor.server.rules.commands.grammar import Command
from proctor.server.rules.commands.reported import ReportedCall
from proctor.server.rules.refusal import Refusal
from proctor.server.rules.steps import ActivityCall, ChildCall, Timer

_KINDS: Mapping[str, str] = {
    "schedule_activity": "pending_activity_count",
    "prepare_local_activity": "pending_activity_count",
    "start_child_workflow": "pending_child_count",
    "start_timer": "pending_timer_count",
}


def exceeded(kind: str, value: int, limit: int, *, status: int = 422) -> Refusal:
    """Make the refusal; the control plane answers 409, the worker plane 422."""
    text = f"{kind} would be {value}, and {limit} are allowed; nothing was recorded"
    facts = {"limit_kind": kind, "current_value": value, "configured_limit": limit}
    return Refusal(status, "structural_limit_exceeded", text, facts | ({} if status == 409 else {"recorded": False}))


def excess(limits: StructuralLimits, size: int) -> Refusal | None:
    """Give the refusal of a turn with too many commands, which are then not even looked at."""
    if limits.command_batch_size and size > limits.command_batch_size:
        return exceeded("command_batch_size", size, limits.command_batch_size)
    return None


def check_turn(book: RunBook, commands: Sequence[Command]) -> None:
    """Refuse commands that would leave too much open, or record too many events at once."""
    limits = book.settings.limits
    asked = Counter(kind for command in commands if (kind := _KINDS.get(command.type)) is not None)
    if asked:
        held = _open(book)
        for kind, more in asked.items():
            limit = getattr(limits, kind)
            if limit and held[kind] + more > limit:
                raise exceeded(kind, held[kind] + more, limit)
    events = sum(_events(command.facts) for command in commands)
    if limits.history_transaction_size and events > limits.history_transaction_size:
        raise exceeded("history_transaction_size", events, limits.history_transaction_size)


def _open(book: RunBook) -> Counter[str]:
    held: Counter[str] = Counter(pending_activity_count=len(list(book.open_executions())))
    for step in book.open_steps():
        if isinstance(step, ActivityCall):
            held["pending_activity_count"] += 1
        elif isinstance(step, ChildCall):
            held["pending_child_count"] += 1
        elif isinstance(step, Timer):
            held["pending_timer_count"] += 1
    return held


def _events(facts: Any) -> int:
    """Count the events a command records: one, but a whole series for a local call that a worker reports."""
    if not isinstance(facts, ReportedCall):
        return 1
    return 1 + sum(2 + len(attempt.heartbeats) for attempt in facts.attempts)


def check_signals(book: RunBook) -> None:
    """Refuse a signal of a run that has not dealt with as many as it may have waiting."""
    waiting = book.run.signals - book.run.signals_applied
    limit = book.settings.limits.pending_signal_count
    if limit and waiting >= limit:
        raise exceeded("pending_signal_count", waiting + 1, limit, status=409)


def check_updates(book: RunBook) -> None:
    """Refuse an update of a run that has not answered as many as it may have open."""
    limit = book.settings.limits.pending_update_count
    if limit and book.run.open_updates >= limit:
        raise exceeded("pending_update_count", book.run.open_updates + 1, limit, status=409)
