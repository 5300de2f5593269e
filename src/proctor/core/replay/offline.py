"""Building a ReplayTask from a saved history alone, for offline replay (replay.md §11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proctor.core.codec import CODEC
from proctor.core.replay.decision import ReplayTask
from proctor.core.replay.recorded.history import read_history


def task_of_history(
    events: Sequence[Mapping[str, Any]],
    *,
    workflow_type: str,
    workflow_id: str | None = None,
    run_id: str | None = None,
) -> ReplayTask:
    """Take start input and identities from the recorded WorkflowStarted, as far as they are not given.

    The input is the first of ``input_envelope``, ``input``, ``arguments`` that is there; none means no arguments.
    Raises HistoryError and PayloadError as `read_history` does.
    """
    started = read_history(events).started or {}
    inputs = (started.get(key) for key in ("input_envelope", "input", "arguments"))
    return ReplayTask(
        workflow_id=workflow_id or _text(started, "workflow_id", "workflow_instance_id"),
        run_id=run_id or _text(started, "workflow_run_id"),
        workflow_type=workflow_type,
        payload_codec=CODEC,
        arguments=next((field for field in inputs if field is not None), None),
        history=events,
    )


def _text(started: Mapping[str, Any], *keys: str) -> str:
    return next((value for key in keys if isinstance(value := started.get(key), str)), "")
