"""Deterministic replay: workflow code and a recorded history in, one Decision out.

Pure: no clock, no I/O, no Trio; the same input gives the same Decision. `replay` is called anew, with the whole
refreshed history, whenever history has grown (replay.md §3). How it is divided:

* `authoring`: what workflow code is written with (the `ctx`, the commands, their form on the wire);
* `recorded`: what history holds (hostile events in, checked steps out);
* `answering`: how each kind of command is answered from history, over the state of one replay;
* here: `engine` drives the code (`body`) from answer to answer, `decision` is what comes out, `failures` and
  `reporting` are exceptions on their way in and out, `interaction` answers queries and updates.
"""

from __future__ import annotations

from proctor.core.replay.authoring.context import WorkflowContext
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
