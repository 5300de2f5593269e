"""Deterministic replay of sequential workflows: workflow code and a recorded history in, one Decision out.

Pure: no clock, no I/O, no Trio; the same input gives the same Decision. `replay` is called anew, with the whole
refreshed history, after each outcome of a local activity (replay.md §3). Files: `history` reads events, `body` runs
the code, `engine` matches the two, `failures` turns exceptions into commands.
"""

from __future__ import annotations

from proctor.core.replay.context import WorkflowContext
from proctor.core.replay.decision import (
    Commands,
    Decision,
    Interrupted,
    LocalCall,
    ReplayTask,
    WorkflowDefinition,
)
from proctor.core.replay.engine import replay
from proctor.core.replay.offline import task_of_history

__all__ = [
    "Commands",
    "Decision",
    "Interrupted",
    "LocalCall",
    "ReplayTask",
    "WorkflowContext",
    "WorkflowDefinition",
    "replay",
    "task_of_history",
]
