"""Deterministic replay: workflow code and a recorded history in, one Decision out.

Pure: no clock, no I/O, no Trio; the same input gives the same Decision. `replay` is called anew, with the whole
refreshed history, whenever history has grown (replay.md §3). How the files divide it:

* what code authors: `context` builds `commands` (checked by `options`, placed in groups by `placing`), `selection`,
  `streams`, `saga`, `service`; `wire_form` spells them;
* what history holds: `history` reads events into `steps`, with `waits` and `cancelling` for their subjects;
* matching: `cursor` is the place in history, `matching` the comparison, `body` runs the code, `engine` drives;
  `conditions`, `groups`, `selecting`, `local`, `versions`, `receivers` and `boundaries` answer their kinds;
* what comes out: `decision`, with `failures` and `reporting` for exceptions; `interaction` answers queries and updates.
"""

from __future__ import annotations

from proctor.core.replay.context import WorkflowContext
from proctor.core.replay.decision import (
    Boundary,
    Cleanup,
    Commands,
    Decision,
    Interrupted,
    LocalCall,
    LocalGroup,
    ReplayTask,
    StreamCursor,
    Unworkable,
    WorkflowDefinition,
)
from proctor.core.replay.engine import replay
from proctor.core.replay.interaction import QueryFailed, UpdateRejected, answer_query, answer_update, validate_update
from proctor.core.replay.offline import task_of_history

__all__ = [
    "Boundary",
    "Cleanup",
    "Commands",
    "Decision",
    "Interrupted",
    "LocalCall",
    "LocalGroup",
    "QueryFailed",
    "ReplayTask",
    "StreamCursor",
    "Unworkable",
    "UpdateRejected",
    "WorkflowContext",
    "WorkflowDefinition",
    "answer_query",
    "answer_update",
    "replay",
    "task_of_history",
    "validate_update",
]
