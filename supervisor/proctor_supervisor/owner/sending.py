"""How a task becomes one frame: the handler's name or pickle, the context, the payload, all bounded.

A handler with an import path travels as ``module:qualname``. Any other callable is pickled with cloudpickle; that
goes from owner to child only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from proctor_supervisor import frames
from proctor_supervisor.errors import TaskRefused
from proctor_supervisor.options import Deadlines, Limits, StopPolicy, Task


def name_task(task: Task, limit: int) -> tuple[str, bytes]:
    """Give the path of the task's handler, and its pickle where it travels as one.

    Raises TaskRefused when it cannot travel, or when the task is larger than `limit` bytes: before anything is sent.
    """
    _check(task)
    path, pickled = _name(task.handler)
    size = len(pickled) + len(task.context) + len(task.payload)
    if size > limit:
        raise TaskRefused(
            f"the task of handler '{path}' needs {size} bytes, over the limit of {limit} bytes "
            f"(SupervisorOptions.max_payload_bytes); pass the name of a file instead of its content"
        )
    return path, pickled


def pack_task(serial: int, task: Task, path: str, pickled: bytes, limits: Limits) -> bytes:
    """Give the body of the task frame of attempt number `serial`."""
    return frames.TaskBody(
        serial,
        limits.address_space_bytes or 0,
        limits.cpu_seconds or 0,
        limits.open_files or 0,
        path,
        task.codec,
        task.attempt_id,
        pickled,
        task.context,
        task.payload,
    ).pack()


def _check(task: Task) -> None:
    """Refuse a task with values that are none, before they break something farther on."""
    if not isinstance(task, Task):
        raise TaskRefused(f"what is run is a Task, not a {type(task).__name__}; see Task.call")
    if (
        isinstance(task.payload, bytes)
        and isinstance(task.context, bytes)
        and isinstance(task.deadlines, Deadlines)
        and isinstance(task.stop, StopPolicy | None)
        and isinstance(task.limits, Limits | None)
        and task.descendants in ("kill", "keep")
        and type(task.codec) is type(task.attempt_id) is str
        and len(task.codec) + len(task.attempt_id) <= _NAME_MOST
        and (task.codec + task.attempt_id).isprintable()
        and (not isinstance(task.handler, str) or (task.handler.isprintable() and len(task.handler) <= _NAME_MOST))
    ):
        return
    for name, kind in _FIELDS.items():
        value = getattr(task, name)
        if not isinstance(value, kind):
            raise TaskRefused(f"Task.{name} is {kind.__name__}, not {type(value).__name__}")
    for name, kind in (("stop", StopPolicy), ("limits", Limits)):
        if not isinstance(getattr(task, name), kind | None):
            raise TaskRefused(f"Task.{name} is {kind.__name__} or None, not {type(getattr(task, name)).__name__}")
    if task.descendants not in ("kill", "keep"):
        raise TaskRefused(f"Task.descendants is 'kill' or 'keep', not {task.descendants!r}")
    for name in ("handler", "codec", "attempt_id"):
        text = getattr(task, name)
        if isinstance(text, str) and not text.isprintable():
            raise TaskRefused(f"Task.{name} {text[:_NAME_MOST]!r} holds characters that are no text")
    raise TaskRefused(f"the names in a task, handler, codec and attempt_id, have at most {_NAME_MOST} characters")


_NAME_MOST = 10_000
"""Most characters of a handler's name, and of codec and attempt id together: a task frame has room for these."""
_FIELDS = {"payload": bytes, "codec": str, "context": bytes, "attempt_id": str, "deadlines": Deadlines}


def import_path(handler: Callable[..., Any]) -> str | None:
    """Give ``module:qualname`` when importing that gives this very object in another process, else None."""
    module_name = getattr(handler, "__module__", None)
    qualname = getattr(handler, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(qualname, str) or module_name == "__main__":
        return None
    if len(module_name) + len(qualname) >= _NAME_MOST or not (module_name + qualname).isprintable():
        return None
    found: Any = sys.modules.get(module_name)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return f"{module_name}:{qualname}" if found is handler else None


def _name(handler: str | Callable[..., Any]) -> tuple[str, bytes]:
    if isinstance(handler, str):
        module_name, _, qualname = handler.partition(":")
        if not module_name or not qualname:
            raise TaskRefused(f"handler '{handler}' is not of the form module:qualname")
        return handler, b""
    if not callable(handler):
        raise TaskRefused(f"a handler is a callable or 'module:qualname', not a {type(handler).__name__}")
    path = import_path(handler)
    if path is not None:
        return path, b""
    name = getattr(handler, "__qualname__", None)
    if not isinstance(name, str) or not name.isprintable() or len(name) > _NAME_MOST:
        name = type(handler).__name__  # an object that answers for any attribute gives what is no name
    try:
        return name, cloudpickle.dumps(handler)
    except Exception as exc:
        raise TaskRefused(
            f"handler '{name}' cannot travel to a child: {exc}. Make it a function of an importable module, or "
            f"open what it captures (sockets, locks, connections) inside the handler."
        ) from exc
