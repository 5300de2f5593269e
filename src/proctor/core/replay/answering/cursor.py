"""Where replay stands in its history: which step answers the next command, and which number the next command has.

Results are taken in the order in which history has them, openings of condition waits in theirs (replay.md §3); the
smallest number among all that is left says what comes next. A contradiction ends the replay here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NoReturn

from proctor.core.replay.answering.matching import mismatch
from proctor.core.replay.authoring.placing import Path
from proctor.core.replay.recorded.ledger import History
from proctor.core.replay.recorded.steps import Step, WaitStep
from proctor.errors import NonDeterminismError


class Cursor:
    """The place of one replay in one history.

    `position` is the durable number of the next command; `answers` counts the results that were taken. When `strict`,
    a recorded number that is not the authored one is a contradiction.
    """

    def __init__(self, history: History, *, name: str, strict: bool) -> None:
        self.position = 1
        self.answers = 0
        self.strict = strict
        self._name = name
        self._answered = history.answered
        self._waits = history.waits
        self._opened = 0
        self._pending = sorted(history.pending, key=_sequence)
        self._selected_end = max(history.selected, default=0)
        self._least_answered = _least_from(self._answered)
        self._least_opened = _least_from(self._waits)

    @property
    def answered(self) -> Step | None:
        """The next step with a result."""
        return self._answered[self.answers] if self.answers < len(self._answered) else None

    @property
    def wait(self) -> WaitStep | None:
        """The next opening of a condition wait."""
        return self._waits[self._opened] if self._opened < len(self._waits) else None

    @property
    def wait_after(self) -> WaitStep | None:
        """The opening behind that."""
        return self._waits[self._opened + 1] if self._opened + 1 < len(self._waits) else None

    @property
    def unconsumed(self) -> Step | None:
        """The step with the smallest number among all that is left."""
        least = [steps[0] for steps in (self._pending,) if steps]
        if self.answers < len(self._answered):
            least.append(self._least_answered[self.answers])
        if self._opened < len(self._waits):
            least.append(self._least_opened[self._opened])
        return min(least, key=_sequence, default=None)

    @property
    def is_exhausted(self) -> bool:
        """Tell whether the code has seen all that history holds."""
        return not self._pending and self.answers == len(self._answered) and self._opened == len(self._waits)

    def next_answers(self, count: int) -> Sequence[Step] | None:
        """Give the next `count` results without taking them; None when there are fewer."""
        end = self.answers + count
        return self._answered[self.answers : end] if end <= len(self._answered) else None

    def next_unconsumed(self, count: int) -> list[Step]:
        """Give at most `count` of the steps that are left, by number."""
        left = [*islice(self._answered, self.answers, None), *islice(self._waits, self._opened, None), *self._pending]
        return sorted(left, key=_sequence)[:count]

    def take(self, asked: object) -> Step:
        """Take the next result; `asked` is what the code asked for."""
        step = self._answered[self.answers]
        self.check_number(asked, step, self.position)
        self.answers += 1
        self.position = max(self.position, step.sequence) + 1 if not self.strict else step.sequence + 1
        return step

    def take_group(self, count: int) -> None:
        """Take the results of a whole group, which were checked one by one."""
        taken = self._answered[self.answers : self.answers + count]
        self.answers += count
        self.position = max(self.position, *(step.sequence for step in taken)) + 1

    def take_wait(self) -> WaitStep:
        """Take the next opening of a condition wait."""
        step = self._waits[self._opened]
        self._opened += 1
        self.position = max(self.position, step.sequence + 1)
        return step

    def group_base(self) -> int:
        """Give the number of the first member of a group that starts here (events.md §6)."""
        step = None if self.strict else self.unconsumed
        return self.position if step is None else step.sequence

    def check(self, asked: object, step: Step, path: Path | None = None, *, at: int | None = None) -> None:
        """Require that `step` is what the code asked for; `at` is its authored number where that is known."""
        problem = mismatch(asked, step, path)
        if problem is not None:
            self.refuse(*problem, at=step.sequence)
        if at is not None:
            self.check_number(asked, step, at)

    def check_order(self, asked: object, step: Step) -> None:
        """Require that nothing with a smaller number is left when `step` is the answer: the code passed it by."""
        least = self.before(step)
        if least is not None:
            self.check(asked, least)
            self.refuse(f"{asked} without an outcome", str(step), at=step.sequence)

    def before(self, step: Step) -> Step | None:
        """Give a step with a smaller number than `step` that the code has not come to, if there is one."""
        least = self.unconsumed
        if least is not None and least.sequence < step.sequence and least.numbered and step.numbered:
            return least
        return None

    def check_number(self, asked: object, step: Step, authored: int) -> None:
        """Require the authored number of a recorded step, where the protocol promises it (replay.md §3)."""
        if self.strict and (step.sequence != authored or not step.numbered):
            number = step.sequence if step.numbered else None
            self.refuse(f"{asked} at sequence {authored}", f"{step} at sequence {number}", at=authored)

    def refuse(self, expected: str, found: str, *, at: int | None = None) -> NoReturn:
        """End the replay: the code asks for `expected`, history records `found`."""
        sequence = self.position if at is None else at
        raise NonDeterminismError(
            f"workflow {self._name!r} does not match its history at sequence {sequence}: "
            f"the code asks for {expected}, the history records {found}. "
            "Deploy the code that recorded it, or guard the change with ctx.get_version",
            sequence=sequence,
            expected=expected,
            found=found,
        )


def _sequence(step: Step) -> int:
    return step.sequence


def _least_from(steps: Sequence[Step]) -> list[Step]:
    """Give, for each place, the step with the smallest number from there on."""
    least: list[Step] = []
    for step in reversed(steps):
        least.append(step if not least or step.sequence <= least[-1].sequence else least[-1])
    least.reverse()
    return least
