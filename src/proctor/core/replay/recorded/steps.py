"""The durable steps of a run as history records them, and how the fields of an event payload are read.

Plain data and the smallest pieces of reading; which event makes which step is `history`'s subject, whether code asks
for the same step is `matching`'s.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from proctor.core.replay.decision import Interrupted
from proctor.errors import HistoryError, NonDeterminismError

ACTIVITY: Final = "activity"
TIMER: Final = "timer"
CHILD: Final = "child workflow"
SERVICE: Final = "service operation"
CONDITION: Final = "condition wait"
SIGNAL_WAIT: Final = "signal wait"
SIDE_EFFECT: Final = "side effect"
VERSION_MARKER: Final = "version marker"
MEMO: Final = "memo upsert"
SEARCH_ATTRIBUTES: Final = "search attributes upsert"

LARGEST: Final = 2**63 - 1
_DIGITS: Final = len(str(LARGEST))
NOT_READ: Final = object()
"""Stands for a result that is not decoded."""
_NOTHING: Final[Mapping[str, Any]] = {}
_GROUP_KEYS: Final = (
    "parallel_group_id",
    "parallel_group_kind",
    "parallel_group_base_sequence",
    "parallel_group_size",
    "parallel_group_index",
)


@dataclass(slots=True)
class Step:
    """One durable operation of the run.

    `sequence` is its durable number, or its rank when history has no numbers (`numbered` is false then). `position` is
    the place of its first event; `end_position`, `end_type`, `end` and `end_id` belong to the event that ended it.
    `path` is the recorded membership in groups, `selection` the entry of a selection in it, `identity` the server's id
    of a selected operation (None when its opening lacks one or later events disagree), `value` the decoded result.
    """

    shape: str
    sequence: int
    position: int
    numbered: bool = True
    event_types: list[str] = field(default_factory=list)
    end_type: str | None = None
    end: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    end_position: int = -1
    end_id: str | None = None
    path: list[dict[str, Any]] | None = None
    selection: Mapping[str, Any] | None = None
    identity: str | None = None
    identity_disputed: bool = False
    value: Any = NOT_READ

    def __str__(self) -> str:
        return f"{self.shape} ({', '.join(self.event_types)})"


@dataclass(slots=True)
class ActivityStep(Step):
    """An activity, local or queued; `open_attempt` is the payload of an attempt that started and did not end."""

    local: bool = False
    activity_type: str | None = None
    policies: set[str] = field(default_factory=set)
    attempts_started: int = 0
    last_heartbeat: dict[str, Any] | None = None
    open_attempt: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        kind = "local activity" if self.local else "activity"
        return f"{kind} {self.activity_type or '?'!r} ({', '.join(self.event_types)})"

    @property
    def interrupted(self) -> Interrupted | None:
        """The attempt that was started and neither ended nor was rescheduled.

        Raises HistoryError when that attempt has no identity, because then nobody could recover it.
        """
        if self.open_attempt is None:
            return None
        execution = self.open_attempt.get("activity_execution_id")
        attempt = self.open_attempt.get("activity_attempt_id")
        if not (isinstance(execution, str) and execution and isinstance(attempt, str) and attempt):
            raise HistoryError(
                f"the ActivityStarted of sequence {self.sequence} lacks activity_execution_id or activity_attempt_id",
                position=self.position,
            )
        return Interrupted(execution, attempt)


@dataclass(slots=True)
class TimerStep(Step):
    """A timer; `delay` is None when history does not tell it."""

    delay: object = None


@dataclass(slots=True)
class ChildStep(Step):
    """A child workflow; a policy that is not recorded is ``abandon``."""

    workflow_type: str | None = None
    parent_close_policy: str | None = None
    cancellation_policy: str | None = None

    def __str__(self) -> str:
        name = "" if self.workflow_type is None else f" {self.workflow_type!r}"
        return f"child workflow{name} ({', '.join(self.event_types)})"


@dataclass(slots=True)
class ServiceStep(Step):
    """A service operation; `facts` are the recorded fields that the code's call is compared with."""

    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class MarkerStep(Step):
    """A marker: recorded and answered by one event. `memo` is the canonical blob of the entries of a memo upsert."""

    memo: str | None = None


@dataclass(slots=True)
class WaitStep(Step):
    """One opening of a condition wait; `satisfied` is None while history does not resolve it."""

    wait_id: str = ""
    key: str | None = None
    fingerprint: str | None = None
    timeout: object = None
    satisfied: bool | None = None

    def __str__(self) -> str:
        return f"condition wait {self.key or self.wait_id!r} ({', '.join(self.event_types)})"


