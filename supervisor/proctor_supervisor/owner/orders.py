"""What the owner tells the supervisor process about one attempt: its deadlines, its authority, its stop.

Owns the translation from Trio's instants, and the rule that an attempt without deadline or limit costs no message.
"""

from __future__ import annotations

import time
from math import inf

import trio

from proctor_supervisor import messages
from proctor_supervisor.options import NO_DEADLINES, Limits, StopPolicy, Task
from proctor_supervisor.owner.child import Child
from proctor_supervisor.owner.clock import monotonic_or_never, to_monotonic
from proctor_supervisor.owner.link import Link
from proctor_supervisor.reasons import StopReason

_DETAIL_LIMIT = 1000
"""Most characters of a stop's detail; a message has a bound."""
_MARGIN = 0.1
"""Seconds before a deadline within which the supervisor process may be about to act on it."""


class Orders:
    """The orders for attempt `serial` of `task` on `child`, begun at `now` on Trio's clock."""

    __slots__ = (
        "_armed",
        "_authority",
        "_child",
        "_deadlines",
        "_limits",
        "_link",
        "_policy",
        "_serial",
        "_task",
        "now",
    )

    def __init__(
        self, link: Link, child: Child, serial: int, task: Task, policy: StopPolicy, limits: Limits, now: float
    ) -> None:
        self._link = link
        self._child = child
        self._serial = serial
        self._task = task
        self._deadlines = task.deadlines
        self._policy = policy
        self._limits = limits
        self._authority = task.deadlines.authority
        self._armed = False
        self.now = now

    @property
    def pid(self) -> int:
        """The process the orders are about."""
        return self._child.pid

    @property
    def stop_budget(self) -> float:
        """Seconds within which a stop must be over."""
        return self._policy.total

    def take_up(self, authority: float | None) -> None:
        """Give the deadlines, with a newer end of authority if there is one; call it before the task is sent."""
        if authority is not None:
            self._authority = authority
        watched = self._deadlines is not NO_DEADLINES or self._authority is not None
        if watched or self._limits.memory_bytes is not None or self._task.descendants == "keep":
            self._arm()

    @property
    def are_overdue(self) -> bool:
        """Whether a deadline has passed before the task was sent: then it is not, and the idle child is stopped."""
        if not self._armed:
            return False
        now = trio.current_time()
        limits = (self._deadlines.attempt, self._deadlines.total, self._authority)
        return any(limit is not None and limit <= now for limit in limits)

    def stop(self, reason: StopReason, detail: str, *, at_once: bool = False) -> None:
        """Have the attempt stopped."""
        policy = self._policy
        self._link.post(
            messages.Stop(
                child=self._child.number,
                attempt=self._serial,
                at_once=at_once,
                notice_grace=policy.notice_grace,
                raise_grace=policy.raise_grace,
                stack_budget=policy.stack_budget,
                kill_budget=policy.kill_budget,
                reason=reason,
                detail=detail[:_DETAIL_LIMIT],
            )
        )

    def leave(self) -> bool:
        """Void the deadlines of an attempt that returned; False when one is so near that its stop may have begun."""
        if not self._armed:
            return True
        deadlines = self._deadlines
        limits = [deadlines.attempt, deadlines.total, self._authority]
        if deadlines.heartbeat_timeout is not None:
            limits.append(self.now + deadlines.heartbeat_timeout)  # the beats after it are not known here
        nearest = min((limit for limit in limits if limit is not None), default=inf)
        if trio.current_time() > nearest - _MARGIN:
            return False
        self._link.post(messages.Disarm(self._child.number))
        return True

    def extend(self, until: float) -> None:
        """Move the end of authority to `until` on Trio's clock."""
        self._authority = until
        if self._armed:
            self._link.post(messages.Authority(self._child.number, to_monotonic(until)))
        else:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        deadlines, policy = self._deadlines, self._policy
        self._link.post(
            messages.Arm(
                child=self._child.number,
                attempt=self._serial,
                started_at=time.monotonic(),
                attempt_at=monotonic_or_never(deadlines.attempt),
                total_at=monotonic_or_never(deadlines.total),
                authority_at=monotonic_or_never(self._authority),
                heartbeat_timeout=inf if deadlines.heartbeat_timeout is None else deadlines.heartbeat_timeout,
                memory_bytes=self._limits.memory_bytes or 0,
                keep_descendants=self._task.descendants == "keep",
                notice_grace=policy.notice_grace,
                raise_grace=policy.raise_grace,
                stack_budget=policy.stack_budget,
                kill_budget=policy.kill_budget,
            )
        )
