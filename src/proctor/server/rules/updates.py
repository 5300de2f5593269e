"""Updates: accepted into history, asked of the workflow code in a task of their own, answered once (events.md §4).

What an update changes becomes durable with `UpdateApplied`, which replays deliver like a signal; a failed one leaves no
such event. The code is woken after an answer when it may wait for what the handler has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proctor.core.external import Payload
from proctor.server.rules import tasks, waits
from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import envelope
from proctor.server.rules.refusal import conflict
from proctor.server.rules.rows import Task, Update
from proctor.server.rules.runs import wake_for_update
from proctor.server.rules.steps import ConditionWait

_DEFAULT_CLASS = "RuntimeError"


def accept(
    book: RunBook, *, update_id: str, name: str, arguments: Payload | None, command_id: str, request_id: str | None
) -> Update:
    """Record an update, and see to a task for it."""
    payload = _fields(book, update_id, name, command_id) | _arguments(book, arguments)
    if request_id is not None:
        payload["request_id"] = request_id
    event = book.record("UpdateAccepted", payload, command_id=command_id)
    update = Update(
        update_id=update_id,
        run_id=book.run.run_id,
        name=name,
        arguments=arguments,
        command_id=command_id,
        request_id=request_id,
        accepted_event_sequence=event.sequence,
        accepted_at=book.now,
    )
    book.put(update)
    wake_for_update(book, book.open_updates()[0])
    return update


def answer(book: RunBook, task: Task, kind: str, facts: Mapping[str, Any]) -> list[str]:
    """Record what the handler of the task's update answered, and give the ids of the tasks that follow."""
    update = book.updates.get(task.update_id or "")
    if update is None or not update.is_open:
        raise conflict("update_not_open", f"update {task.update_id} is answered already", update_id=task.update_id)
    sequence = _sequence(book)
    common = _fields(book, update.update_id, update.name, update.command_id)
    closed = msgspec.structs.replace(update, workflow_sequence=sequence, closed_at=book.now)
    selected = False
    if kind == "complete_update":
        applied = {**common, **_arguments(book, update.arguments), "sequence": sequence}
        event = book.record("UpdateApplied", applied, task_id=task.task_id, command_id=update.command_id)
        book.update_run(last_receiver=event.sequence)
        outcome = {"result": envelope(facts["result"]), "payload_codec": book.run.payload_codec}
        closed = msgspec.structs.replace(closed, status="completed", result=facts["result"])
    else:
        outcome = _failure(book, facts)
        closed = msgspec.structs.replace(closed, status="failed", failure=outcome)
    book.record(
        "UpdateCompleted",
        {**common, "sequence": sequence, **outcome},
        task_id=task.task_id,
        command_id=update.command_id,
    )
    book.put(closed)
    if kind == "complete_update":
        selected = waits.reach_selected(book)
    may_react = any(isinstance(step, ConditionWait) for step in book.open_steps())
    stuck = not book.awaits_something and not any(True for _ in book.open_executions())
    return tasks.finish_claim(book, task, again=selected or may_react or stuck)


def _fields(book: RunBook, update_id: str, name: str, command_id: str) -> dict[str, Any]:
    return {
        "workflow_command_id": command_id,
        "update_id": update_id,
        "workflow_instance_id": book.run.workflow_id,
        "workflow_run_id": book.run.run_id,
        "update_name": name,
    }


def _arguments(book: RunBook, arguments: Payload | None) -> dict[str, Any]:
    codec = {"payload_codec": book.run.payload_codec}
    return codec if arguments is None else codec | {"arguments": envelope(arguments)}


def _sequence(book: RunBook) -> int:
    """Give the durable number that an answer is recorded with: the open condition wait's, or the next one."""
    wait = next((step for step in book.open_steps() if isinstance(step, ConditionWait)), None)
    return book.run.next_sequence if wait is None else wait.sequence


def _failure(book: RunBook, facts: Mapping[str, Any]) -> dict[str, Any]:
    kind, name = facts["exception_type"], facts["exception_class"] or facts["exception_type"] or _DEFAULT_CLASS
    return {
        "failure_id": book.new_id(),
        "failure_category": "application",
        "non_retryable": facts["non_retryable"],
        "exception_type": kind,
        "exception_class": name,
        "message": facts["message"],
        "code": 0,
        "exception": {"class": name, "type": kind, "message": facts["message"], "code": 0},
    }
