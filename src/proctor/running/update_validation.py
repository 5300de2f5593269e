"""One leased update validation: ask the workflow's validator, approve or reject (worker.md §4).

As with a query nothing is decided behind the lease, and what cannot be asked is told as that, never as a rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import trio

from proctor.core.replay.interaction import UpdateRejected, validate_update
from proctor.core.wire.validations import ValidationClaim
from proctor.errors import ProctorError, ServerRefused, ServerUnreachable
from proctor.running.asking import Askable, Asking, Leased, failure
from proctor.running.surroundings import Surroundings
from proctor.running.turn_report import TurnEnd
from proctor.transport.calls import Call, Transport, segment

_REJECTED, _FAILED = "update_validator_rejected", "update_validation_worker_failed"
_OVER = "update_validation_lease_expired"

_log = structlog.get_logger("proctor.update")


class UpdateValidation:
    """Decides one leased validation. Made for one claim, used once."""

    def __init__(
        self, transport: Transport, leased: Leased[ValidationClaim], around: Surroundings, askable: Askable
    ) -> None:
        self._claim = leased.claim
        # The poll may have been parked for longer than the lease lasts, so its round trip is not charged.
        until = leased.exchange.latest(leased.claim.lease_expires_at)
        self._asking = Asking(transport, leased, around, askable, until=until)

    async def run(self) -> TurnEnd:
        """Decide and tell the server; only cancellation leaves as an exception."""
        outcome, reason = "abandoned", _OVER
        name, update_id = self._claim.name, self._claim.update_id
        try:
            with trio.move_on_at(self._asking.until):
                outcome, reason = await self._decide()
        except ProctorError as exc:
            reason = "protocol_breach"
            if isinstance(exc, ServerRefused | ServerUnreachable):
                reason = getattr(exc, "reason", None) or "server_unreachable"
            _log.warning("validation_abandoned", update=name, reason=reason, problem=str(exc))
        self._asking.told("update_validation", update=name, update_id=update_id, outcome=outcome, reason=reason)
        # What was not validated is not offered again, so the poller goes on at once.
        return TurnEnd("abandoned" if outcome == "abandoned" else "completed", reason)

    async def _decide(self) -> tuple[str, str]:
        definition = self._asking.definition
        if definition is None:
            return await self._reject(_FAILED, self._asking.unknown, "UpdateValidationFailed")
        try:
            await self._asking.put(definition, validate_update)
        except UpdateRejected as exc:
            return await self._reject(_REJECTED, str(exc), exc.exception_type)
        except (ServerRefused, ServerUnreachable):
            raise  # a stored payload could not be fetched
        except Exception as exc:  # noqa: BLE001 - one update's defect must not end the worker
            return await self._reject(_FAILED, f"the update cannot be validated: {exc}", type(exc).__name__)
        await self._send("approve", {})
        return "approved", self._claim.name

    async def _reject(self, reason: str, message: str, kind: str) -> tuple[str, str]:
        await self._send("reject", {"failure": failure(message, reason=reason, kind=kind)})
        return ("rejected" if reason == _REJECTED else "failed"), reason

    async def _send(self, verdict: str, body: Mapping[str, Any]) -> None:
        claim = {"lease_owner": self._claim.lease_owner, "update_validation_attempt": self._claim.attempt}
        path = f"/worker/update-validation-tasks/{segment(self._claim.task_id)}/{verdict}"
        await self._asking.send(Call("worker", "POST", path, {**claim, **body}))