@dataclass(slots=True)
class SignalWaitStep(Step):
    """A wait for one signal by its name, as workers of other languages record; no code of ours asks for one."""

    name: str | None = None

    def __str__(self) -> str:
        return f"signal wait {self.name or '?'!r} of a worker in another language ({', '.join(self.event_types)})"


def sequence_of(position: int, payload: Mapping[str, Any]) -> int | None:
    """Read the durable command sequence of an event; HistoryError when it is there and no positive number."""
    sequence = payload.get("sequence")
    if sequence is None:
        sequence = payload.get("workflow_sequence")
        if sequence is None:
            return None
    number = sequence
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) <= _DIGITS:
        number = int(number)  # as some servers spell it
    if type(number) is not int or not 1 <= number <= LARGEST:
        raise HistoryError(f"event {position} has the command sequence {shown(sequence)}", position=position)
    return number


def text(value: object) -> str | None:
    """Give a text that says something, else None."""
    return value if isinstance(value, str) and value else None


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Tell an object of the wire; what JSON gives is recognised at once."""
    return type(value) is dict or isinstance(value, Mapping)


def is_number(value: object) -> TypeGuard[int]:
    """Tell whether a value is a positive number of the wire."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def shown(value: object) -> str:
    """Show a hostile value without following it: nested or endless data must not turn one error into another."""
    if isinstance(value, (bool, str)) or (isinstance(value, int) and abs(value) <= LARGEST):
        return reprlib.repr(value)
    return f"of type {type(value).__qualname__}"


def equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Compare two payloads; hostile nesting that cannot be compared is not the same."""
    try:
        return dict(left) == dict(right)
    except RecursionError:
        return False


def activity_type_of(payload: Mapping[str, Any]) -> str | None:
    """Find the activity's name in any of the places servers put it (events.md §4)."""
    name = payload.get("activity_type")
    if isinstance(name, str) and name:
        return name
    snapshot = payload.get("activity")
    places: list[object] = [payload.get("activity_name")]
    if isinstance(snapshot, Mapping):
        places += [snapshot.get(key) for key in ("activity_type", "activity_name", "type", "name")]
    return next((name for name in places if isinstance(name, str) and name), None)


def policies_of(payload: Mapping[str, Any]) -> set[str]:
    """Collect the activity cancellation policies an event names; what is no text is shown instead."""
    snapshot = payload.get("activity")
    places = (payload, snapshot) if is_object(snapshot) else (payload,)
    values = [place["cancellation_policy"] for place in places if "cancellation_policy" in place]
    return {value if isinstance(value, str) else shown(value) for value in values}


def path_of(payload: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Read the membership in groups, outermost entry first (commands.md §5); None without one."""
    path = payload.get("parallel_group_path")
    if isinstance(path, list) and path and all(isinstance(entry, Mapping) for entry in path):
        return [dict(entry) for entry in path]
    if is_entry(payload):
        return [{key: payload[key] for key in _GROUP_KEYS}]
    return None


def is_entry(entry: Mapping[str, Any]) -> bool:
    """Tell whether the five group fields are there and make sense."""
    size, index = entry.get("parallel_group_size"), entry.get("parallel_group_index")
    return (
        text(entry.get("parallel_group_id")) is not None
        and text(entry.get("parallel_group_kind")) is not None
        and is_number(entry.get("parallel_group_base_sequence"))
        and is_number(size)
        and isinstance(index, int)
        and not isinstance(index, bool)
        and 0 <= index < size
    )


def selection_of(sequence: int, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the entry of a selection among an event's group fields; NonDeterminismError for an impossible key."""
    path = payload.get("parallel_group_path")
    entries = [entry for entry in path if isinstance(entry, Mapping)] if isinstance(path, list) else []
    for entry in (*entries, payload):
        if entry.get("parallel_group_mode") == "select" and is_entry(entry):
            if not is_selection_key(entry.get("selection_member_key")):
                raise NonDeterminismError(
                    f"the selection at sequence {sequence} is recorded with an impossible member key",
                    sequence=sequence,
                    expected="a member key that is a text or a number from 0",
                    found=shown(entry.get("selection_member_key")),
                )
            return entry
    return None


def is_selection_key(value: object) -> bool:
    """Tell whether a selection member may have this key (commands.md §6)."""
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
