"""Run blocking handlers in supervised child processes, and be sure that they stopped.

    async with open_supervisor(SupervisorOptions(children=4)) as supervisor:
        outcome = await supervisor.run(Task.call("mymodule:crunch", "file.bin"))

A standalone Trio library: it knows attempts and deadlines, nothing of workflows. Names are loaded on first use, so
that the supervisor process and its children, which share this package, never load Trio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor_supervisor.errors import StartRefused as StartRefused
    from proctor_supervisor.errors import StopUnconfirmed as StopUnconfirmed
    from proctor_supervisor.errors import SupervisorClosed as SupervisorClosed
    from proctor_supervisor.errors import SupervisorError as SupervisorError
    from proctor_supervisor.errors import TaskRefused as TaskRefused
    from proctor_supervisor.errors import UnsupportedPlatform as UnsupportedPlatform
    from proctor_supervisor.options import Deadlines as Deadlines
    from proctor_supervisor.options import Limits as Limits
    from proctor_supervisor.options import StopPolicy as StopPolicy
    from proctor_supervisor.options import SupervisorOptions as SupervisorOptions
    from proctor_supervisor.options import Task as Task
    from proctor_supervisor.outcome import CapturedOutput as CapturedOutput
    from proctor_supervisor.outcome import Completed as Completed
    from proctor_supervisor.outcome import Descendant as Descendant
    from proctor_supervisor.outcome import Failed as Failed
    from proctor_supervisor.outcome import FailureInfo as FailureInfo
    from proctor_supervisor.outcome import LadderStep as LadderStep
    from proctor_supervisor.outcome import Outcome as Outcome
    from proctor_supervisor.outcome import ResourceUsage as ResourceUsage
    from proctor_supervisor.outcome import Step as Step
    from proctor_supervisor.outcome import Stopped as Stopped
    from proctor_supervisor.outcome import StopProof as StopProof
    from proctor_supervisor.outcome import StopReason as StopReason
    from proctor_supervisor.owner.control import AttemptControl as AttemptControl
    from proctor_supervisor.owner.events import EventStream as EventStream
    from proctor_supervisor.owner.events import SupervisorEvent as SupervisorEvent
    from proctor_supervisor.owner.streams import Heartbeat as Heartbeat
    from proctor_supervisor.owner.streams import OutputLine as OutputLine
    from proctor_supervisor.owner.supervisor import Supervisor as Supervisor
    from proctor_supervisor.owner.supervisor import open_supervisor as open_supervisor

_HOMES = {
    "errors": (
        "StartRefused", "StopUnconfirmed", "SupervisorClosed", "SupervisorError", "TaskRefused",
        "UnsupportedPlatform",
    ),
    "options": ("Deadlines", "Limits", "StopPolicy", "SupervisorOptions", "Task"),
    "outcome": (
        "CapturedOutput", "Completed", "Descendant", "Failed", "FailureInfo", "LadderStep", "Outcome",
        "ResourceUsage", "Step", "Stopped", "StopProof", "StopReason",
    ),
    "owner.control": ("AttemptControl",),
    "owner.events": ("EventStream", "SupervisorEvent"),
    "owner.streams": ("Heartbeat", "OutputLine"),
    "owner.supervisor": ("Supervisor", "open_supervisor"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - a sorted list of strings is what it wants


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'") from None
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
