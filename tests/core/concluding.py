"""What workflow code decides on a history, for tests that read like the rule they show."""

from __future__ import annotations

from typing import Any

import pytest

from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, Decision, ReplayTask, replay
from proctor.errors import NonDeterminismError


def conclude(cls: type[Any], history: list[dict[str, Any]], *arguments: Any, **changes: Any) -> Decision:
    """Replay a workflow class on a history; `changes` are fields of the task that are not the usual ones."""
    definition = workflow.definition_of(cls)
    task: dict[str, Any] = {
        "workflow_id": "workflow-1",
        "run_id": "run-1",
        "workflow_type": definition.name,
        "payload_codec": "avro",
        "arguments": codec.envelope(list(arguments)),
        "history": history,
    }
    return replay(definition, ReplayTask(**(task | changes)))


def result(decision: Decision) -> Any:
    """Give what the run completes with, whatever is recorded before."""
    assert isinstance(decision, Commands)
    assert decision.commands[-1]["type"] == "complete_workflow"
    return codec.decode_value(decision.commands[-1]["result"], None)


def refused(cls: type[Any], history: list[dict[str, Any]], *arguments: Any, **changes: Any) -> NonDeterminismError:
    """Give the contradiction between the code and a history, which names both sides."""
    with pytest.raises(NonDeterminismError) as caught:
        conclude(cls, history, *arguments, **changes)
    assert caught.value.expected
    assert caught.value.found
    return caught.value
