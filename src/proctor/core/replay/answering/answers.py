"""What becomes of one awaited command: the code goes on, the run fails, the replay waits, or a Decision ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from proctor.core.replay.decision import Decision


@dataclass(frozen=True, slots=True)
class Answer:
    """The code goes on with `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Throw:
    """The code goes on with an exception raised at the await."""

    exception: BaseException


@dataclass(frozen=True, slots=True)
class Fail:
    """The run fails with an exception that the code does not get to see.

    `prefix` says where it was raised; with `alone` nothing the code authored before is sent.
    """

    exception: BaseException
    prefix: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing more can be said before history grows: what was authored is sent."""


WAIT = Wait()

Outcome: TypeAlias = Answer | Throw | Fail | Wait | Decision
