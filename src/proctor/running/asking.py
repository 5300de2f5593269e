"""Asking workflow code one leased question, beside the loop and within the question's time (worker.md §4).

A question is the replay of a run and then a call into its code, which may take long or never end: at the end of its
time it is left alone and nothing is published. What queries and validations make of the answer, and which failures
they tell whom, is left to them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from proctor.core import codec
from proctor.core.attempt import bounded_text
from proctor.core.authority import OPERATION_LIMIT_SECONDS, Exchange
from proctor.core.replay.decision import ReplayTask, WorkflowDefinition
from proctor.core.wire.questions import QuestionClaim
from proctor.running.surroundings import Surroundings
from proctor.transport.calls import Answer, Call, Transport, accepted
from proctor.transport.external import ExternalPayloads

Apart = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function beside the loop; cancelling the wait leaves the function alone."""

Put = Callable[[WorkflowDefinition, ReplayTask, str, list[Any]], Any]
"""Puts a question to replayed code: the workflow, its run, the name and the arguments of what is asked."""

_MAX_FAILURE_MESSAGE = 16 * 1024

C = TypeVar("C", bound=QuestionClaim)


@dataclass(frozen=True, slots=True)
class Leased(Generic[C]):
    """A leased question and the exchange that leased it."""

    claim: C
    exchange: Exchange
    refers: bool = False
    """Whether the claim may hold references to external payloads."""


def in_a_thread(limiter: trio.CapacityLimiter) -> Apart:
    """Give a way to run functions in threads, so many at once; one that never ends keeps its place."""

    async def apart(work: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    return apart


@dataclass(frozen=True, slots=True)
class Askable:
    """What one worker can be asked: its workflows, and how it replays and runs them."""

    workflows: Mapping[str, WorkflowDefinition]
    prepared: bool
    apart: Apart


class Asking(Generic[C]):
    """One leased question while it is asked. `until` is the instant at which its time is over."""

    def __init__(
        self, transport: Transport, leased: Leased[C], around: Surroundings, askable: Askable, *, until: float
    ) -> None:
        self.claim = leased.claim
        self.until = until
        self.payloads = around.payloads or ExternalPayloads(transport, "worker", None)
        self._transport = transport
        self._refers = leased.refers
        self._around = around
        self._askable = askable

    @property
    def definition(self) -> WorkflowDefinition | None:
        """Give the workflow that is asked, None when this worker has none of its type."""
        return self._askable.workflows.get(self.claim.workflow_type)

    @property
    def unknown(self) -> str:
        """Say that this worker has no such workflow."""
        known = ", ".join(sorted(self._askable.workflows)) or "none"
        return f"worker {self._around.worker_id} has no workflow {self.claim.workflow_type!r}; registered: {known}"

    async def put(self, definition: WorkflowDefinition, question: Put) -> Any:
        """Replay the run and put the question.

        Raises PayloadError for arguments that nobody can read, what a stored payload's fetch raises, and whatever the
        question raises.
        """
        claim = await self._resolved() if self._refers else self.claim
        return await self._askable.apart(partial(_put, definition, claim, question, self._askable.prepared))

    async def send(self, call: Call) -> Answer:
        """Exchange something within what is left of the time."""
        within = max(0.0, min(OPERATION_LIMIT_SECONDS, self.until - trio.current_time()))
        return accepted(call, await self._transport.send(call, within=within))

    def told(self, event: str, **facts: str) -> None:
        """Tell the owner of the worker what became of the question."""
        run = {
            "event": event,
            "workflow_id": self.claim.workflow_id,
            "run_id": self.claim.run_id,
            "workflow_type": self.claim.workflow_type,
        }
        self._around.emit(run | facts)

    async def _resolved(self) -> C:
        claim = self.claim
        return replace(
            claim,
            workflow_arguments=await self.payloads.resolved(claim.workflow_arguments),
            arguments=await self.payloads.resolved(claim.arguments),
            history=tuple(await self.payloads.resolved(claim.history)),
        )


def failure(message: str, *, reason: str, kind: str) -> dict[str, str]:
    """Give the wire form of why there is no answer."""
    return {"message": bounded_text(message, _MAX_FAILURE_MESSAGE) or reason, "reason": reason, "type": kind}


def _put(definition: WorkflowDefinition, claim: QuestionClaim, question: Put, prepared: bool) -> Any:
    arguments = codec.decode_arguments(claim.arguments, claim.payload_codec)
    task = ReplayTask(
        workflow_id=claim.workflow_id,
        run_id=claim.run_id,
        workflow_type=claim.workflow_type,
        payload_codec=claim.payload_codec,
        arguments=claim.workflow_arguments,
        history=claim.history,
        prepared=prepared,
    )
    return question(definition, task, claim.name, arguments)
