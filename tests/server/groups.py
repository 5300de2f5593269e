"""Commands that are members of lists, as workers author them (commands.md §5, §6)."""

from __future__ import annotations

from typing import Any

TIMER = {"type": "start_timer", "delay_seconds": 30}

_PREFIXES = {
    "activity": "parallel-activities",
    "timer": "parallel-timers",
    "child": "parallel-children",
    "mixed": "parallel-calls",
}


def level(kind: str, base: int, size: int, index: int) -> dict[str, Any]:
    """Give one level of a group."""
    return {
        "parallel_group_id": f"{_PREFIXES[kind]}:{base}:{size}",
        "parallel_group_kind": kind,
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
    }


def member(command: dict[str, Any], *path: dict[str, Any]) -> dict[str, Any]:
    """Give a command its place, from the outermost group to the innermost."""
    return {**command, **path[-1], "parallel_group_path": list(path)}


def flat(*commands: dict[str, Any], base: int = 1, kind: str = "activity") -> list[dict[str, Any]]:
    """Give a list that is not nested."""
    return [member(one, level(kind, base, len(commands), index)) for index, one in enumerate(commands)]


def selected() -> tuple[dict[str, Any]]:
    """Give the place of a timer that is the only member of a selection."""
    entry = {**level("timer", 1, 1, 0), "parallel_group_id": "select-calls:1:1", "parallel_group_mode": "select"}
    names = {"key": "late", "index": 0, "base_sequence": 1, "size": 1, "kind": "timer"}
    return ({**entry, **{f"selection_member_{name}": value for name, value in names.items()}},)
