"""What a workflow can be told and asked, as a registration says it: `workflow_command_contracts` (worker.md §1.1).

Servers refuse what is not declared, and may count arguments. Types are not stated: what an argument means is decided
by the handler, not by the words of another language.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from proctor.core.replay.decision import WorkflowDefinition

_VARIADIC = inspect.Parameter.VAR_POSITIONAL
_NAMED_ONLY = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


def command_contract(definition: WorkflowDefinition) -> dict[str, Any]:
    """Give the contract of one workflow: names of its queries, signals and updates, and how each is called."""
    handlers = definition.handlers
    contract: dict[str, Any] = {}
    for plural, singular, table in (
        ("queries", "query", handlers.queries),
        ("signals", "signal", handlers.signals),
        ("updates", "update", handlers.updates),
    ):
        contract[plural] = sorted(table)
        contract[f"{singular}_contracts"] = _called(definition.cls, table)
    contract["update_validators"] = sorted(handlers.validators)
    return contract


def _called(cls: type[Any], table: Mapping[str, str]) -> list[dict[str, Any]]:
    found = []
    for name, method in sorted(table.items()):
        parameters = _parameters(cls, method)
        if parameters is not None:
            found.append({"name": name, "parameters": parameters})
    return found


def _parameters(cls: type[Any], method: str) -> list[dict[str, Any]] | None:
    """Give the parameters of a handler; None when the wire cannot say how it is called."""
    own = list(inspect.signature(getattr(cls, method)).parameters.values())
    if not isinstance(inspect.getattr_static(cls, method), (staticmethod, classmethod)):
        own = own[1:]  # self
    described = []
    for position, parameter in enumerate(own):
        if parameter.kind in _NAMED_ONLY:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty:
                return None
            continue
        default, has_default = parameter.default, parameter.default is not inspect.Parameter.empty
        if has_default and not _is_json(default):
            return None
        variadic = parameter.kind is _VARIADIC
        described.append(
            {
                "name": parameter.name,
                "position": position,
                "required": not has_default and not variadic,
                "variadic": variadic,
                "default_available": has_default,
                "default": default if has_default else None,
                "type": None,
                "allows_null": True,
            }
        )
    return described


def _is_json(value: object) -> bool:
    """Say whether a default reads back from JSON as itself: what comes instead of it must be the same."""
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.DecodeError):
        return False
