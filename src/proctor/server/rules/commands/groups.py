"""Parallel groups: what the commands of a list say of the groups they are in, and whether it agrees (commands.md §5).

A member names its groups from the outermost to the innermost. History repeats that, and replay depends on it, so a
batch whose members disagree is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proctor.server.rules.commands.grammar import Command
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Refusal

_PREFIXES = {
    "activity": "parallel-activities",
    "timer": "parallel-timers",
    "child": "parallel-children",
    "mixed": "parallel-calls",
}
_KINDS = {"schedule_activity": "activity", "start_timer": "timer", "start_child_workflow": "child"}
_MEMBERS_MOST = 1_000
_LEVELS_MOST = 50
_NAMES = ("id", "kind", "base_sequence", "size", "index")
_KEYS = tuple(f"parallel_group_{name}" for name in _NAMES)


def read_group(reader: Fields) -> dict[str, Any]:
    """Read the group fields of a command, ready for its events; empty for a command outside groups."""
    path = reader.body.get("parallel_group_path")
    if path is None and all(reader.body.get(key) is None for key in _KEYS):
        return {}
    if not isinstance(path, list) or not 1 <= len(path) <= _LEVELS_MOST:
        reader.wrong("parallel_group_path", f"must be a list of 1 to {_LEVELS_MOST} groups")
        return {}
    levels = [_read_level(level) for level in path]
    innermost = _read_level(reader.body)
    if None in levels or innermost is None:
        reader.wrong("parallel_group_path", "must hold id, kind, base, size and index of each group, and nothing else")
        return {}
    if levels[-1] != innermost:
        reader.wrong("parallel_group_path", "must end with the group that the command itself names")
        return {}
    return {**innermost, "parallel_group_path": levels}


def _read_level(raw: Any) -> dict[str, Any] | None:
    if not isinstance(raw, Mapping) or raw.get("parallel_group_mode") is not None:
        return None  # selections are not kept here
    identity, kind = raw.get(_KEYS[0]), raw.get(_KEYS[1])
    numbers = [one for one in (raw.get(key) for key in _KEYS[2:]) if isinstance(one, int) and not isinstance(one, bool)]
    if kind not in _PREFIXES or len(numbers) != 3:
        return None
    base, size, index = numbers
    fits = base >= 1 and 1 <= size <= _MEMBERS_MOST and 0 <= index < size
    if not fits or identity != f"{_PREFIXES[kind]}:{base}:{size}":
        return None
    return dict(zip(_KEYS, (identity, kind, base, size, index), strict=True))


def check_groups(commands: Sequence[Command], first: int) -> None:
    """Refuse a batch whose members disagree with each other or with their durable numbers, the first being `first`.

    Raises the 422 refusal `invalid_commands`.
    """
    members: dict[str, list[tuple[int, Command, Mapping[str, Any]]]] = {}
    for number, command in enumerate(commands, start=first):
        for level in _path(command):
            if level["parallel_group_base_sequence"] + level["parallel_group_index"] != number:
                raise _invalid(f"command {number} is not at its place in {level['parallel_group_id']}")
            members.setdefault(level["parallel_group_id"], []).append((number, command, level))
    for identity, found in members.items():
        level = found[0][2]
        base, size = level["parallel_group_base_sequence"], level["parallel_group_size"]
        if [number for number, _, _ in found] != list(range(base, base + size)):
            raise _invalid(f"{identity} does not have its {size} members")
        kind = level["parallel_group_kind"]
        if kind != "mixed" and any(_KINDS.get(command.type) != kind for _, command, _ in found):
            raise _invalid(f"{identity} has a member of another kind")


def _path(command: Command) -> Iterable[Mapping[str, Any]]:
    group: dict[str, Any] = (command.facts.get("group") or {}) if isinstance(command.facts, dict) else {}
    path: list[Mapping[str, Any]] = group.get("parallel_group_path", [])
    return path


def _invalid(text: str) -> Refusal:
    return Refusal(422, "invalid_commands", text)
