"""The stop ladder as a pure state machine: events and an instant in, actions and the next instant out.

Owns the order of steps, their graces and the rule that a stop only ever escalates. Knows no process, signal or
clock: the zygote takes the actions and says what happened. Instants are CLOCK_MONOTONIC seconds.

    notice ── grace ──> capture ──> raise ── grace ──> capture ──> kill ── budget ──> unconfirmed
       └── grace 0: skipped            └── grace 0: skipped

A stop for lost authority or a dead owner, and one that authority runs out under, goes to ``kill`` at once.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, NamedTuple

from proctor_supervisor.reasons import LadderStep, Step, StopReason

if TYPE_CHECKING:
    from proctor_supervisor.options import StopPolicy


class Graces(NamedTuple):
    """A `StopPolicy` as the supervisor process has it; seconds."""

    notice_grace: float
    raise_grace: float
    stack_budget: float
    kill_budget: float


class Action(enum.Enum):
    """What the zygote must do now."""

    NOTICE = "notice"  # show the stop to the handler
    CAPTURE = "capture"  # ask the child for its stacks
    RAISE = "raise"  # raise in the handler's main thread
    KILL = "kill"  # SIGKILL the whole tree
    REPORT_UNCONFIRMED = "report_unconfirmed"  # the tree outlived its kill budget


class _Phase(enum.Enum):
    NOTICED = enum.auto()
    CAPTURING = enum.auto()
    RAISED = enum.auto()
    KILLED = enum.auto()
    UNCONFIRMED = enum.auto()


class Ladder(NamedTuple):
    """A stop in progress. Every method gives the next ladder and the actions to take, in order.

    `wakes_at` is the instant at which `advance` must be called if nothing else happens first.
    """

    reason: StopReason
    detail: str
    policy: Graces | StopPolicy
    phase: _Phase
    wakes_at: float
    next_step: Step
    begun_at: float
    steps: tuple[LadderStep, ...] = ()

    @classmethod
    def begin(
        cls, reason: StopReason, detail: str, policy: Graces | StopPolicy, now: float, *, at_once: bool = False
    ) -> tuple[Ladder, tuple[Action, ...]]:
        """Start to stop an attempt; `at_once` gives it no grace."""
        ladder = cls(reason, detail, policy, _Phase.NOTICED, now, Step.RAISE, begun_at=now)
        if reason.is_immediate or at_once:
            return ladder._kill(now)
        if policy.notice_grace > 0:
            noticed = ladder._replace(wakes_at=now + policy.notice_grace, steps=(LadderStep(Step.NOTICE, now),))
            return noticed, (Action.NOTICE,)
        following, actions = ladder._capture(now)
        return following, (Action.NOTICE, *actions)

    def advance(self, now: float) -> tuple[Ladder, tuple[Action, ...]]:
        """Go on when `wakes_at` has come; before that nothing changes."""
        if now < self.wakes_at:
            return self, ()
        match self.phase:
            case _Phase.NOTICED | _Phase.RAISED:
                return self._capture(now)
            case _Phase.CAPTURING:
                return self._force(now)
            case _Phase.KILLED:
                return self._replace(phase=_Phase.UNCONFIRMED, wakes_at=math.inf), (Action.REPORT_UNCONFIRMED,)
            case _Phase.UNCONFIRMED:
                return self, ()

    def captured(self, now: float) -> tuple[Ladder, tuple[Action, ...]]:
        """The stacks have arrived; the forced step need wait no longer."""
        return self._force(now) if self.phase is _Phase.CAPTURING else (self, ())

    def grace_ended(self, now: float) -> tuple[Ladder, tuple[Action, ...]]:
        """The right to run ended during the stop, or patience did: no grace is left to give."""
        return (self, ()) if self.killing else self._kill(now)

    @property
    def killing(self) -> bool:
        """Whether SIGKILL was sent."""
        return self.phase in (_Phase.KILLED, _Phase.UNCONFIRMED)

    @property
    def forced_at(self) -> float | None:
        """The instant of the first step that the handler could not refuse, or None so far."""
        return next((taken.at for taken in self.steps if taken.step is not Step.NOTICE), None)

    def _capture(self, now: float) -> tuple[Ladder, tuple[Action, ...]]:
        step = Step.RAISE
        if self.next_step is Step.KILL or self.policy.raise_grace == 0:
            step = Step.KILL
        if self.policy.stack_budget == 0:
            return self._replace(phase=_Phase.CAPTURING, next_step=step, wakes_at=now)._force(now)
        capturing = self._replace(phase=_Phase.CAPTURING, next_step=step, wakes_at=now + self.policy.stack_budget)
        return capturing, (Action.CAPTURE,)

    def _force(self, now: float) -> tuple[Ladder, tuple[Action, ...]]:
        if self.next_step is Step.KILL:
            return self._kill(now)
        raised = self._replace(
            phase=_Phase.RAISED,
            next_step=Step.KILL,
            wakes_at=now + self.policy.raise_grace,
            steps=(*self.steps, LadderStep(Step.RAISE, now)),
        )
        return raised, (Action.RAISE,)

    def _kill(self, now: float) -> tuple[Ladder, tuple[Action, ...]]:
        killed = self._replace(
            phase=_Phase.KILLED,
            wakes_at=now + self.policy.kill_budget,
            steps=(*self.steps, LadderStep(Step.KILL, now)),
        )
        return killed, (Action.KILL,)
