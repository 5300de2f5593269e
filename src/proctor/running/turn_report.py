"""How a turn ends, and the last word that it sends for it: its commands, its failure, or nothing.

What is to be sent is decided by the turn; a completion that the server refuses for what it says becomes a failure here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import structlog

from proctor.core.attempt import bounded_text
from proctor.core.replay.decision import StreamCursor
from proctor.errors import (
    ExternalPayloadRejected,
    HistoryError,
    NonDeterminismError,
    PayloadError,
    ProctorError,
    ServerRefused,
)
from proctor.running.claim import ClaimCalls

_MAX_FAILURE_MESSAGE = 16 * 1024
_LOST_REASONS = frozenset(
    {
        "lease_expired",
        "lease_owner_mismatch",
        "run_already_closed",
        "run_closed",
        "task_not_found",
        "task_not_leased",
        "workflow_task_attempt_mismatch",
    }
)
_WAITING = {
    "message": "Workflow task waiting for scheduled history.",
    "type": "WorkflowTaskWaitingForHistory",
}
_WIRE_TYPES: Mapping[type[ProctorError], str] = {
    # As the ecosystem spells them: a server may block a task by these names instead of offering it again.
    ExternalPayloadRejected: "ExternalPayloadError",
    NonDeterminismError: "NonDeterministicReplayError",
    PayloadError: "WorkflowPayloadDecodeError",
    HistoryError: "HistoryError",
}

_log = structlog.get_logger("proctor.turn")

How = Literal["completed", "failed", "waiting", "released", "abandoned"]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended. `unproven` is set when its child could not be proven gone: the slot is then lost."""

    how: How
    reason: str = ""
    unproven: BaseException | None = None


class TurnReport:
    """Ends one turn at the server. `time_left` gives the seconds that completing may take."""

    def __init__(self, calls: ClaimCalls, *, time_left: Callable[[], float]) -> None:
        self._calls = calls
        self._time_left = time_left

    async def finish(
        self,
        commands: tuple[dict[str, object], ...],
        cursors: tuple[StreamCursor, ...] = (),
        waits: tuple[StreamCursor, ...] = (),
    ) -> TurnEnd:
        """Complete the task with `commands`; without any, say that the run waits."""
        if not commands:
            return await self._send_failure(_WAITING, "waiting")
        # What cannot be stored now leaves the claim to expire: it says nothing about the commands.
        sendable = await self._calls.payloads.offloaded(commands)
        try:
            await self._calls.complete(sendable, cursors=cursors, waits=waits, within=self._time_left())
        except ServerRefused as exc:
            if exc.reason in _LOST_REASONS or exc.status == 429 or exc.status >= 500:
                return self.abandoned(exc.reason or f"http_{exc.status}", exc)
            return await self.fail("WorkflowTaskCompletionRefused", str(exc))
        return TurnEnd("completed", ", ".join(str(command.get("type")) for command in commands))

    async def fail(self, kind: str, message: str) -> TurnEnd:
        """Report that this turn failed; the run stays open."""
        _log.error("workflow_task_failed", task=self._calls.claim.task_id, type=kind, problem=message[:2000])
        text = bounded_text(message, _MAX_FAILURE_MESSAGE) or kind
        return await self._send_failure({"message": text, "type": kind}, "failed")

    async def fail_for(self, exc: ProctorError) -> TurnEnd:
        """Report that the turn failed by `exc`, under the name that the ecosystem has for it."""
        name = next((name for kind, name in _WIRE_TYPES.items() if isinstance(exc, kind)), type(exc).__name__)
        return await self.fail(name, str(exc))

    def abandoned(self, reason: str, exc: ProctorError) -> TurnEnd:
        """Give the claim up because of `exc`: nothing is sent, the claim is left to expire."""
        _log.warning("claim_abandoned", task=self._calls.claim.task_id, reason=reason, problem=str(exc))
        return TurnEnd("abandoned", reason)

    async def _send_failure(self, failure: Mapping[str, str], how: How) -> TurnEnd:
        await self._calls.fail(failure)
        return TurnEnd(how, failure["type"])
