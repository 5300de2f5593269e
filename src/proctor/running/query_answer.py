"""One leased query: look at its claim, ask the workflow's code, answer while somebody still waits (worker.md §4).

Whatever goes wrong is told to the asker or to nobody; no query ends the worker.
"""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
import trio

from proctor.core import codec
from proctor.core.authority import Exchange
from proctor.core.replay.decision import ReplayTask, WorkflowDefinition
from proctor.core.replay.interaction import QueryFailed, answer_query
from proctor.core.wire.queries import QueryClaim, read_query_status
from proctor.errors import PayloadError, ProctorError, ServerRefused, ServerUnreachable
from proctor.running.asking import Askable, Asking, Leased, failure
from proctor.running.surroundings import Surroundings
from proctor.running.turn_report import TurnEnd
from proctor.transport.calls import Call, Transport, segment

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


class QueryAnswer:
    """Answers one leased query. Made for one claim, used once. `observable`: the server lets claims be looked at."""

    def __init__(
        self,
        transport: Transport,
        leased: Leased[QueryClaim],
        around: Surroundings,
        askable: Askable,
        *,
        observable: bool,
    ) -> None:
        self._claim = leased.claim
        self._most = around.max_result_bytes
        self._observable = observable
        self._path = f"/worker/query-tasks/{segment(leased.claim.task_id)}"
        until = leased.claim.until(leased.exchange, observed=False)
        self._asking = Asking(transport, leased, around, askable, until=until)

    async def run(self) -> TurnEnd:
        """Answer or say why there is no answer; only cancellation leaves as an exception."""
        outcome, reason = "abandoned", _OVER
        try:
            with trio.move_on_at(self._asking.until) as budget:
                if self._observable:
                    await self._observe(budget)
                outcome, reason = await self._answer()
        except (ServerRefused, ServerUnreachable) as exc:
            reason = getattr(exc, "reason", None) or "server_unreachable"
            _log.warning("query_abandoned", query=self._claim.name, reason=reason, problem=str(exc))
        except ProctorError as exc:
            reason = "protocol_breach"
            _log.warning("query_abandoned", query=self._claim.name, reason=reason, problem=str(exc))
        self._asking.told("query_task", query=self._claim.name, outcome=outcome, reason=reason)
        # A failed query is over for good, so the poller goes on at once.
        return TurnEnd("abandoned" if outcome == "abandoned" else "completed", reason)

    async def _observe(self, budget: trio.CancelScope) -> None:
        """Look at the claim once: what a long poll says of the time left is only bounded by a short round trip."""
        query = {"lease_owner": self._claim.lease_owner, "query_task_attempt": str(self._claim.attempt)}
        answer = await self._asking.send(Call("worker", "GET", f"{self._path}/status", query=query))
        server_time = read_query_status(answer.body, claim=self._claim)
        exchange = Exchange(answer.started, answer.received, server_time)
        self._asking.until = min(self._asking.until, self._claim.until(exchange, observed=True))
        budget.deadline = self._asking.until
        await trio.lowlevel.checkpoint()  # what is over already is not computed

    async def _answer(self) -> tuple[str, str]:
        definition = self._asking.definition
        if definition is None:
            return await self._fail("query_workflow_type_not_registered", self._asking.unknown)
        try:
            result = await self._asking.put(definition, _answered)
        except QueryFailed as exc:
            return await self._fail(exc.reason, str(exc))
        except PayloadError as exc:
            return await self._fail("query_payload_decode_failed", str(exc))
        except Exception as exc:  # noqa: BLE001 - one query's defect must not end the worker
            return await self._fail("query_rejected", f"the query broke: {type(exc).__name__}: {exc}")
        size = len(result["result_envelope"]["blob"])
        if size > self._most:
            return await self._fail(
                "query_result_encode_failed",
                f"the answer has {size} bytes, more than the {self._most} that the server takes",
            )
        sendable = await self._sendable(result)
        try:
            await self._asking.send(Call("worker", "POST", f"{self._path}/complete", self._identity | sendable))
        except ServerRefused as exc:
            if exc.reason in _FINAL or exc.status == 429 or exc.status >= 500:
                raise
            return await self._fail(exc.reason or "query_result_completion_failed", str(exc))
        return "completed", self._claim.name

    async def _sendable(self, result: dict[str, Any]) -> dict[str, Any]:
        """Give the answer, a large one stored outside and then not once more as plain JSON beside it."""
        envelope = await self._asking.payloads.offloaded(result["result_envelope"])
        return result if "blob" in envelope else {"result": None, "result_envelope": envelope}

    async def _fail(self, reason: str, message: str) -> tuple[str, str]:
        told = {"failure": failure(message, reason=reason, kind="QueryFailed")}
        await self._asking.send(Call("worker", "POST", f"{self._path}/fail", self._identity | told))
        return "failed", reason

    @property
    def _identity(self) -> dict[str, Any]:
        return {"lease_owner": self._claim.lease_owner, "query_task_attempt": self._claim.attempt}


def _answered(definition: WorkflowDefinition, task: ReplayTask, name: str, arguments: list[Any]) -> dict[str, Any]:
    """Give the answer in both of its wire forms."""
    value = answer_query(definition, task, name, arguments)
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
