"""Finding the handler in the child, and calling it in the main thread.

Owns the two ways a handler travels (by import path, by cloudpickle) and how an ``async def`` handler is run.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Unloadable(Exception):
    """The handler or its codec cannot be found in the child; the text says which and why."""


def load(path: str, pickled: bytes) -> Callable[..., Any]:
    """Give the handler named ``module:qualname``, or the one inside `pickled` when that is not empty.

    Raises Unloadable.
    """
    if not pickled:
        handler = resolve(path)
    else:
        import pickle

        try:
            # Owner to child only, and made by the owner itself: the one direction in which pickles travel.
            handler = pickle.loads(pickled)  # noqa: S301
        except Exception as exc:
            raise Unloadable(f"handler '{path}' cannot be unpickled in the child: {exc!r}") from exc
    if not callable(handler):
        raise Unloadable(f"handler '{path}' is a {type(handler).__name__}, which cannot be called")
    return handler  # type: ignore[no-any-return]


def resolve(path: str) -> Any:
    """Import ``module:qualname`` and give what it names. Raises Unloadable."""
    module_name, separator, qualname = path.partition(":")
    if not separator or not module_name or not qualname:
        raise Unloadable(f"'{path}' is not of the form module:qualname")
    try:
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    except Exception as exc:
        raise Unloadable(f"module '{module_name}' cannot be imported in the child: {exc!r}") from exc
    for name in qualname.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as exc:
            raise Unloadable(f"module '{module_name}' has no '{qualname}'") from exc
    return found


def call(handler: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call `handler`; one that gives a coroutine is run under Trio until it ends."""
    result = handler(*args, **kwargs)
    if isinstance(result, types.CoroutineType):
        from proctor_supervisor.child import asynchronous

        return asynchronous.run(result)
    return result
