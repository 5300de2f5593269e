"""What history tells of condition waits: their timeout timers, their ends, and which receivers belong to which wait.

A wait with a timeout has a timer of its own in history that no code asked for; it is told from ordinary timers here,
in today's form and in that of servers of spring 2026 (events.md §3, §4). Receivers (signals and applied updates) that
were recorded while a wait was open belong to that wait (events.md §7). Waiting itself is `conditions`' subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from proctor.core.replay.recorded.steps import WaitStep, text

TimerKind = Literal["ordinary", "condition", "signal"]
_LEGACY_ENDS: Final = frozenset(
    {"WorkflowCompleted", "WorkflowFailed", "WorkflowContinuedAsNew", "ActivityScheduled", "ChildWorkflowScheduled"}
)


@dataclass(slots=True)
class Receiver:
    """A signal or applied update of history, not yet delivered to the code.

    It is due when `answers` results and `selections` selection markers were consumed, or with the condition wait
    `wait_id` when it is bound to one.
    """

    kind: Literal["signal", "update"]
    name: str
    payload: Mapping[str, Any]
    position: int
    answers: int
    selections: int
    wait_id: str | None = None
    after_delivery: bool = False
    arguments: list[Any] | None = None


class WaitReader:
    """Collects the waits of one history while its events are read in order."""

    def __init__(self) -> None:
        self.by_id: dict[str, WaitStep] = {}
        self.ended_unopened: set[str] = set()
        self._by_sequence: dict[int, str] = {}
        self._legacy_timers: dict[int, str] = {}
        self._open: WaitStep | None = None  # the wait whose legacy timer may come next

    def opened(self, step: WaitStep) -> None:
        """Take note of an opening."""
        self.by_id[step.wait_id] = step
        if step.numbered:
            self._by_sequence[step.sequence] = step.wait_id
        self._open = step

    def resolved(self, step: WaitStep, satisfied: bool, position: int, event_type: str, event_id: str | None) -> None:
        """Take note of an end; the first one says when, the last one says how."""
        step.event_types.append(event_type)
        step.satisfied = satisfied
        step.end_type, step.end_id = event_type, event_id
        if step.end_position < 0:
            step.end_position = position
        if self._open is step:
            self._open = None

    def scheduled_timer(self, sequence: int | None, payload: Mapping[str, Any]) -> TimerKind:
        """Say whose timer a TimerScheduled event opens."""
        kind = self.timer_kind(sequence, payload)
        if kind != "ordinary":
            return kind
        if sequence is not None and self._is_legacy_timeout(sequence, payload):
            assert self._open is not None
            self._legacy_timers[sequence] = self._open.wait_id
            return "condition"
        self._open = None
        return "ordinary"

    def timer_kind(self, sequence: int | None, payload: Mapping[str, Any]) -> TimerKind:
        """Say whose timer an event is about."""
        named = payload.get("timer_kind")
        if named == "condition_timeout" or (named != "signal_timeout" and text(payload.get("condition_wait_id"))):
            return "condition"
        if named == "signal_timeout" or text(payload.get("signal_wait_id")):
            return "signal"
        if sequence is not None and (sequence in self._by_sequence or sequence in self._legacy_timers):
            return "condition"
        return "ordinary"

    def wait_of_timer(self, sequence: int | None, payload: Mapping[str, Any]) -> str | None:
        """Find the wait that a condition's timer belongs to."""
        named = text(payload.get("condition_wait_id"))
        if named is not None or sequence is None:
            return named
        return self._by_sequence.get(sequence) or self._legacy_timers.get(sequence)

    def passed(self, event_type: str) -> None:
        """Take note of an event behind which no legacy timer of the last wait can come."""
        if event_type in _LEGACY_ENDS:
            self._open = None

    def _is_legacy_timeout(self, sequence: int, payload: Mapping[str, Any]) -> bool:
        wait = self._open
        return (
            wait is not None
            and wait.numbered
            and sequence != wait.sequence
            and isinstance(wait.timeout, int)
            and not isinstance(wait.timeout, bool)
            and wait.timeout > 0
            and payload.get("delay_seconds") == wait.timeout
            and text(payload.get("timer_id")) is not None
            and text(payload.get("timer_kind")) is None
        )


class ReceiverBinding:
    """Decides, event by event, to which condition wait each receiver belongs (events.md §7)."""

    def __init__(self) -> None:
        self._before: list[Receiver] = []  # since the start or the last resolved wait, no durable step between
        self._may_precede = True
        self._wait: str | None = None
        self._during: list[Receiver] = []

    def opened(self, wait_id: str) -> None:
        """A wait opens: what came just before it is meant for it."""
        if self._wait is None:
            for receiver in self._before:
                receiver.wait_id = wait_id if self._may_precede else None
        else:
            # The first one woke the task that opens the wait again; the others came while that task was at work.
            for receiver in self._during[1:]:
                receiver.wait_id = wait_id
        self._before, self._during = [], []
        self._may_precede = True
        self._wait = wait_id

    def received(self, receiver: Receiver, *, numbered: bool) -> None:
        """A receiver is recorded; `numbered` says whether its event names a durable sequence."""
        if self._wait is None:
            if self._may_precede or not numbered:
                self._before.append(receiver)
            return
        receiver.wait_id = self._wait
        self._during.append(receiver)

    def passed(self, *, condition: bool) -> None:
        """A durable step, or the end of a wait, separates what came before from what follows."""
        if self._wait is None:
            if not condition:
                for receiver in self._before:
                    receiver.wait_id = None
                self._before = []
                self._may_precede = False
            return
        self._wait = None
        self._during = []
        self._may_precede = condition

    def finish(self) -> None:
        """History is over."""
        for receiver in self._before:
            receiver.wait_id = None
