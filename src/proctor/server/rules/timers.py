"""Durable timers: started by a command, fired by the clock, cancelled with what waits for them.

A timer is a row with an instant, so it survives a restart; whoever touches the run after that instant fires it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.resolving import resolved
from proctor.server.rules.rows import Task
from proctor.server.rules.steps import Timer


def start_timer(book: RunBook, task: Task, *, delay_seconds: int, group: dict[str, Any]) -> Timer:
    """Start a timer under the next durable number."""
    timer = Timer(
        step_id=book.new_id(),
        run_id=book.run.run_id,
        sequence=book.take_sequence(),
        opened_event_sequence=book.run.last_event + 1,
        delay_seconds=delay_seconds,
        fire_at=book.now + timedelta(seconds=delay_seconds),
        group=group,
    )
    book.put(timer)
    book.record("TimerScheduled", _fields(timer), task_id=task.task_id)
    return timer


def fire(book: RunBook, timer: Timer) -> None:
    """Fire a due timer."""
    timer = msgspec.structs.replace(timer, status="fired", closed_event_sequence=book.run.last_event + 1)
    book.put(timer)
    event = book.record("TimerFired", {**_fields(timer), "fired_at": format_instant(book.now)})
    resolved(book, timer, event, source_kind="timer")


def cancel_timer(book: RunBook, timer: Timer, *, task_id: str | None, command_id: str | None = None) -> Timer:
    """Cancel an open timer; it never fires."""
    timer = msgspec.structs.replace(timer, status="cancelled", closed_event_sequence=book.run.last_event + 1)
    book.put(timer)
    payload = {**_fields(timer), "cancelled_at": format_instant(book.now)}
    book.record("TimerCancelled", payload, task_id=task_id, command_id=command_id)
    return timer


def _fields(timer: Timer) -> dict[str, Any]:
    return {
        "timer_id": timer.step_id,
        "sequence": timer.sequence,
        "delay_seconds": timer.delay_seconds,
        "fire_at": format_instant(timer.fire_at),
        **timer.group,
    }
