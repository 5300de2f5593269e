"""The calls that one claim makes: each sends one operation and gives back a validated receipt, or raises.

Nothing is decided here. A refusal is `ServerRefused`, silence is `ServerUnreachable`, a contradiction is
`ProtocolBreach`; what they mean for the claim is up to the turn and the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from proctor.core.authority import OPERATION_LIMIT_SECONDS, AttemptDeadlines, Exchange
from proctor.core.replay.decision import StreamCursor
from proctor.core.wire.cancellation import CancellationObservation, Delivery, DeliveryBoundary, read_delivery
from proctor.core.wire.checkpoint import (
    AdmittedGroup,
    attempt_nonce,
    checkpoint_id,
    read_checkpoint,
    read_group_checkpoint,
)
from proctor.core.wire.control import Active, StopOrder, read_control, read_heartbeat
from proctor.core.wire.outcome import Closed, read_acknowledgement, read_outcome, read_recovery
from proctor.core.wire.prepare import AttemptIdentity, ClaimIdentity, Cleanup, Prepared, Timeouts, read_prepare
from proctor.core.wire.tasks import Event, append_page, read_claim_lease, read_claim_renewal, read_history_page
from proctor.errors import ProtocolBreach
from proctor.transport.calls import Answer, Call, Transport, accepted, segment
from proctor.transport.external import ExternalPayloads


class ClaimCalls:
    """The operations of one claim of one workflow task."""

    def __init__(self, transport: Transport, claim: ClaimIdentity, payloads: ExternalPayloads | None = None) -> None:
        self.claim = claim
        self.payloads = payloads or ExternalPayloads(transport, "worker", None)
        self._transport = transport
        self._task = f"/worker/workflow-tasks/{segment(claim.task_id)}"
        self._local = f"{self._task}/local-activities"

    async def _post(self, path: str, body: Mapping[str, Any], *, within: float = OPERATION_LIMIT_SECONDS) -> Answer:
        fenced = {
            **body,
            "lease_owner": self.claim.lease_owner,
            "workflow_task_attempt": self.claim.epoch,
        }
        call = Call("worker", "POST", path, fenced)
        return accepted(call, await self._transport.send(call, within=within))

    async def history(self, token: str, *, before: Sequence[Event] = ()) -> tuple[Event, ...]:
        """Give `before` and all history after it, page by page from `token` (worker.md §2.2)."""
        events = tuple(before)
        seen = {token}
        following: str | None = token
        while following is not None:
            answer = await self._post(f"{self._task}/history", {"next_history_page_token": following})
            body = await self.payloads.resolved(answer.body) if answer.refers else answer.body
            page = read_history_page(body, claim=self.claim)
            events = append_page(events, page, seen_tokens=seen)
            following = page.next_page_token
        return events

    async def renew_claim(self, known: CancellationObservation | None) -> CancellationObservation | None:
        """Renew the lease of the hosting task and give the cancellation it shows (worker.md §2.3)."""
        answer = await self._post(f"{self._task}/heartbeat", {})
        return read_claim_renewal(answer.body, claim=self.claim, known=known)

    async def renew_lease(self, *, within: float) -> float:
        """Renew the lease of the hosting task; gives the local instant until which the claim is certainly ours.

        The answer names no time of the server. Its Date header stands for it, rounded up, so the instant can only come
        too early; without one this machine's own clock does.
        """
        answer = await self._post(f"{self._task}/heartbeat", {}, within=within)
        if read_claim_renewal(answer.body, claim=self.claim, known=None) is not None:
            raise ProtocolBreach(
                "the claim of an ordinary worker shows a cooperative cancellation, which it cannot deliver",
                rule="cancellation §1",
            )
        server_time = answer.server_time or datetime.now(UTC)
        return answer.started + (read_claim_lease(answer.body) - server_time).total_seconds()

    async def complete(
        self,
        commands: Sequence[Mapping[str, Any]],
        *,
        cursors: Sequence[StreamCursor] = (),
        waits: Sequence[StreamCursor] = (),
        within: float = OPERATION_LIMIT_SECONDS,
    ) -> None:
        """Submit the commands of this turn; the claim is over afterwards (worker.md §2.4, commands.md §0).

        Their large payloads must have been stored outside before: that takes longer than a completion may.
        """
        body: dict[str, Any] = {"commands": list(commands)}
        if cursors:
            body["message_stream_cursors"] = [
                {"stream_name": one.stream_name, "through_position": one.position} for one in cursors
            ]
        if waits:
            body["message_stream_waits"] = [
                {"stream_name": one.stream_name, "after_position": one.position} for one in waits
            ]
        await self._post(f"{self._task}/complete", body, within=within)

    async def fail(self, failure: Mapping[str, Any]) -> None:
        """Report that this turn failed; the run stays open (worker.md §2.5)."""
        await self._post(f"{self._task}/fail", {"failure": dict(failure)})

    async def checkpoint(self, commands: Sequence[Mapping[str, Any]], *, start: int) -> str:
        """Make the commands before a local call durable and give the token to reload history from (§2.1)."""
        identity = checkpoint_id(self.claim, start=start, commands=commands)
        answer = await self._post(
            f"{self._local}/checkpoint",
            {"checkpoint_id": identity, "start_sequence": start, "commands": await self._stored(commands)},
        )
        return read_checkpoint(answer.body, claim=self.claim, identity=identity, start=start, commands=commands)

    async def checkpoint_group(self, commands: Sequence[Mapping[str, Any]], *, start: int) -> AdmittedGroup:
        """Admit a whole group with local members, or nothing of it (§2.2)."""
        identity = checkpoint_id(self.claim, start=start, commands=commands)
        answer = await self._post(
            f"{self._local}/checkpoint-group",
            {"checkpoint_id": identity, "start_sequence": start, "commands": await self._stored(commands)},
        )
        return read_group_checkpoint(answer.body, claim=self.claim, identity=identity, start=start, commands=commands)

    async def prepare(
        self, descriptor: Mapping[str, Any], *, sequence: int, timeouts: Timeouts, cleanup: Cleanup | None = None
    ) -> tuple[Prepared, Exchange]:
        """Ask for the admission of one attempt (prepared-local.md §2.3); large arguments were stored outside before."""
        nonce = attempt_nonce(self.claim, sequence=sequence)
        answer = await self._post(
            f"{self._local}/prepare",
            {"sequence": sequence, "worker_attempt_id": nonce, "descriptor": descriptor},
        )
        prepared = read_prepare(answer.body, claim=self.claim, nonce=nonce, timeouts=timeouts, cleanup=cleanup)
        return prepared, Exchange(answer.started, answer.received, prepared.server_time)

    async def recover(
        self, descriptor: Mapping[str, Any], *, sequence: int, execution_id: str, attempt_id: str
    ) -> Closed:
        """Close an attempt whose claim is gone (prepared-local.md §2.8)."""
        body = {"sequence": sequence, "descriptor": await self.payloads.offloaded(descriptor)}
        answer = await self._post(f"{self._local}/recover", body)
        return read_recovery(answer.body, claim=self.claim, execution_id=execution_id, attempt_id=attempt_id)

    async def control(
        self,
        identity: AttemptIdentity,
        deadlines: AttemptDeadlines,
        *,
        within: float,
        cleanup: Cleanup | None = None,
    ) -> tuple[Active | StopOrder, Exchange | None]:
        """Renew both leases and learn whether the attempt may go on (prepared-local.md §2.4)."""
        answer = await self._post(self._attempt(identity, "control"), {"renew_lease": True}, within=within)
        return _exchanged(read_control(answer.body, identity=identity, deadlines=deadlines, cleanup=cleanup), answer)

    async def heartbeat(
        self,
        identity: AttemptIdentity,
        deadlines: AttemptDeadlines,
        details: Mapping[str, Any],
        *,
        heartbeat_timeout: int | None,
        within: float,
        cleanup: Cleanup | None = None,
    ) -> tuple[Active | StopOrder, Exchange | None]:
        """Record application progress; it renews no lease (prepared-local.md §2.5)."""
        progress = {"details": details} if details else {}
        answer = await self._post(self._attempt(identity, "heartbeat"), {"progress": progress}, within=within)
        receipt = read_heartbeat(
            answer.body,
            identity=identity,
            deadlines=deadlines,
            heartbeat_timeout=heartbeat_timeout,
            cleanup=cleanup,
        )
        return _exchanged(receipt, answer)

    async def outcome(self, identity: AttemptIdentity, report: Mapping[str, Any], *, within: float) -> Closed:
        """Publish how the attempt ended (prepared-local.md §2.6)."""
        answer = await self._post(self._attempt(identity, "outcome"), {"report": dict(report)}, within=within)
        return read_outcome(answer.body, identity=identity)

    async def acknowledge(self, identity: AttemptIdentity, request_id: str) -> str:
        """Send the receipt that the stopped child is gone; gives its history event (prepared-local.md
        §2.7).
        """
        answer = await self._post(self._attempt(identity, "acknowledge-cancellation"), {"request_id": request_id})
        return read_acknowledgement(answer.body)

    async def deliver(self, request_id: str, boundary: DeliveryBoundary) -> Delivery:
        """Commit the call at which the workflow code learns of its cancellation (worker.md §2.7)."""
        answer = await self._post(
            f"{self._task}/deliver-cancellation",
            {
                "request_id": request_id,
                "sequence": boundary.sequence,
                "call_kind": boundary.call_kind,
                "sequence_span": boundary.sequence_span,
                **boundary.operation(),
            },
        )
        return read_delivery(
            answer.body,
            task_id=self.claim.task_id,
            run_id=self.claim.run_id,
            request_id=request_id,
            boundary=boundary,
        )

    async def _stored(self, commands: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        stored: list[Mapping[str, Any]] = await self.payloads.offloaded(list(commands))
        return stored

    def _attempt(self, identity: AttemptIdentity, operation: str) -> str:
        return f"{self._local}/{segment(identity.attempt_id)}/{operation}"


def _exchanged(receipt: Active | StopOrder, answer: Answer) -> tuple[Active | StopOrder, Exchange | None]:
    if isinstance(receipt, StopOrder):
        return receipt, None
    return receipt, Exchange(answer.started, answer.received, receipt.server_time)
