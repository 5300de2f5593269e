"""One leased update validation: replay the run beside the loop, ask its validator, approve or reject (worker.md §4).

As with a query nothing is decided behind the lease, and what cannot be asked is told as that, never as a rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
import trio

from proctor.core import codec
from proctor.core.attempt import bounded_text
from proctor.core.authority import OPERATION_LIMIT_SECONDS, Exchange
from proctor.core.replay.decision import ReplayTask, WorkflowDefinition
from proctor.core.replay.interaction import UpdateRejected, validate_update
from proctor.core.wire.validations import ValidationClaim
from proctor.errors import ProctorError, ServerRefused, ServerUnreachable
from proctor.running.query_answer import Apart
from proctor.running.surroundings import Surroundings
from proctor.running.turn_report import TurnEnd
from proctor.transport.calls import Call, Transport, accepted, segment
from proctor.transport.external import ExternalPayloads

_REJECTED, _FAILED = "update_validator_rejected", "update_validation_worker_failed"
_MAX_FAILURE_MESSAGE = 16 * 1024
_OVER = "update_validation_lease_expired"

_log = structlog.get_logger("proctor.update")


@dataclass(frozen=True, slots=True)
class LeasedValidation:
    """A leased validation and the exchange that leased it."""

    claim: ValidationClaim
    exchange: Exchange
    refers: bool = False
    """Whether the claim may hold references to external payloads."""


class UpdateValidation:
    """Decides one leased validation. Made for one claim, used once."""

    def __init__(
        self,
        transport: Transport,
        leased: LeasedValidation,
        around: Surroundings,
        *,
        workflows: Mapping[str, WorkflowDefinition],
        prepared: bool,
        apart: Apart,
    ) -> None:
        self._transport = transport
        self._claim = leased.claim
        self._refers = leased.refers
        self._payloads = around.payloads or ExternalPayloads(transport, "worker", None)
        self._around = around
        self._workflows = workflows
        self._prepared = prepared
        self._apart = apart
        # The poll may have been parked for longer than the lease lasts, so its round trip is not charged.
        self._until = leased.exchange.latest(leased.claim.lease_expires_at)

    async def run(self) -> TurnEnd:
        """Decide and tell the server; only cancellation leaves as an exception."""
        outcome, reason = "abandoned", _OVER
        try:
            with trio.move_on_at(self._until):
                outcome, reason = await self._decide()
        except ProctorError as exc:
            reason = "protocol_breach"
            if isinstance(exc, ServerRefused | ServerUnreachable):
                reason = getattr(exc, "reason", None) or "server_unreachable"
            _log.warning("validation_abandoned", update=self._claim.update_name, reason=reason, problem=str(exc))
        self._around.emit(
            {
                "event": "update_validation",
                "workflow_id": self._claim.workflow_id,
                "run_id": self._claim.run_id,
                "workflow_type": self._claim.workflow_type,
                "update": self._claim.update_name,
                "update_id": self._claim.update_id,
                "outcome": outcome,
                "reason": reason,
            }
        )
        # What was not validated is not offered again, so the poller goes on at once.
        return TurnEnd("abandoned" if outcome == "abandoned" else "completed", reason)

    async def _decide(self) -> tuple[str, str]:
        definition = self._workflows.get(self._claim.workflow_type)
        if definition is None:
            known = ", ".join(sorted(self._workflows)) or "none"
            text = f"worker {self._around.worker_id} has no workflow {self._claim.workflow_type!r}; registered: {known}"
            return await self._reject(_FAILED, text, "UpdateValidationFailed")
        try:
            claim = await self._resolved() if self._refers else self._claim
            await self._apart(partial(_checked, definition, claim, prepared=self._prepared))
        except UpdateRejected as exc:
            return await self._reject(_REJECTED, str(exc), exc.exception_type)
        except (ServerRefused, ServerUnreachable):
            raise  # a stored payload could not be fetched
        except Exception as exc:  # noqa: BLE001 - one update's defect must not end the worker
            return await self._reject(_FAILED, f"the update cannot be validated: {exc}", type(exc).__name__)
        await self._send("approve", {})
        return "approved", self._claim.update_name

    async def _resolved(self) -> ValidationClaim:
        """Give the claim with what it refers to; raises PayloadError for what nobody can read."""
        return replace(
            self._claim,
            workflow_arguments=await self._payloads.resolved(self._claim.workflow_arguments),
            update_arguments=await self._payloads.resolved(self._claim.update_arguments),
            history=tuple(await self._payloads.resolved(self._claim.history)),
        )

    async def _reject(self, reason: str, message: str, kind: str) -> tuple[str, str]:
        text = bounded_text(message, _MAX_FAILURE_MESSAGE) or reason
        await self._send("reject", {"failure": {"message": text, "reason": reason, "type": kind}})
        return ("rejected" if reason == _REJECTED else "failed"), reason

    async def _send(self, verdict: str, body: Mapping[str, Any]) -> None:
        claim = {"lease_owner": self._claim.lease_owner, "update_validation_attempt": self._claim.attempt}
        path = f"/worker/update-validation-tasks/{segment(self._claim.task_id)}/{verdict}"
        call = Call("worker", "POST", path, {**claim, **body})
        within = max(0.0, min(OPERATION_LIMIT_SECONDS, self._until - trio.current_time()))
        accepted(call, await self._transport.send(call, within=within))


def _checked(definition: WorkflowDefinition, claim: ValidationClaim, *, prepared: bool) -> dict[str, Any]:
    """Replay and ask the validator. Raises UpdateRejected when it refuses, ProctorError when it cannot be asked."""
    arguments = codec.decode_arguments(claim.update_arguments, claim.payload_codec)
    task = ReplayTask(
        workflow_id=claim.workflow_id,
        run_id=claim.run_id,
        workflow_type=claim.workflow_type,
        payload_codec=claim.payload_codec,
        arguments=claim.workflow_arguments,
        history=claim.history,
        prepared=prepared,
    )
    validate_update(definition, task, claim.update_name, arguments)
    return {}
