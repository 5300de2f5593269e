"""Groups: what the commands of a list or a selection say of the groups they are in, and whether it agrees.

A member names its groups from the outermost to the innermost (commands.md §5, §6). History repeats that, and replay
depends on it, so a batch whose members disagree is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.grammar import Command
from proctor.server.rules.fields import LARGEST, Fields
from proctor.server.rules.refusal import Refusal

_PREFIXES = {
    "activity": "parallel-activities",
    "timer": "parallel-timers",
    "child": "parallel-children",
    "condition": "parallel-conditions",
    "mixed": "parallel-calls",
}
# What a list of nothing but signal waits is called is not known, so only a selection is of that kind.
_SELECTED = dict.fromkeys((*_PREFIXES, "signal"), "select-calls")
LOCAL_MEMBER = "prepare_local_activity"
"""The command type of a local activity in a list; only a checkpoint of the whole list may hold it."""

_KINDS = {
    LOCAL_MEMBER: "activity",
    "schedule_activity": "activity",
    "start_timer": "timer",
    "start_child_workflow": "child",
    "open_condition_wait": "condition",
    "open_signal_wait": "signal",
}
_MEMBER_KINDS = ("activity", "child", "timer", "condition", "signal", "group")
_MEMBERS_MOST = 1_000
_LEVELS_MOST = 50
_NAMES = ("id", "kind", "base_sequence", "size", "index")
_KEYS = tuple(f"parallel_group_{name}" for name in _NAMES)
_SELECTION_KEYS = tuple(f"selection_member_{name}" for name in ("key", "index", "base_sequence", "size", "kind"))


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
    if any(level is not None and "parallel_group_mode" in level for level in levels[1:]):
        reader.wrong("parallel_group_path", "can name a selection only as its outermost group")
        return {}
    return {**innermost, "parallel_group_path": levels}


def _read_level(raw: Any) -> dict[str, Any] | None:
    if not isinstance(raw, Mapping):
        return None
    identity, kind = raw.get(_KEYS[0]), raw.get(_KEYS[1])
    selected = raw.get("parallel_group_mode") == "select"
    prefix = (_SELECTED if selected else _PREFIXES).get(kind) if isinstance(kind, str) else None
    if prefix is None or not all(_is_integer(raw.get(key)) for key in _KEYS[2:]):
        return None
    base, size, index = (int(raw[key]) for key in _KEYS[2:])
    fits = base >= 1 and 1 <= size <= _MEMBERS_MOST and 0 <= index < size
    if not fits or identity != f"{prefix}:{base}:{size}":
        return None
    level = dict(zip(_KEYS, (identity, kind, base, size, index), strict=True))
    if not selected:
        return None if raw.get("parallel_group_mode") is not None else level
    member = _read_member(raw)
    return None if member is None else {**level, "parallel_group_mode": "select", **member}


def _read_member(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    member: dict[str, Any] = {key: raw.get(key) for key in _SELECTION_KEYS}
    key, index, base, size, kind = member.values()
    named = (isinstance(key, str) and key != "") or (_is_integer(key) and key >= 0)
    if not named or not all(map(_is_integer, (index, base, size))) or kind not in _MEMBER_KINDS:
        return None
    return member if index >= 0 and base >= 1 and 1 <= size <= _MEMBERS_MOST else None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def without_recorded(book: RunBook, commands: Sequence[Command]) -> list[Command]:
    """Leave out a list that is recorded already: a worker authors it again as long as it is not complete.

    Raises the 422 refusal `invalid_commands` when it is not the same list. The book must hold the rows at its numbers.
    """
    kept = list(commands)
    for position, command in enumerate(commands):
        level = next(iter(_path(command)), None)
        if level is None or level["parallel_group_base_sequence"] >= book.run.next_sequence:
            continue
        base, size = level["parallel_group_base_sequence"], level["parallel_group_size"]
        members = commands[position : position + size]
        for number, member in enumerate(members, start=base):
            row = book.row_at(number)
            if row is None or not _path(member) or row.group.get("parallel_group_path") != list(_path(member)):
                raise _invalid(f"command {number} of {level['parallel_group_id']} is recorded as something else")
        if len(members) != size:
            raise _invalid(f"{level['parallel_group_id']} does not have its {size} members")
        del kept[position : position + size]
        break
    return kept


def numbers_of_first_group(commands: Sequence[Command]) -> tuple[int, int]:
    """Give the first durable number and the size of the first list of a batch; (0, 1) without a list."""
    for command in commands:
        for level in _path(command):
            return level["parallel_group_base_sequence"], level["parallel_group_size"]
    return 0, 1


def check_groups(commands: Sequence[Command], first: int) -> None:
    """Refuse a batch whose members disagree with each other or with their durable numbers, the first being `first`.

    Raises the 422 refusal `invalid_commands`.
    """
    members: dict[str, list[tuple[int, Command, Mapping[str, Any]]]] = {}
    for number, command in enumerate((one for one in commands if one.is_numbered), start=first):
        path = list(_path(command))
        if command.type == "open_condition_wait" and path and "parallel_group_mode" not in path[0]:
            raise _invalid(f"command {number} is a condition in a list; only a selection holds conditions")
        for level in path:
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
        if "parallel_group_mode" in level:
            _check_selection(identity, found)


def _check_selection(identity: str, found: Sequence[tuple[int, Command, Mapping[str, Any]]]) -> None:
    """Refuse a selection whose members overlap, leave gaps, share a key, or are not of the kind they name."""
    seen: list[dict[str, Any]] = []
    for number, command, level in found:
        member = {key: level[key] for key in _SELECTION_KEYS}
        if not seen or seen[-1] != member:
            follows = number if not seen else _end(seen[-1])
            if (member["selection_member_index"], member["selection_member_base_sequence"]) != (len(seen), follows):
                raise _invalid(f"command {number} is not at its place among the members of {identity}")
            seen.append(member)
        if not seen[-1]["selection_member_base_sequence"] <= number < _end(seen[-1]):
            raise _invalid(f"command {number} lies outside its member of {identity}")
        if not _has_kind(command, member):
            raise _invalid(f"command {number} is not the {member['selection_member_kind']} that {identity} names")
    if found[-1][0] + 1 != _end(seen[-1]):
        raise _invalid(f"the last member of {identity} is not complete")
    keys = [(type(member["selection_member_key"]), member["selection_member_key"]) for member in seen]
    if len(set(keys)) != len(keys):
        raise _invalid(f"{identity} has two members of one key")


def _end(member: Mapping[str, Any]) -> int:
    return int(member["selection_member_base_sequence"] + member["selection_member_size"])


def _has_kind(command: Command, member: Mapping[str, Any]) -> bool:
    path = list(_path(command))
    if member["selection_member_kind"] != "group":
        return (
            len(path) == 1
            and member["selection_member_size"] == 1
            and _KINDS.get(command.type) == member["selection_member_kind"]
        )
    return len(path) > 1 and (path[1]["parallel_group_base_sequence"], path[1]["parallel_group_size"]) == (
        member["selection_member_base_sequence"],
        member["selection_member_size"],
    )


def group_of(command: Command) -> dict[str, Any]:
    """Give what `read_group` read of a command; empty for a command outside groups."""
    return (command.facts.get("group") or {}) if isinstance(command.facts, dict) else {}


def _path(command: Command) -> Iterable[Mapping[str, Any]]:
    path: list[Mapping[str, Any]] = group_of(command).get("parallel_group_path", [])
    return path


def _invalid(text: str) -> Refusal:
    return Refusal(422, "invalid_commands", text)
