"""The activity of the official worker: a module that the processes of its handlers import by name, and cheaply."""

from __future__ import annotations

import importlib
from typing import Any

_activity: Any = importlib.import_module("durable_workflow.activity")


@_activity.defn(name="bench.noop")  # type: ignore[untyped-decorator]  # of an optional package
def noop(number: int) -> int:
    """Do nothing."""
    return number
