"""Importing the modules named on the command line, and finding what they register."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from proctor import activity, workflow
from proctor.errors import UsageError


@dataclass(frozen=True, slots=True)
class Registered:
    """The decorated workflows and activities of some modules, in the order found."""

    workflows: tuple[type[Any], ...]
    activities: tuple[Callable[..., Any], ...]


def load(modules: Sequence[str]) -> Registered:
    """Import `modules` (the current folder comes first) and collect their definitions.

    Raises UsageError for a module that cannot be imported, or that registers nothing.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    workflows: dict[int, type[Any]] = {}
    activities: dict[int, Callable[..., Any]] = {}
    for name in modules:
        found = 0
        for value in list(vars(_import(name)).values()):
            if _is(workflow.definition_of, value):
                workflows[id(value)] = value
                found += 1
            elif _is(activity.definition_of, value):
                activities[id(value)] = value
                found += 1
        if not found:
            raise UsageError(
                f"module '{name}' registers nothing: no @workflow.defn class and no @activity.defn function is in it. "
                f"Name the module that holds them."
            )
    return Registered(tuple(workflows.values()), tuple(activities.values()))


def _import(name: str) -> Any:
    if name.endswith(".py") or os.sep in name:
        raise UsageError(f"'{name}' is a path; give the module's name, such as '{_as_module(name)}'")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise UsageError(
                f"there is no module '{name}' in {os.getcwd()} or on the import path; run the command from the folder "
                f"that holds it, or install the package"
            ) from exc
        raise UsageError(f"module '{name}' cannot be imported: it needs '{exc.name}', which is not installed") from exc
    except (Exception, SystemExit) as exc:
        last = traceback.extract_tb(exc.__traceback__)[-1]
        raise UsageError(
            f"module '{name}' cannot be imported: {type(exc).__name__}: {exc} ({last.filename}, line {last.lineno}). "
            f"Mend the module; nothing was registered."
        ) from exc


def _as_module(path: str) -> str:
    return path.removesuffix(".py").strip("./").replace(os.sep, ".") or "mymodule"


def _is(definition_of: Callable[[Any], Any], value: object) -> bool:
    try:
        definition_of(value)
    except (TypeError, UsageError):
        return False
    return True
