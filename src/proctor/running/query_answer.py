"""One leased query: look at its claim, replay the run in a thread of its own, answer while somebody still waits.

The answer is the workflow's own code, so it may take long or never end: it runs beside the loop, and at the end of the
query's budget it is left alone and nothing is published. Whatever goes wrong is told to the asker or to nobody; no
query ends the worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import structlog
import trio

from proctor.core import codec
from proctor.core.attempt import bounded_text
from proctor.core.authority import OPERATION_LIMIT_SECONDS, Exchange
from proctor.core.replay.decision import ReplayTask, WorkflowDefinition
from proctor.core.replay.interaction import QueryFailed, answer_query
from proctor.core.wire.queries import QueryClaim, read_query_status
from proctor.errors import PayloadError, ProctorError, ServerRefused, ServerUnreachable
from proctor.running.surroundings import Surroundings
from proctor.running.turn_report import TurnEnd
from proctor.transport.calls import Answer, Call, Transport, accepted, segment
from proctor.transport.external import ExternalPayloads

Apart = Callable[[Callable[[], dict[str, Any]]], Awaitable[dict[str, Any]]]
"""Runs a function beside the loop; cancelling the wait leaves the function alone."""

_MAX_FAILURE_MESSAGE = 16 * 1024
_OVER = "query_execution_budget_expired"
_FINAL = frozenset(
    {
        "query_task_not_found",
        "query_task_not_leased",
        "query_task_timed_out",
        "query_task_attempt_mismatch",
        "lease_owner_mismatch",
        "lease_expired",
    }
)

_log = structlog.get_logger("proctor.query")


@dataclass(frozen=True, slots=True)
class LeasedQuery:
    """A leased query and the exchange that leased it."""

    claim: QueryClaim
    exchange: Exchange
    refers: bool = False
    """Whether the claim may hold references to external payloads."""


def in_a_thread(limiter: trio.CapacityLimiter) -> Apart:
    """Give a way to run functions in threads, so many at once; one that never ends keeps its place."""

    async def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    return apart


class QueryAnswer:
    """Answers one leased query. Made for one claim, used once."""

    def __init__(
        self,
        transport: Transport,
        leased: LeasedQuery,
        around: Surroundings,
        *,
        workflows: Mapping[str, WorkflowDefinition],
        prepared: bool,
        observable: bool,
        apart: Apart,
    ) -> None:
        self._transport = transport
        self._claim = leased.claim
        self._refers = leased.refers
        self._payloads = around.payloads or ExternalPayloads(transport, "worker", None)
        self._around = around
        self._workflows = workflows
        self._prepared = prepared
        self._observable = observable
        self._apart = apart
        self._path = f"/worker/query-tasks/{segment(leased.claim.task_id)}"
        self._until = leased.claim.until(leased.exchange, observed=False)

    async def run(self) -> TurnEnd:
        """Answer or say why there is no answer; only cancellation leaves as an exception."""
        outcome, reason = "abandoned", _OVER
        try:
            with trio.move_on_at(self._until) as budget:
                if self._observable:
                    await self._observe(budget)
                outcome, reason = await self._answer()
        except (ServerRefused, ServerUnreachable) as exc:
            reason = getattr(exc, "reason", None) or "server_unreachable"
            _log.warning("query_abandoned", query=self._claim.query_name, reason=reason, problem=str(exc))
        except ProctorError as exc:
            reason = "protocol_breach"
            _log.warning("query_abandoned", query=self._claim.query_name, reason=reason, problem=str(exc))
        self._around.emit(
            {
                "event": "query_task",
                "workflow_id": self._claim.workflow_id,
                "run_id": self._claim.run_id,
                "workflow_type": self._claim.workflow_type,
                "query": self._claim.query_name,
                "outcome": outcome,
                "reason": reason,
            }
        )
        # A failed query is over for good, so the poller goes on at once.
        return TurnEnd("abandoned" if outcome == "abandoned" else "completed", reason)

    async def _observe(self, budget: trio.CancelScope) -> None:
        """Look at the claim once: what a long poll says of the time left is only bounded by a short round trip."""
        query = {"lease_owner": self._claim.lease_owner, "query_task_attempt": str(self._claim.attempt)}
        answer = await self._send(Call("worker", "GET", f"{self._path}/status", query=query))
        server_time = read_query_status(answer.body, claim=self._claim)
        exchange = Exchange(answer.started, answer.received, server_time)
        self._until = min(self._until, self._claim.until(exchange, observed=True))
        budget.deadline = self._until
        await trio.lowlevel.checkpoint()  # what is over already is not computed

    async def _answer(self) -> tuple[str, str]:
        definition = self._workflows.get(self._claim.workflow_type)
        if definition is None:
            known = ", ".join(sorted(self._workflows)) or "none"
            return await self._fail(
                "query_workflow_type_not_registered",
                f"worker {self._around.worker_id} has no workflow {self._claim.workflow_type!r}; registered: {known}",
            )
        try:
            claim = await self._resolved() if self._refers else self._claim
            result = await self._apart(partial(_computed, definition, claim, prepared=self._prepared))
        except QueryFailed as exc:
            return await self._fail(exc.reason, str(exc))
        except PayloadError as exc:
            return await self._fail("query_payload_decode_failed", str(exc))
        except Exception as exc:  # noqa: BLE001 - one query's defect must not end the worker
            return await self._fail("query_rejected", f"the query broke: {type(exc).__name__}: {exc}")
        size = len(result["result_envelope"]["blob"])
        if size > self._around.max_result_bytes:
            return await self._fail(
                "query_result_encode_failed",
                f"the answer has {size} bytes, more than the {self._around.max_result_bytes} that the server takes",
            )
        sendable = await self._sendable(result)
        try:
            await self._send(Call("worker", "POST", f"{self._path}/complete", self._identity | sendable))
        except ServerRefused as exc:
            if exc.reason in _FINAL or exc.status == 429 or exc.status >= 500:
                raise
            return await self._fail(exc.reason or "query_result_completion_failed", str(exc))
        return "completed", self._claim.query_name

    async def _resolved(self) -> QueryClaim:
        """Give the claim with what it refers to; raises PayloadError for what nobody can read."""
        claim = self._claim
        return replace(
            claim,
            workflow_arguments=await self._payloads.resolved(claim.workflow_arguments),
            query_arguments=await self._payloads.resolved(claim.query_arguments),
            history=tuple(await self._payloads.resolved(claim.history)),
        )

    async def _sendable(self, result: dict[str, Any]) -> dict[str, Any]:
        """Give the answer, a large one stored outside and then not once more as plain JSON beside it."""
        envelope = await self._payloads.offloaded(result["result_envelope"])
        return result if "blob" in envelope else {"result": None, "result_envelope": envelope}

    async def _fail(self, reason: str, message: str) -> tuple[str, str]:
        text = bounded_text(message, _MAX_FAILURE_MESSAGE) or reason
        failure = {"message": text, "reason": reason, "type": "QueryFailed"}
        await self._send(Call("worker", "POST", f"{self._path}/fail", self._identity | {"failure": failure}))
        return "failed", reason

    @property
    def _identity(self) -> dict[str, Any]:
        return {"lease_owner": self._claim.lease_owner, "query_task_attempt": self._claim.attempt}

    async def _send(self, call: Call) -> Answer:
        within = max(0.0, min(OPERATION_LIMIT_SECONDS, self._until - trio.current_time()))
        return accepted(call, await self._transport.send(call, within=within))


def _computed(definition: WorkflowDefinition, claim: QueryClaim, *, prepared: bool) -> dict[str, Any]:
    """Replay and ask; give the answer in both of its wire forms. Raises QueryFailed and PayloadError."""
    arguments = codec.decode_arguments(claim.query_arguments, claim.payload_codec)
    value = answer_query(
        definition,
        ReplayTask(
            workflow_id=claim.workflow_id,
            run_id=claim.run_id,
            workflow_type=claim.workflow_type,
            payload_codec=claim.payload_codec,
            arguments=claim.workflow_arguments,
            history=claim.history,
            prepared=prepared,
        ),
        claim.query_name,
        arguments,
    )
    return {"result": _plain(value), "result_envelope": codec.envelope(value)}


def _plain(value: Any) -> Any:
    """Give an answer as JSON has it, for askers that read no payloads; None when JSON cannot hold all of it."""

    def fits(item: Any) -> bool:
        if isinstance(item, bytes):
            return False
        if isinstance(item, list):
            return all(map(fits, item))
        if isinstance(item, dict):
            return all(map(fits, item.values()))
        return True

    try:
        return value if fits(value) and msgspec.json.encode(value) else None
    except (TypeError, ValueError, OverflowError, RecursionError):  # lone surrogates are a ValueError
        return None
