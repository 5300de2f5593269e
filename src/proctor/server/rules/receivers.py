"""Signals: accepted from the control plane into history, whatever the workflow is doing (control-plane.md §6).

A signal that a signal wait takes by its name answers that wait at once. Any other wakes the run when a condition may be
true because of it; a turn that is going on may open such a wait without having seen the signal, so it gets a successor.
"""

from __future__ import annotations

from typing import Any

from proctor.core.external import Payload
from proctor.server.rules import limits, signal_waits
from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import envelope
from proctor.server.rules.rows import LastSignal
from proctor.server.rules.runs import wake
from proctor.server.rules.steps import ConditionWait
from proctor.server.rules.waits import reach_selected


def receive_signal(book: RunBook, *, name: str, arguments: Payload | None, command_id: str) -> None:
    """Record a signal, and wake the run if it waits for it or for a condition."""
    limits.check_signals(book)
    taker = signal_waits.waiting_for(book, name)
    signal_id = book.new_id()
    payload: dict[str, Any] = {
        "workflow_command_id": command_id,
        "signal_id": signal_id,
        "workflow_instance_id": book.run.workflow_id,
        "workflow_run_id": book.run.run_id,
        "signal_name": name,
        "payload_codec": book.run.payload_codec,
    }
    if arguments is not None:
        payload["arguments"] = envelope(arguments)
    if taker is not None:
        payload["signal_wait_id"] = taker.step_id
    event = book.record("SignalReceived", payload, command_id=command_id)
    book.update_run(
        signals=book.run.signals + 1,
        last_receiver=event.sequence,
        last_signal=LastSignal(event_sequence=event.sequence, signal_id=signal_id, name=name),
    )
    woken = taker is not None and signal_waits.take(book, taker, event)
    if taker is None and reach_selected(book):
        return
    task = book.open_task()
    waits = any(isinstance(step, ConditionWait) for step in book.open_steps())
    if woken or waits or (task is not None and task.status == "leased"):
        wake(book, source_kind="signal", source_id=signal_id, command_id=command_id)
