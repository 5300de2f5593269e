"""Proctor: a Durable Workflow worker whose stops are physical, and proven.

Names are loaded on first use: ``from proctor import activity`` inside a child loads neither Trio nor HTTP.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from proctor.version import __version__ as __version__

if TYPE_CHECKING:
    from proctor import activity as activity
    from proctor import workflow as workflow
    from proctor.client import Client as Client
    from proctor.handle import WorkflowHandle as WorkflowHandle
    from proctor.worker import Worker as Worker
    from proctor_supervisor import StopPolicy as StopPolicy
    from proctor_supervisor import SupervisorOptions as SupervisorOptions

_HOME_OF = {
    "Client": "proctor.client",
    "WorkflowHandle": "proctor.handle",
    "Worker": "proctor.worker",
    "StopPolicy": "proctor_supervisor",
    "SupervisorOptions": "proctor_supervisor",
}
_MODULES = ("activity", "workflow")
# What workflow files of the official SDK import beside the modules, so that they run with the import changed.
_WORKFLOW_NAMES = frozenset(
    {
        "ActivityFailed",
        "ActivityRetryPolicy",
        "CancellationContext",
        "CancellationPolicy",
        "ChildWorkflowCancelled",
        "ChildWorkflowFailed",
        "ChildWorkflowRetryPolicy",
        "ChildWorkflowTerminated",
        "ContinueAsNew",
        "DurableOperationCancelled",
        "DurableOperationHandle",
        "MessageStreamMessage",
        "NexusOperationFailed",
        "NexusOperationResult",
        "ParentClosePolicy",
        "Saga",
        "SagaCompensationFailed",
        "SelectionResult",
        "UpdateRejected",
        "WorkflowCancelled",
        "WorkflowStreamAppendItem",
    }
)

__all__ = ["Client", "StopPolicy", "SupervisorOptions", "Worker", "WorkflowHandle", "activity", "workflow"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    try:
        home = "proctor.workflow" if name in _WORKFLOW_NAMES else _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'") from None
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
