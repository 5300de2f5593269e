"""Groups as data: the leaves of nested lists, the membership each leaf carries, and results in the same nesting.

Pure arithmetic of commands.md §5; answering groups is `groups`' and `selecting`'s work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from proctor.core.replay.authoring.commands import (
    Activity,
    ChildWorkflow,
    LocalActivity,
    Operation,
    Timer,
    WaitCondition,
)

MAX_MEMBERS: Final = 1000
"""Most leaves of one group (commands.md §5)."""

MAX_DEPTH: Final = 100
"""Deepest nesting of lists; each leaf carries an entry for every one of them."""

_PREFIXES: Final = {
    "activity": "parallel-activities",
    "timer": "parallel-timers",
    "child": "parallel-children",
    "condition": "parallel-conditions",
    "mixed": "parallel-calls",
}
_KINDS: Final[dict[type[Any], str]] = {
    Activity: "activity",
    LocalActivity: "activity",
    Timer: "timer",
    ChildWorkflow: "child",
    WaitCondition: "condition",
}

Path: TypeAlias = "tuple[dict[str, Any], ...]"


@dataclass(frozen=True, slots=True)
class Placed:
    """A leaf of a group with its membership, outermost entry first."""

    command: Operation[Any]
    path: Path


def kind_of(member: object) -> str:
    """Give the group kind of one leaf; TypeError for what cannot be a member."""
    kind = _KINDS.get(type(member))
    if kind is None:
        raise TypeError(
            "a group holds activities, timers, child workflows, conditions and lists of them, "
            f"not {type(member).__qualname__}"
        )
    return kind


def leaves_of(members: list[Any]) -> list[Operation[Any]]:
    """Give the leaves in authored order; TypeError or ValueError for a list that is no group."""
    leaves: list[Operation[Any]] = []
    _collect(members, leaves)
    return leaves


def _collect(members: list[Any], leaves: list[Operation[Any]], depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"the lists of a group are nested at most {MAX_DEPTH} deep")
    for member in members:
        if isinstance(member, list):
            if not member:
                raise ValueError("a list inside a group has at least one member")
            _collect(member, leaves, depth + 1)
        else:
            kind_of(member)
            leaves.append(member)
            if len(leaves) > MAX_MEMBERS:
                raise ValueError(f"a group has at most {MAX_MEMBERS} members")


def group_kind(leaves: Iterable[Operation[Any]]) -> str:
    """Give the kind all leaves share, or ``mixed``."""
    kinds = {kind_of(leaf) for leaf in leaves}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def place(members: list[Any], base: int, outer: Path = ()) -> list[Placed]:
    """Give each leaf its membership, when the first one has the durable number `base`."""
    leaves = leaves_of(members)
    kind = group_kind(leaves)
    size = len(leaves)
    placed: list[Placed] = []
    for member in members:
        index = len(placed)
        if isinstance(member, list):
            # An inner list sees the entry of its own first leaf; each leaf then counts on from it.
            placed += [
                Placed(leaf.command, (*outer, _entry(kind, base, size, index + offset), *leaf.path))
                for offset, leaf in enumerate(place(member, base + index))
            ]
        else:
            placed.append(Placed(member, (*outer, _entry(kind, base, size, index))))
    return placed


def _entry(kind: str, base: int, size: int, index: int) -> dict[str, Any]:
    return {
        "parallel_group_id": f"{_PREFIXES[kind]}:{base}:{size}",
        "parallel_group_kind": kind,
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
    }


def shaped(members: list[Any], values: Iterable[Any]) -> list[Any]:
    """Give the values of the leaves in the nesting of `members`."""
    return _shaped(members, iter(values))


def _shaped(members: list[Any], values: Iterator[Any]) -> list[Any]:
    return [_shaped(member, values) if isinstance(member, list) else next(values) for member in members]
