"""Commands that end a run: its result, its failure, or its successor (commands.md §2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.chains import continue_as_new
from proctor.server.rules.commands import relatives
from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.rows import Task
from proctor.server.rules.runs import close, close_as_cancelled


def _complete_workflow(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    return {"output": reader.payload("result", limit=grammar.limit), "payload_codec": "avro"}


def _fail_workflow(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "message": reader.text("message", limit=grammar.limit).strip(),
        "exception_type": reader.optional_text("exception_type"),
        "exception_class": reader.optional_text("exception_class", limit=1_024),
        "exception": reader.optional_object("exception"),
        "non_retryable": reader.flag("non_retryable"),
        "failure_category": "application",
        "failed_step_sequence": reader.optional_integer("failed_step_sequence", low=1),
    }
    execution = reader.optional_text("failed_activity_execution_id")
    if (execution is None) != (facts["failed_step_sequence"] is None):
        reader.wrong("failed_step_sequence", "needs failed_activity_execution_id, and the reverse")
    if execution is not None:
        facts |= {"failed_step_kind": "activity", "source_kind": "activity", "source_id": execution}
    return facts


READERS = {
    "complete_workflow": _complete_workflow,
    "fail_workflow": _fail_workflow,
    "continue_as_new": relatives.continue_as_new,
}


def close_run(book: RunBook, task: Task, kind: str, facts: Mapping[str, Any]) -> None:
    """Close the run on its terminal command.

    After a delivered cancellation any terminal command ends the run as cancelled (cancellation.md §5).
    """
    cancellation = book.run.cancellation
    if cancellation is not None and cancellation.delivery is not None:
        close_as_cancelled(book, task_id=task.task_id)
    elif kind == "continue_as_new":
        continue_as_new(book, task, facts)
    elif kind == "complete_workflow":
        output = envelope(facts["output"])
        book.output = facts["output"]
        close(
            book,
            status="completed",
            reason="completed",
            event_type="WorkflowCompleted",
            payload={**facts, "output": output},
            task_id=task.task_id,
        )
    else:
        payload = {name: value for name, value in facts.items() if value is not None}
        close(
            book,
            status="failed",
            reason="failed",
            event_type="WorkflowFailed",
            payload={"failure_id": book.new_id(), **payload},
            task_id=task.task_id,
        )
