"""What the supervisor process knows of one child, and what it tells the owner of its end.

Nothing here acts on the child; that is the loop's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Any

from proctor_supervisor import messages
from proctor_supervisor.board import Board
from proctor_supervisor.deadman import Watch
from proctor_supervisor.ladder import Graces, Ladder
from proctor_supervisor.zygote import stacks, trees

GRACELESS = Graces(notice_grace=0, raise_grace=0, stack_budget=0, kill_budget=5.0)
_DESCENDANTS_TOLD = 500
"""Most killed descendants that are named; all are counted. A message has a bound, a fork bomb has none."""


class Child:
    """One child of the supervisor process, from fork to settlement."""

    __slots__ = (
        "attempt", "board", "capture", "dump", "exit", "keep_descendants", "kept", "ladder", "memory_bytes", "number",
        "pid", "policy", "reported_unconfirmed", "settle_by", "stack", "started_at", "victims", "watch",
    )  # fmt: skip

    def __init__(self, number: int, pid: int, board: Board, dump: int) -> None:
        self.number = number
        self.pid = pid
        self.board = board
        self.dump = dump
        self.attempt = 0
        self.watch: Watch | None = None
        self.memory_bytes = 0
        self.keep_descendants = False
        self.policy = GRACELESS
        self.ladder: Ladder | None = None
        self.capture: stacks.StackCapture | None = None
        self.stack = ""
        self.started_at = 0
        self.victims = trees.Victims()
        self.kept: list[int] = []
        self.exit: tuple[int, Any] | None = None  # wait status and rusage, once reaped
        self.settle_by = inf
        self.reported_unconfirmed = False

    def settled(self, *, oom_killed: Callable[[], bool]) -> messages.Settled:
        """Give the report of a child below which nothing lives; `oom_killed` is asked about a kill of unknown cause."""
        assert self.exit is not None
        status, usage = self.exit
        by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        killed = by_signal == signal.SIGKILL
        ladder = self.ladder
        ours = ladder is not None and (ladder.killing if killed else by_signal in stacks.STEP_SIGNALS)
        return messages.Settled(
            child=self.number,
            status=status,
            sent_by_us=ours,
            begun=self.board.begun,
            beats=self.board.beats,
            dropped=self.board.dropped,
            user_seconds=usage.ru_utime,
            system_seconds=usage.ru_stime,
            max_rss_bytes=usage.ru_maxrss * 1024,
            settled_at=time.monotonic(),
            oom_suspected=killed and not ours and oom_killed(),
            kept=tuple(self.kept),
            descendants=tuple(islice(self.victims.everyone, _DESCENDANTS_TOLD)),
            descendants_count=len(self.victims.everyone),
            stop=None if ladder is None else self._stop(ladder),
        )

    def _stop(self, ladder: Ladder) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "reason": ladder.reason,
            "detail": ladder.detail,
            "begun_at": ladder.begun_at,
            "steps": [[step.step, step.at] for step in ladder.steps],
            "stack": self.stack,
            "started_at": self.started_at,
        }


def policy_of(order: messages.Arm | messages.Stop) -> Graces:
    """Give the graces that an order of the owner states."""
    return Graces(order.notice_grace, order.raise_grace, order.stack_budget, order.kill_budget)
