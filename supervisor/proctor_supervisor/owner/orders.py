"""What the owner tells the supervisor process about one attempt: its deadlines, its authority, its stop.

Owns the translation from Trio's instants, and the rule that an attempt without deadline or limit costs no message.
"""

from __future__ import annotations

import math
import time

import trio

from proctor_supervisor import messages
from proctor_supervisor.options import Deadlines, StopPolicy
from proctor_supervisor.outcome import StopReason
from proctor_supervisor.owner.clock import maybe_to_monotonic, to_monotonic
from proctor_supervisor.owner.control import AttemptControl
from proctor_supervisor.owner.link import Child, Link

_MARGIN = 0.1
"""Seconds before a deadline within which the supervisor process may be about to act on it."""

_DETAIL_LIMIT = 1000
"""Most characters of a stop's detail; a message has a bound."""


class Orders:
    """The orders for attempt `serial` on `child`."""

    def __init__(
        self,
        link: Link,
        child: Child,
        serial: int,
        deadlines: Deadlines,
        policy: StopPolicy,
        *,
        memory_bytes: int | None,
        keep_descendants: bool,
    ) -> None:
        self._link = link
        self._child = child
        self._serial = serial
        self._policy = policy
        self._deadlines = deadlines
        self._memory_bytes = memory_bytes
        self._keep_descendants = keep_descendants
        self._authority = deadlines.authority
        self._started_at = trio.current_time()
        self._armed = False

    def take_up(self, control: AttemptControl) -> None:
        """Give the deadlines, and what `control` was told so far; call it before the task is sent."""
        if control.authority_at is not None:
            self._authority = control.authority_at
        watched = self._deadlines != _NO_DEADLINES or self._authority is not None or self._memory_bytes is not None
        if watched or self._keep_descendants:
            self._arm()
        control.bind(self.stop, self._extend, self._child.pid, self._started_at)

    @property
    def are_overdue(self) -> bool:
        """Whether a deadline has passed before the task was sent: then it is not, and the idle child is stopped."""
        limits = (self._deadlines.attempt, self._deadlines.total, self._authority)
        now = trio.current_time()
        return any(limit is not None and limit <= now for limit in limits)

    def stop(self, reason: StopReason, detail: str, *, at_once: bool = False) -> None:
        """Have the attempt stopped."""
        policy = self._policy
        self._link.post(
            messages.Stop(
                child=self._child.number,
                attempt=self._serial,
                reason=str(reason),
                detail=detail[:_DETAIL_LIMIT],
                at_once=at_once,
                notice_grace=policy.notice_grace,
                raise_grace=policy.raise_grace,
                stack_budget=policy.stack_budget,
                kill_budget=policy.kill_budget,
            )
        )

    def leave(self) -> bool:
        """Void the deadlines of an attempt that returned; False when one is so near that its stop may have begun."""
        if not self._armed:
            return True
        deadlines = self._deadlines
        limits = [deadlines.attempt, deadlines.total, self._authority]
        if deadlines.heartbeat_timeout is not None:
            limits.append(self._started_at + deadlines.heartbeat_timeout)  # the beats after it are not known here
        nearest = min((limit for limit in limits if limit is not None), default=math.inf)
        if trio.current_time() > nearest - _MARGIN:
            return False
        self._link.post(messages.Disarm(self._child.number))
        return True

    def _extend(self, until: float) -> None:
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
                attempt_at=maybe_to_monotonic(deadlines.attempt),
                total_at=maybe_to_monotonic(deadlines.total),
                authority_at=maybe_to_monotonic(self._authority),
                heartbeat_timeout=deadlines.heartbeat_timeout,
                memory_bytes=self._memory_bytes,
                keep_descendants=self._keep_descendants,
                notice_grace=policy.notice_grace,
                raise_grace=policy.raise_grace,
                stack_budget=policy.stack_budget,
                kill_budget=policy.kill_budget,
            )
        )


_NO_DEADLINES = Deadlines()
