"""What would keep a handler from running well in a child: its signature, its argument types, what it captured.

Owns the judgement of one function object, in whichever process that is; leaves sending it there to
`proctor.registering`. Children load this, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import queue
import re
import socket
import subprocess
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_WIRE_TYPES: Final = (type(None), bool, int, float, str, bytes, list, dict)
_LOCKS: Final = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Semaphore,
    threading.Event,
    threading.Barrier,
)
_CONNECTION: Final = re.compile(r"(Connection|ConnectionPool|Session|Client|PoolManager|Engine|Channel)$", re.ASCII)
_MOST_CAPTURES: Final = 1000
_DEEPEST_CONTAINER: Final = 3
_MAKE_INSIDE: Final = "make it inside the handler, or pass what it is made from (a name, a path, a URL) as an argument"


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason to refuse a handler: the thing at fault, why it does not work, and what to do instead."""

    thing: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Capture:
    """A value that a function holds besides its arguments, and where it holds it."""

    where: str
    value: object


def inspect_in_child(function: Callable[..., Any]) -> dict[str, Any]:
    """Judge `function` inside the child it has just been loaded in. The answer is plain JSON."""
    return {
        "problems": [[found.thing, found.why, found.remedy] for found in judge(function)],
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
    }


def judge(function: Callable[..., Any]) -> list[Problem]:
    """Give every problem of `function`: its signature first, then what it captured."""
    return [*_signature_problems(function), *captured(function)]


def captured(function: Callable[..., Any]) -> list[Problem]:
    """Give what `function` holds in its closure, defaults, bound object or partial that no child can share."""
    found = []
    for capture in captures(function):
        kind = _unshareable(capture.value)
        if kind is not None:
            why = f"every attempt runs in a process of its own, where {kind} of the worker means nothing or does harm"
            found.append(Problem(f"{kind} in {capture.where}", why, _MAKE_INSIDE))
    return found


def captures(function: object) -> Iterator[Capture]:
    """Give what `function` holds: closure, defaults, partial arguments, its bound object; containers are opened."""
    seen: set[int] = set()
    pending: list[tuple[str, object, int]] = list(_held_by(function, ""))
    while pending and len(seen) < _MOST_CAPTURES:
        where, value, depth = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield Capture(where, value)
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            pending.extend(_held_by(value, f" (held by {where})"))
        elif depth < _DEEPEST_CONTAINER:
            pending.extend((where, item, depth + 1) for item in _items(value))


def referenced_globals(function: object) -> Iterator[Capture]:
    """Give the module variables that a function names; they travel with it when the function itself must travel."""
    plain = inspect.unwrap(function) if callable(function) else function
    if isinstance(plain, types.FunctionType):
        for name in plain.__code__.co_names:
            if name in plain.__globals__:
                yield Capture(f"global variable {name!r}", plain.__globals__[name])


def _held_by(function: object, suffix: str) -> Iterator[tuple[str, object, int]]:
    if isinstance(function, functools.partial):
        for value in (*function.args, *function.keywords.values()):
            yield f"an argument of its functools.partial{suffix}", value, 0
        yield from _held_by(function.func, suffix)
        return
    if isinstance(function, types.MethodType):
        owner = function.__self__
        for name, value in _attributes(owner).items():
            yield f"attribute {name!r} of its {type(owner).__name__}{suffix}", value, 0
        yield from _held_by(function.__func__, suffix)
        return
    if not isinstance(function, types.FunctionType):
        for name, value in _attributes(function).items() if not isinstance(function, type) else ():
            yield f"attribute {name!r} of its {type(function).__name__}{suffix}", value, 0
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            yield f"variable {name!r} of its closure{suffix}", cell.cell_contents, 0
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f"the default of parameter {name!r}{suffix}", value, 0
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"the default of parameter {name!r}{suffix}", value, 0


def _attributes(owner: object) -> Mapping[str, object]:
    held = getattr(owner, "__dict__", None)
    return held if isinstance(held, dict) else {}


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def _unshareable(value: object) -> str | None:
    """Name what kind of thing `value` is when it cannot be used in another process; None when it can."""
    kind = type(value)
    if isinstance(value, socket.socket):
        return "an open socket" if value.fileno() != -1 else None
    if isinstance(value, _LOCKS) or kind.__module__ == "multiprocessing.synchronize":
        return f"a lock ({kind.__name__})"
    if isinstance(value, queue.Queue | queue.SimpleQueue) or kind.__module__ == "multiprocessing.queues":
        return f"a queue ({kind.__name__})"
    if isinstance(value, threading.Thread):
        return "a thread"
    if isinstance(value, subprocess.Popen):
        return "a running process"
    if isinstance(value, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        return f"a {kind.__name__}"
    if isinstance(value, io.IOBase):
        return f"an open file ({kind.__name__})" if _is_open_file(value) else None
    names = [cls.__name__ for cls in kind.__mro__]
    if "Executor" in names:
        return f"a pool ({kind.__name__})"
    if any(cls.__module__.partition(".")[0] in ("trio", "asyncio") for cls in kind.__mro__):
        return f"a {kind.__module__.partition('.')[0]} object ({kind.__name__})"
    if _has(kind, "cursor", "commit", "rollback"):
        return f"a database connection ({kind.__module__}.{kind.__name__})"
    if _has(kind, "execute", "fetchone"):
        return f"a database cursor ({kind.__module__}.{kind.__name__})"
    if _has(kind, "close") and any(_CONNECTION.search(name) for name in names):
        return f"a connection ({kind.__module__}.{kind.__name__})"
    return None


def _has(kind: type, *names: str) -> bool:
    return all(callable(getattr(kind, name, None)) for name in names)


def _is_open_file(value: io.IOBase) -> bool:
    try:
        return value.fileno() > 2  # the standard streams are every process's own
    except (OSError, ValueError):
        return False


def _signature_problems(function: Callable[..., Any]) -> list[Problem]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return [
            Problem(
                "a signature that Python cannot tell",
                "so nobody can know which arguments it takes",
                "wrap it in a function of your own (`def handler(path): ...`) and register that",
            )
        ]
    annotations = _annotations(function)
    found = []
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            found.append(
                Problem(
                    f"the keyword-only parameter {name!r} without a default",
                    "activity arguments are a list, so it can never get a value",
                    "make it positional, or give it a default",
                )
            )
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            annotation = annotations.get(name, parameter.annotation)
            if annotation is not parameter.empty and not _can_arrive(annotation):
                found.append(
                    Problem(
                        f"parameter {name!r} of type {_shown(annotation)}",
                        "that type has no wire form: arguments are None, bool, int, float, str, bytes, list and dict",
                        "take one of those and build the object inside the handler",
                    )
                )
    return found


def _annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - hints are foreign code; names that cannot be resolved say nothing
        return {}


def _can_arrive(annotation: Any) -> bool:
    """Tell whether a value of this type may come out of the codec; what cannot be judged may."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_can_arrive(option) for option in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _can_arrive(typing.get_args(annotation)[0])
    kind = origin if origin is not None else annotation
    if kind is Any or not isinstance(kind, type):
        return True
    for wire in _WIRE_TYPES:
        try:
            if issubclass(wire, kind) or issubclass(kind, wire):
                return True
        except TypeError:  # a protocol that says nothing at run time
            return True
    return False


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__qualname__ if annotation.__module__ == "builtins" else _dotted(annotation)
    return str(annotation)


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
