"""What the log says while polls fail: one line for an outage, however many pollers meet it, and one for its end.

Owns no retrying: each poller goes on by itself (`proctor.running.polling`).
"""

from __future__ import annotations

import math

import structlog
import trio

from proctor.errors import ProctorError, ServerRefused

REPEAT_SECONDS = 60.0
"""A trouble that lasts, or comes back, is told again after this time."""

_log = structlog.get_logger("proctor.poller")


class PollOutage:
    """The failed polls of one worker. Two failures are the same trouble when type and reason are."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str | None], float] = {}
        self._since = math.nan
        self._is_told = False

    def failed(self, problem: ProctorError) -> None:
        """Note a failed poll; it is logged unless the same trouble was in the last minute."""
        now = trio.current_time()
        if math.isnan(self._since):
            self._since = now
        kind = (type(problem).__name__, problem.reason if isinstance(problem, ServerRefused) else None)
        if now - self._told.get(kind, -math.inf) < REPEAT_SECONDS:
            return
        self._told[kind] = now
        self._is_told = True
        _log.warning("polls_fail", problem=str(problem), next_line_after=REPEAT_SECONDS)

    def answered(self) -> None:
        """Note a poll that was answered: the end of an outage is logged if its begin was."""
        if self._is_told:
            _log.warning("polls_answered_again", after=round(trio.current_time() - self._since, 1))
        self._is_told = False
        self._since = math.nan
