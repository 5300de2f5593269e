"""The state of one replay, shared by the modules that answer commands: nothing is decided here.

`Replaying` holds what belongs together for the length of one replay and offers the few steps that every answer needs:
authoring a command, reading a recorded value, failing on a contradiction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from proctor.core import codec
from proctor.core.replay.answering.answers import Answer, Outcome, Throw
from proctor.core.replay.answering.cursor import Cursor
from proctor.core.replay.answering.receivers import Receivers
from proctor.core.replay.authoring.commands import WaitCondition
from proctor.core.replay.authoring.context import WorkflowContext
from proctor.core.replay.authoring.selection import DurableOperationHandle
from proctor.core.replay.body import Body
from proctor.core.replay.decision import Authored, Commands, ReplayTask
from proctor.core.replay.failures import recorded_failure
from proctor.core.replay.recorded.cancelling import ReplayTime
from proctor.core.replay.recorded.ledger import History
from proctor.core.replay.recorded.steps import NOT_READ, Step, TimerStep, WaitStep
from proctor.errors import PayloadError, WorkflowCodeBroken

_RESULTS: Final = frozenset({"ActivityCompleted", "ChildRunCompleted", "SideEffectRecorded"})

MAX_COMMANDS: Final = 1000
"""Most commands of one completion (commands.md §3.3)."""


@dataclass(slots=True)
class Replaying:
    """One replay at work."""

    name: str
    task: ReplayTask
    history: History
    cursor: Cursor
    context: WorkflowContext
    body: Body
    receivers: Receivers
    time: ReplayTime
    authored: Authored = field(default_factory=Authored)
    uncommitted: deque[Mapping[str, Any]] = field(default_factory=deque)
    versions: dict[str, int] = field(default_factory=dict)
    cancelled: bool = False
    reopened: WaitCondition | None = None
    selections: int = 0
    selected: set[int] = field(default_factory=set)
    handles: dict[int, DurableOperationHandle] = field(default_factory=dict)
    cancelled_members: set[tuple[str, int]] = field(default_factory=set)
    is_query: bool = False

    @property
    def prefix_start(self) -> int:
        """The number of the first authored command that history does not hold."""
        return self.cursor.position - self.authored.span

    def author(self, command: dict[str, Any], *, span: int = 1) -> None:
        """Add a command that history does not hold; it takes `span` numbers."""
        self._require_room()
        self.authored.commands.append(command)
        self.authored.span += span
        self.cursor.position += span

    def _require_room(self) -> None:
        if len(self.authored.commands) == MAX_COMMANDS:
            raise WorkflowCodeBroken(
                f"workflow {self.name!r} authors more than {MAX_COMMANDS} commands without waiting for one"
            )

    def take_uncommitted(self, asked: object, kind: str) -> Mapping[str, Any]:
        """Give the next command that an earlier replay of this task authored, and author it again as it was."""
        command = self.uncommitted.popleft()
        if command.get("type") != kind:
            self.cursor.refuse(str(asked), f"{command.get('type')} of this very task")
        self.author(dict(command))
        return command

    def commands(self, *terminal: dict[str, Any]) -> Commands:
        """Conclude with what was authored, and a terminal command if there is one."""
        if terminal:
            self._require_room()
        inbox = self.context._inbox
        return Commands((*self.authored.commands, *terminal), inbox.cursors, inbox.waits)

    def observe(self, *positions: int) -> None:
        """Take the recorded time of consumed events, for the cancellation's `remaining` (cancellation.md §6)."""
        if self.cancelled:
            for position in sorted(positions):
                if position >= 0:
                    self.time.observe(self.history.events[position])

    def answer(self, step: Step) -> Outcome:
        """Give the code the recorded end of a step."""
        failure = recorded_failure(step)
        return Answer(recorded_value(step)) if failure is None else Throw(failure)


def recorded_value(step: Step) -> Any:
    """Decode the recorded result of a step; PayloadError when it is unreadable."""
    if isinstance(step, TimerStep):
        return None
    if isinstance(step, WaitStep):
        return step.satisfied
    value = step.value
    if value is not NOT_READ:
        step.value = NOT_READ  # whoever asks again gets a value of its own
        return value
    end = step.end
    try:
        codec.require_named(end)
        return codec.decode_value(end["result"] if "result" in end else end.get("output"), codec.CODEC)
    except PayloadError as exc:
        raise exc.at(f"the result of {step}, event {step.end_position}") from exc


def read_results(history: History) -> None:
    """Decode every recorded result before code runs, so that an unreadable one never lets it go half its way."""
    for step in (*history.answered, *history.selected.values()):
        if step.end_type in _RESULTS:
            step.value = recorded_value(step)
