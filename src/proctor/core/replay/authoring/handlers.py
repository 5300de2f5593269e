"""The signal, query, update and validator methods of a workflow class, found once when the class is defined.

Marks on functions become a `Handlers` table here; calling the methods, and what their outcome means, is
`receivers`' and `interaction`'s work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from proctor.errors import UsageError

MESSAGE_STREAM_SIGNAL: Final = "__durable_workflow_message_stream"
"""The signal name that carries message streams; reserved (replay.md §1)."""

_MARKS: Final = {
    "signal": "__proctor_signal__",
    "query": "__proctor_query__",
    "update": "__proctor_update__",
    "validator": "__proctor_update_validator__",
}


@dataclass(frozen=True, slots=True)
class Handlers:
    """Wire name to method name, by kind."""

    signals: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    validators: Mapping[str, str] = field(default_factory=dict)


NO_HANDLERS: Final = Handlers()


def mark(kind: str, name: str, method: Any) -> Any:
    """Mark `method` as the handler of `kind` for the wire name; UsageError for a blank or reserved name."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f'a {kind} needs a name: @workflow.{kind}("..."), not {name!r}')
    if kind == "signal" and name == MESSAGE_STREAM_SIGNAL:
        raise UsageError(f"signal name {name!r} is reserved for message streams: use ctx.message_stream")
    if not callable(method):
        raise UsageError(f"@workflow.{kind} marks a method, not {method!r}")
    setattr(method, _MARKS[kind], name)
    return method


def find_handlers(cls: type[Any]) -> Handlers:
    """Collect the marked public methods of `cls`.

    Raises UsageError for one that is no plain method, and for two methods under one wire name.
    """
    tables: dict[str, dict[str, str]] = {kind: {} for kind in _MARKS}
    for attribute in dir(cls):
        if attribute.startswith("_"):
            continue
        member = inspect.getattr_static(cls, attribute)
        member = getattr(cls, attribute) if isinstance(member, (staticmethod, classmethod)) else member
        for kind, table in tables.items():
            name = getattr(member, _MARKS[kind], None)
            if isinstance(name, str):
                _require_plain(cls, attribute, kind, member)
                if name in table:
                    raise UsageError(
                        f"{cls.__qualname__} has two handlers of {kind} {name!r}: {table[name]} and {attribute}"
                    )
                table[name] = attribute
    _require_updates(cls, tables["validator"], tables["update"])
    return Handlers(tables["signal"], tables["query"], tables["update"], tables["validator"])


def _require_plain(cls: type[Any], attribute: str, kind: str, member: Callable[..., Any]) -> None:
    target = inspect.unwrap(member)
    may_be_async = kind in ("query", "validator")  # they change nothing and are run to their end at once
    if (
        (inspect.iscoroutinefunction(target) and not may_be_async)
        or inspect.isasyncgenfunction(target)
        or inspect.isgeneratorfunction(target)
    ):
        raise UsageError(
            f"{cls.__qualname__}.{attribute} handles a {kind} and must be a plain function: "
            "change `self` there and await the ctx calls in `run`"
        )


def _require_updates(cls: type[Any], validators: Mapping[str, str], updates: Mapping[str, str]) -> None:
    for name, attribute in validators.items():
        if name not in updates:
            raise UsageError(f"{cls.__qualname__}.{attribute} validates update {name!r}, which the class does not have")
