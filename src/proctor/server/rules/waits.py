"""Condition waits: opened by a command, answered by what the worker says next, or by their timeout (events.md §7).

Only the worker can evaluate a condition. Its next turn tells: the same wait again means that the condition is still
false; anything else means that it was true. A wait that is authored again after a receiver (a signal, an update) was
delivered to it is recorded as satisfied and opened anew, as the reference server does, but it keeps its deadline: a
signal that changes nothing must not prolong a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.grammar import Command
from proctor.server.rules.resolving import resolved
from proctor.server.rules.rows import Event, Task
from proctor.server.rules.steps import ConditionWait


def open_wait(
    book: RunBook, task: Task, facts: Mapping[str, Any], *, group: dict[str, Any], fire_at: datetime | None = None
) -> ConditionWait:
    """Open a wait under the next durable number; `fire_at` is the deadline it inherits from the wait it continues."""
    timeout = facts["timeout_seconds"]
    if timeout is not None and fire_at is None:
        fire_at = book.now + timedelta(seconds=timeout)
    wait = ConditionWait(
        step_id=book.new_id(),
        run_id=book.run.run_id,
        sequence=book.take_sequence(),
        opened_event_sequence=book.run.last_event + 1,
        key=facts["condition_key"],
        fingerprint=facts["condition_definition_fingerprint"],
        timeout_seconds=timeout,
        timer_id=None if timeout is None else book.new_id(),
        fire_at=fire_at if timeout is not None else None,
        group=group,
    )
    book.put(wait)
    occurrence = {"condition_wait_occurrence_id": facts["condition_wait_occurrence_id"]}
    book.record("ConditionWaitOpened", {**_fields(wait), **_present(occurrence)}, task_id=task.task_id)
    if wait.fire_at is not None:
        book.record("TimerScheduled", _timer_fields(wait, wait.fire_at), task_id=task.task_id)
    return wait


def time_out(book: RunBook, wait: ConditionWait) -> None:
    """Record that the timeout of a wait has passed."""
    if wait.fire_at is None:
        return
    book.record("TimerFired", {**_timer_fields(wait, wait.fire_at), "fired_at": format_instant(book.now)})
    wait = _closed(book, wait, "timed_out")
    event = book.record("ConditionWaitTimedOut", {**_fields(wait), **_present({"timer_id": wait.timer_id})})
    resolved(book, wait, event, source_kind="condition_timeout")


def reach_selected(book: RunBook) -> bool:
    """Satisfy the first open wait that is a member of a selection, because a receiver has arrived; False without one.

    A worker does not say what became of a selected condition, so nothing else can end it but its timeout.
    """
    wait = next((step for step in book.open_steps() if isinstance(step, ConditionWait) and step.group), None)
    if wait is None:
        return False
    wait, event = _satisfied(book, wait, task_id=None)
    resolved(book, wait, event, source_kind="condition")
    return True


def satisfy(book: RunBook, wait: ConditionWait, *, task_id: str) -> ConditionWait:
    """Record that the worker found the condition true."""
    return _satisfied(book, wait, task_id=task_id)[0]


def _satisfied(book: RunBook, wait: ConditionWait, *, task_id: str | None) -> tuple[ConditionWait, Event]:
    wait = _closed(book, wait, "satisfied")
    signal = book.run.last_signal
    cause = {}
    if signal is not None and signal.event_sequence > wait.opened_event_sequence:
        cause = {"workflow_signal_id": signal.signal_id, "signal_name": signal.name}
    payload = {**_fields(wait), **_present({"timer_id": wait.timer_id}), **cause}
    event = book.record("ConditionWaitSatisfied", payload, task_id=task_id)
    _cancel_timeout(book, wait, task_id)
    return wait, event


def abandon(book: RunBook, wait: ConditionWait, *, task_id: str | None) -> ConditionWait:
    """Close a wait that something else has overtaken: a delivered cancellation, or the winner of a selection."""
    wait = _closed(book, wait, "cancelled")
    _cancel_timeout(book, wait, task_id)
    return wait


def first_number(book: RunBook, commands: Sequence[Command]) -> int:
    """Give the durable number that the first of `commands` will take; nothing changes."""
    wait, first = _open_wait(book), _first_numbered(commands)
    repeats = wait is not None and first is not None and _repeats(wait, first)
    return book.run.next_sequence - int(repeats and not _was_reached(book, wait))


def settle(book: RunBook, task: Task, commands: Sequence[Command]) -> tuple[Sequence[Command], datetime | None]:
    """Conclude from a turn what became of the open wait; give the commands left to apply, and a deadline to inherit.

    A wait that is authored again without a receiver in between is the same one, and nothing is recorded for it.
    """
    wait, first = _open_wait(book), _first_numbered(commands)
    if wait is None or first is None or first.type == "fail_workflow":
        return commands, None
    if not _repeats(wait, first):
        satisfy(book, wait, task_id=task.task_id)
        return commands, None
    if not _was_reached(book, wait):
        return [command for command in commands if command is not first], None
    satisfy(book, wait, task_id=task.task_id)
    return commands, wait.fire_at


def _first_numbered(commands: Sequence[Command]) -> Command | None:
    return next((command for command in commands if command.is_numbered), None)


def passed(book: RunBook, task: Task) -> None:
    """Record that the open wait was satisfied: the worker has authored a call behind it."""
    wait = _open_wait(book)
    if wait is not None:
        satisfy(book, wait, task_id=task.task_id)


def _open_wait(book: RunBook) -> ConditionWait | None:
    return next((step for step in book.open_steps() if isinstance(step, ConditionWait) and not step.group), None)


def _repeats(wait: ConditionWait, command: Command) -> bool:
    """Say whether a command authors the open wait again."""
    return command.type == "open_condition_wait" and not command.facts["group"] and _is_same(wait, command.facts)


def _was_reached(book: RunBook, wait: ConditionWait | None) -> bool:
    """Say whether a receiver was delivered to the open wait.

    What arrived during this claim was not seen by its replay; the successor will tell.
    """
    return wait is not None and book.run.last_receiver > wait.opened_event_sequence and not book.run.wake_pending


def _is_same(wait: ConditionWait, facts: Mapping[str, Any]) -> bool:
    """Say whether a wait authored now is logically the open one: nothing contradicts, and something agrees."""
    pairs = (
        (wait.key, facts["condition_key"]),
        (wait.fingerprint, facts["condition_definition_fingerprint"]),
    )
    return wait.timeout_seconds == facts["timeout_seconds"] and all(ours == theirs for ours, theirs in pairs)


def _closed(book: RunBook, wait: ConditionWait, status: str) -> ConditionWait:
    wait = msgspec.structs.replace(wait, status=status, closed_event_sequence=book.run.last_event + 1)
    book.put(wait)
    return wait


def _cancel_timeout(book: RunBook, wait: ConditionWait, task_id: str | None) -> None:
    if wait.fire_at is None:
        return
    payload = {**_timer_fields(wait, wait.fire_at), "cancelled_at": format_instant(book.now)}
    book.record("TimerCancelled", payload, task_id=task_id)


def _fields(wait: ConditionWait) -> dict[str, Any]:
    return {
        "condition_wait_id": wait.step_id,
        "sequence": wait.sequence,
        **_present(
            {
                "condition_key": wait.key,
                "condition_definition_fingerprint": wait.fingerprint,
                "timeout_seconds": wait.timeout_seconds,
            }
        ),
        **wait.group,
    }


def _timer_fields(wait: ConditionWait, fire_at: datetime) -> dict[str, Any]:
    return {
        "timer_id": wait.timer_id,
        "sequence": wait.sequence,
        "delay_seconds": wait.timeout_seconds,
        "fire_at": format_instant(fire_at),
        "timer_kind": "condition_timeout",
        "condition_wait_id": wait.step_id,
        **_present({"condition_key": wait.key, "condition_definition_fingerprint": wait.fingerprint}),
        **wait.group,
    }


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
