"""The book that reading a history fills: its steps, what concerns the whole run, and the rules all steps share.

Which event writes what is said in `operations` and `arrivals`; here are identity, membership in groups, ends and
their repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from proctor.core.replay.recorded.cancelling import CancellationRecord, Delivery
from proctor.core.replay.recorded.steps import (
    ACTIVITY,
    CHILD,
    CONDITION,
    TIMER,
    Step,
    WaitStep,
    equal,
    path_of,
    selection_of,
    text,
)
from proctor.core.replay.recorded.waits import Receiver, ReceiverBinding, WaitReader
from proctor.errors import HistoryError, NonDeterminismError

_S = TypeVar("_S", bound=Step)
_OPENINGS: Final = frozenset({"ActivityScheduled", "TimerScheduled", "ChildWorkflowScheduled", "ConditionWaitOpened"})
_IDENTITIES: Final = {
    ACTIVITY: "activity_execution_id",
    TIMER: "timer_id",
    CHILD: "child_workflow_run_id",
    CONDITION: "condition_wait_id",
}


class Event(NamedTuple):
    """One event with a checked envelope; `position` is its place in the list, from 0."""

    position: int
    type: str
    payload: Mapping[str, Any]
    envelope: Mapping[str, Any]

    @property
    def identity(self) -> str | None:
        """The unique id of the event, if it has one."""
        return text(self.envelope.get("id")) or text(self.envelope.get("event_id"))


@dataclass(slots=True)
class History:
    """A checked history.

    `answered` holds the steps with a result in the order of the results (complete groups in authored order),
    `pending` those without, `waits` the openings of condition waits; members of selections are in `selected` by
    sequence instead. `resolved_at` says where a selection (by base and size) was resolved, `member_cancelled_at` where
    the operation with a number was cancelled by the code. Steps that a delivered cancellation replaced are in
    `by_sequence` only.
    """

    events: Sequence[Mapping[str, Any]]
    answered: list[Step] = field(default_factory=list)
    pending: list[Step] = field(default_factory=list)
    waits: list[WaitStep] = field(default_factory=list)
    by_sequence: dict[int, Step] = field(default_factory=dict)
    selected: dict[int, Step] = field(default_factory=dict)
    resolutions: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    cancelled_members: dict[tuple[str, int], tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    resolved_at: dict[tuple[int, int], int] = field(default_factory=dict)
    member_cancelled_at: dict[int, int] = field(default_factory=dict)
    receivers: list[Receiver] = field(default_factory=list)
    accepted_updates: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    started: Mapping[str, Any] | None = None
    started_at: datetime | None = None
    closed: bool = False
    strict: bool = False
    cancellation: CancellationRecord | None = None


class Ledger:
    """A history in the making."""

    def __init__(self, events: Sequence[Mapping[str, Any]], *, run_id: str, delivery: Delivery | None) -> None:
        self.history = History(events)
        self.run_id = run_id
        self.delivery = delivery
        self.opened: list[Step] = []
        self.waits = WaitReader()
        self.binding = ReceiverBinding()

    def find(self, event: Event, sequence: int | None, kind: type[_S]) -> _S | None:
        """Give the step with this number; HistoryError when it is of another kind."""
        step = None if sequence is None else self.history.by_sequence.get(sequence)
        if step is None or isinstance(step, kind):
            return step
        raise HistoryError(
            f"event {event.position}: sequence {sequence} is also a {step.shape}", position=event.position
        )

    def add(self, kind: type[_S], shape: str, event: Event, sequence: int | None) -> _S:
        """Begin a step; without a number it is ranked by order, and cannot be found again by number."""
        step = kind(shape, self.rank() if sequence is None else sequence, event.position, sequence is not None)
        if not isinstance(step, WaitStep):
            self.opened.append(step)
        if sequence is not None:
            self.history.by_sequence[sequence] = step
        return step

    def find_or_add(self, kind: type[_S], shape: str, event: Event, sequence: int | None) -> _S:
        """Give the step with this number, begun if this is its first event."""
        return self.find(event, sequence, kind) or self.add(kind, shape, event, sequence)

    def rank(self) -> int:
        """Give the number that the next step of a history without numbers has."""
        return len(self.history.answered) + len(self.history.waits) + 1

    def join(self, step: Step, event: Event) -> None:
        """Read what an event says of the groups and of the identity of its step."""
        payload = event.payload
        if "cancellation_scope_id" in payload:
            refuse_scope(event, payload["cancellation_scope_id"])
        if "parallel_group_id" in payload or "parallel_group_path" in payload:
            path = path_of(payload)
            if step.selection is not None and path is not None and path != step.path:
                contradiction(step, "one place in its selection", event.type)
            step.path = step.path if path is None else path
            selection = selection_of(step.sequence, payload)
            if selection is not None and step.selection is None:
                step.selection = selection
                self.history.selected[step.sequence] = step
        if step.selection is not None:
            identity = text(payload.get(_IDENTITIES.get(step.shape, "")))
            if event.type in _OPENINGS and step.identity is None:
                step.identity = identity
            elif identity != step.identity:
                step.identity_disputed = True

    def repeats(self, step: Step, event: Event) -> bool:
        """Tell an exact repetition of the recorded end; HistoryError for anything else behind an end."""
        if step.end_type is None:
            return False
        if event.type != step.end_type or not equal(event.payload, step.end):
            refuse_after_end(event, step)
        return True

    def end(self, step: Step, event: Event) -> None:
        """Record the end of a step, and with it the next answer."""
        interrupted = self.interrupts(step.sequence)
        if interrupted and self.delivery is not None and self.delivery.call_kind == "selection_handle":
            return  # the handle's operation stays open for the code: its end came after the cancellation
        step.end_type, step.end = event.type, event.payload
        step.end_position, step.end_id = event.position, event.identity
        if not step.numbered:
            step.sequence = self.rank()
        if step.selection is None and not interrupted:
            self.history.answered.append(step)

    def interrupts(self, sequence: int) -> bool:
        """Tell whether a delivered cancellation replaced the step with this number."""
        return self.delivery is not None and self.delivery.interrupts(sequence)


def refuse_after_end(event: Event, step: Step) -> NoReturn:
    """Refuse an event of a step that has ended: the history is out of order, or repeated."""
    raise HistoryError(
        f"event {event.position} ({event.type}) follows the end of sequence {step.sequence} ({step.end_type})",
        position=event.position,
    )


def refuse_scope(event: Event, scope: object) -> None:
    """Refuse an operation of any cancellation scope but the root one (cancellation.md §11)."""
    if scope != "root":
        raise HistoryError(
            f"event {event.position} ({event.type}): cancellation scopes are not supported", position=event.position
        )


def contradiction(step: Step, expected: str, found: object) -> NoReturn:
    """Refuse a step whose own events do not fit together."""
    raise NonDeterminismError(
        f"the events of sequence {step.sequence} contradict each other: {expected} ({found})",
        sequence=step.sequence,
        expected=expected,
        found=str(found),
    )
