"""Signal waits: opened by a command, answered by one signal of their name, or by their timeout (commands.md §2).

A wait takes the oldest signal of its name that no wait has taken, also one that came before it was opened; a signal
goes to the wait that was authored first. `SignalApplied` says which signal answered which wait, in the transaction in
which both are known, so nobody has to conclude it. Recording the signal itself is `receivers`' subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from proctor.core import codec
from proctor.core.instants import format_instant
from proctor.errors import PayloadError
from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import envelope
from proctor.server.rules.resolving import resolved
from proctor.server.rules.rows import Event, Task
from proctor.server.rules.steps import SignalWait


def open_wait(book: RunBook, task: Task, facts: Mapping[str, Any]) -> SignalWait:
    """Open a wait under the next durable number."""
    timeout = facts["timeout_seconds"]
    wait = SignalWait(
        step_id=book.new_id(),
        run_id=book.run.run_id,
        sequence=book.take_sequence(),
        opened_event_sequence=book.run.last_event + 1,
        name=facts["signal_name"],
        timeout_seconds=timeout,
        timer_id=None if timeout is None else book.new_id(),
        fire_at=None if timeout is None else book.now + timedelta(seconds=timeout),
        group=facts["group"],
    )
    book.put(wait)
    told = {} if timeout is None else {"timeout_seconds": timeout}
    book.record("SignalWaitOpened", {**_fields(wait), **told, **wait.group}, task_id=task.task_id)
    if wait.fire_at is not None:
        book.record("TimerScheduled", _timer_fields(wait), task_id=task.task_id)
    return wait


def waiting_for(book: RunBook, name: str) -> SignalWait | None:
    """Give the wait that takes the next signal of a name."""
    waits = (step for step in book.open_steps() if isinstance(step, SignalWait))
    return next((wait for wait in waits if wait.name == name), None)


def take(book: RunBook, wait: SignalWait, signal: Event, *, task_id: str | None = None) -> bool:
    """Answer a wait with a signal; say whether a task is ready because of it."""
    book.update_run(taken_signals={**book.run.taken_signals, wait.name: signal.sequence})
    wait = _closed(book, wait, "applied")
    facts = signal.facts
    payload = {
        "workflow_command_id": signal.workflow_command_id,
        "signal_id": facts["signal_id"],
        **_fields(wait),
        **_value(facts),
        "payload_codec": book.run.payload_codec,
        **wait.group,
    }
    event = book.record("SignalApplied", payload, task_id=task_id, command_id=signal.workflow_command_id)
    _cancel_timeout(book, wait, task_id)
    return bool(resolved(book, wait, event, source_kind="signal"))


def take_early(book: RunBook, task: Task) -> None:
    """Answer the waits that a turn has opened with the signals that were there before them."""
    for signal in book.early_signals:
        wait = waiting_for(book, signal.facts["signal_name"])
        if wait is not None:
            take(book, wait, signal, task_id=task.task_id)
    book.early_signals = []


def time_out(book: RunBook, wait: SignalWait) -> None:
    """Record that the timeout of a wait has passed."""
    wait = _closed(book, wait, "timed_out")
    event = book.record("TimerFired", {**_timer_fields(wait), "fired_at": format_instant(book.now)})
    resolved(book, wait, event, source_kind="signal_timeout")


def abandon(book: RunBook, wait: SignalWait, *, task_id: str | None) -> None:
    """Close a wait that something else has overtaken: a delivered cancellation, or the winner of a selection."""
    _cancel_timeout(book, _closed(book, wait, "cancelled"), task_id)


def _value(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the wait is answered with: the one argument, the list of several, or true for none.

    Arguments that are stored outside, or are no list, are passed on as they are.
    """
    arguments = facts.get("arguments")
    try:
        values = codec.decode_arguments(arguments, facts.get("payload_codec"))
    except PayloadError:
        return {"arguments": arguments}
    value = (values[0] if len(values) == 1 else values) if values else True
    return {"value": envelope(codec.encode(value))}


def _closed(book: RunBook, wait: SignalWait, status: str) -> SignalWait:
    wait = msgspec.structs.replace(wait, status=status, closed_event_sequence=book.run.last_event + 1)
    book.put(wait)
    return wait


def _cancel_timeout(book: RunBook, wait: SignalWait, task_id: str | None) -> None:
    if wait.fire_at is not None:
        payload = {**_timer_fields(wait), "cancelled_at": format_instant(book.now)}
        book.record("TimerCancelled", payload, task_id=task_id)


def _fields(wait: SignalWait) -> dict[str, Any]:
    return {"signal_name": wait.name, "signal_wait_id": wait.step_id, "sequence": wait.sequence}


def _timer_fields(wait: SignalWait) -> dict[str, Any]:
    return {
        "timer_id": wait.timer_id,
        "delay_seconds": wait.timeout_seconds,
        "fire_at": None if wait.fire_at is None else format_instant(wait.fire_at),
        "timer_kind": "signal_timeout",
        **_fields(wait),
        **wait.group,
    }
