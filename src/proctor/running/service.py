"""A worker at work: registered, polling, draining, stopped. Three nested parts of one run.

Polling ends first, running attempts get a grace, then their scope is cancelled; the registration is ended
last, and only if every child is proven gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog
import trio

from proctor.core.negotiation import Terms
from proctor.core.replay.decision import WorkflowDefinition
from proctor.core.wire.queries import QueryClaim, read_query_poll
from proctor.core.wire.queued import read_activity_poll
from proctor.core.wire.tasks import WorkflowTask, read_poll
from proctor.core.wire.validations import KIND as VALIDATION
from proctor.core.wire.validations import ValidationClaim, is_validation, read_validation
from proctor.errors import StopUnconfirmed
from proctor.running.asking import Apart, Askable, Leased, in_a_thread
from proctor.running.ordinary_turn import OrdinaryTurn
from proctor.running.outages import PollOutage
from proctor.running.polling import HISTORY_PAGE_SIZE, Errand, Poller
from proctor.running.query_answer import QueryAnswer
from proctor.running.queued_attempt import LeasedAttempt, QueuedAttempt, QueuedTerms, exchange_of
from proctor.running.registration import FreeSlots, Registrar, WorkerIdentity, discover
from proctor.running.surroundings import Surroundings
from proctor.running.turn import Replay, Turn
from proctor.running.turn_report import TurnEnd
from proctor.running.update_validation import UpdateValidation
from proctor.transport.calls import Answer, Transport
from proctor.transport.external import ExternalPayloads

QUERY_POLLERS = 2
"""How many queries a worker answers at once, beside its slots: one that takes long does not hold up the other."""

_DEREGISTRATION_SECONDS = 5.0

T = TypeVar("T")

_log = structlog.get_logger("proctor.worker")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How one worker runs. `drain_grace` are the seconds that running attempts get after a drain."""

    identity: WorkerIdentity
    poll_seconds: int = 30
    drain_grace: float = 30.0


class WorkerService:
    """Runs one worker over a transport and a place for children.

    `speaking` gives the transport that announces a protocol version, `transport` where there is nothing to announce;
    `apart` runs what answers queries beside the loop, in threads if nothing else is given.
    """

    def __init__(
        self,
        options: ServiceOptions,
        transport: Transport,
        *,
        workflows: Mapping[str, WorkflowDefinition],
        replay: Replay,
        surroundings: Surroundings,
        speaking: Callable[[str], Transport] | None = None,
        apart: Apart | None = None,
    ) -> None:
        self._options = options
        self._speaking = speaking or (lambda protocol: transport)
        self._transport = transport
        self._workflows = workflows
        self._replay = replay
        self._around = replace(surroundings, on_unproven=self._note_unproven, on_place_kept=self._lose_place)
        self._max_result_bytes = surroundings.max_result_bytes
        self._terms: Terms
        self._queries_offered = trio.Event()
        self._drain = trio.Event()
        self._pollers: list[Poller[WorkflowTask | Leased[ValidationClaim]]] = []
        self._queued_pollers: list[Poller[LeasedAttempt]] = []
        self._query_pollers: list[Poller[Leased[QueryClaim]]] = []
        self._askable = Askable(
            workflows=workflows,
            prepared=options.identity.profile == "supervised",
            apart=apart or in_a_thread(trio.CapacityLimiter(QUERY_POLLERS + options.identity.slots)),
        )
        self._outage = PollOutage()
        self._unproven: list[BaseException] = []
        self._places_left = max(1, options.identity.slots)

    def drain(self) -> None:
        """Stop polling; running attempts may end within the grace. May be called more than once."""
        if self._drain.is_set():
            return
        self._around.emit({"event": "draining", "grace_seconds": self._options.drain_grace})
        self._drain.set()
        for poller in self._all_pollers():
            poller.polling.cancel()

    async def run(self) -> None:
        """Work until drained or cancelled.

        Raises NegotiationRefused, ServerUnreachable and ServerRefused before anything is claimed,
        AuthorityLost when another worker takes the id over, and StopUnconfirmed at the end when a child was
        not proven gone.
        """
        identity = self._options.identity
        terms = await discover(self._transport, identity.profile, validates_updates=identity.validates_updates)
        self._around = replace(self._around, places=trio.CapacityLimiter(self._places_left))
        self._agree(terms)
        registrar = Registrar(self._transport, identity, terms, free_slots=self._free_slots, agreed=self._agree)
        await registrar.register()
        self._around.emit(
            {
                "event": "registered",
                "worker_id": identity.worker_id,
                "task_queue": identity.task_queue,
                "capabilities": list(terms.capabilities),
                "workflows": list(identity.workflow_types),
                "activities": sorted(self._around.activity_types),
                "slots": identity.slots,
            }
        )
        try:
            await self._serve(registrar)
        finally:
            await self._leave(registrar)
            if self._unproven:
                # Also while being cancelled: the caller must learn that a child may still run.
                raise self._unconfirmed()

    def _agree(self, terms: Terms) -> Transport:
        """Work on these terms from now on, over the transport that is given.

        What runs already goes on announcing the terms that it began with: a server that does not speak them any more
        takes nothing of it.
        """
        self._terms = terms
        self._transport = self._speaking(terms.protocol)
        if terms.query_tasks:
            self._queries_offered.set()
        self._around = replace(
            self._around,
            groups="prepared_local_activity_groups" in terms.capabilities,
            memo_updates=terms.memo_updates,
            payloads=ExternalPayloads(self._transport, "worker", terms.external),
            max_result_bytes=terms.max_result_bytes or self._max_result_bytes,
        )
        return self._transport

    async def _serve(self, registrar: Registrar) -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(registrar.beat)
            async with trio.open_nursery() as work:
                identity = self._options.identity
                for _ in range(identity.slots if identity.workflow_types else 0):
                    self._pollers.append(self._poller(registrar, self._workflow_errand()))
                for _ in range(identity.queued_slots):
                    self._queued_pollers.append(self._poller(registrar, self._queued_errand()))
                for _ in range(QUERY_POLLERS if identity.workflow_types else 0):
                    self._query_pollers.append(self._poller(registrar, self._query_errand()))
                work.start_soon(self._use_the_slots)
                for query_poller in self._query_pollers:
                    work.start_soon(query_poller.run)
                outer.start_soon(self._end_after_grace, work.cancel_scope)
            outer.cancel_scope.cancel()

    async def _use_the_slots(self) -> None:
        async with trio.open_nursery() as slots:
            for poller in self._pollers:
                slots.start_soon(poller.run)
            for queued_poller in self._queued_pollers:
                slots.start_soon(queued_poller.run)
        self.drain()  # unless it drains already every slot is lost, and a worker without any is to end loudly

    def _poller(self, registrar: Registrar, errand: Errand[T]) -> Poller[T]:
        identity = self._options.identity
        return Poller(
            lambda: self._transport,
            worker_id=identity.worker_id,
            task_queue=identity.task_queue,
            wait_seconds=lambda: min(self._options.poll_seconds, self._terms.max_poll_seconds),
            build_id=identity.build_id,
            errand=errand,
            draining=self._drain.is_set,
            on_stale=registrar.missed,
            outage=self._outage,
        )

    def _workflow_errand(self) -> Errand[WorkflowTask | Leased[ValidationClaim]]:
        identity = self._options.identity

        def read(answer: Answer) -> WorkflowTask | Leased[ValidationClaim] | None:
            if not identity.validates_updates or not is_validation(answer.body):
                return read_poll(answer.body, worker_id=identity.worker_id, refers=answer.refers)
            claim = read_validation(answer.body, worker_id=identity.worker_id, task_queue=identity.task_queue)
            return Leased(claim, exchange_of(answer, claim.server_time), answer.refers)

        extra: dict[str, Any] = {"history_page_size": HISTORY_PAGE_SIZE}
        if identity.validates_updates:
            extra["task_kinds"] = ["workflow", VALIDATION]
        return Errand("/worker/workflow-tasks/poll", "wf-poll", read, self._work, extra)

    def _queued_errand(self) -> Errand[LeasedAttempt]:
        identity = self._options.identity

        def read(answer: Answer) -> LeasedAttempt | None:
            task = read_activity_poll(
                answer.body,
                worker_id=identity.worker_id,
                task_queue=identity.task_queue,
                renewable=self._terms.activity_lease_renewal,
            )
            if task is None:
                return None
            return LeasedAttempt(replace(task, refers=answer.refers), exchange_of(answer, task.server_time))

        async def work(leased: LeasedAttempt) -> TurnEnd:
            agreed = QueuedTerms(self._terms.activity_lease_renewal, cooperative=identity.profile == "supervised")
            return await QueuedAttempt(self._transport, leased, self._around, agreed).run()

        return Errand(path="/worker/activity-tasks/poll", prefix="activity-poll", read=read, work=work)

    def _query_errand(self) -> Errand[Leased[QueryClaim]]:
        identity = self._options.identity

        def read(answer: Answer) -> Leased[QueryClaim] | None:
            claim = read_query_poll(
                answer.body,
                worker_id=identity.worker_id,
                task_queue=identity.task_queue,
                observable=self._terms.query_task_authority,
            )
            return None if claim is None else Leased(claim, exchange_of(answer, claim.server_time), answer.refers)

        async def work(leased: Leased[QueryClaim]) -> TurnEnd:
            observable = self._terms.query_task_authority
            return await QueryAnswer(self._transport, leased, self._around, self._askable, observable=observable).run()

        offered = self._queries_offered.wait
        return Errand(path="/worker/query-tasks/poll", prefix="query-poll", read=read, work=work, offered=offered)

    def _note_unproven(self, error: BaseException) -> None:
        _log.error("stop_unconfirmed", problem=str(error))
        self._unproven.append(error)

    def _lose_place(self) -> None:
        """Take nothing more when no child of a workflow task has a place left: its claim would wait for ever."""
        self._places_left -= 1
        if self._places_left == 0:
            self.drain()

    async def _work(self, task: WorkflowTask | Leased[ValidationClaim]) -> TurnEnd:
        if isinstance(task, Leased):
            return await UpdateValidation(self._transport, task, self._around, self._askable).run()
        kind = OrdinaryTurn if self._options.identity.profile == "ordinary" else Turn
        turn = kind(
            self._transport,
            task,
            workflows=self._workflows,
            replay=self._replay,
            surroundings=self._around,
            draining=self._drain.is_set,
        )
        return await turn.run()

    def _all_pollers(self) -> list[Poller[Any]]:
        return [*self._pollers, *self._queued_pollers, *self._query_pollers]

    def _free_slots(self) -> FreeSlots:
        """Give the slots that could take a task now: none while draining."""
        identity = self._options.identity
        if self._drain.is_set():
            return FreeSlots(0, 0)
        workflow = identity.slots if identity.workflow_types else 0
        return FreeSlots(
            workflow - sum(poller.busy for poller in self._pollers),
            identity.queued_slots - sum(poller.busy for poller in self._queued_pollers),
        )

    async def _end_after_grace(self, work: trio.CancelScope) -> None:
        await self._drain.wait()
        await trio.sleep(self._options.drain_grace)
        self._around.emit({"event": "stopping", "reason": "drain_grace_over"})
        work.cancel()

    async def _leave(self, registrar: Registrar) -> None:
        """Deregister, unless a child may still run: the server must not give its work to others as if it
        were gone.
        """
        if self._unproven:
            _log.error("registration_kept", reason="a child is not proven gone")
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _DEREGISTRATION_SECONDS):
            deregistered = await registrar.deregister()
            self._around.emit({"event": "deregistered" if deregistered else "registration_left"})

    def _unconfirmed(self) -> StopUnconfirmed:
        texts = "; ".join(str(error) for error in self._unproven)
        error = StopUnconfirmed(
            f"{len(self._unproven)} slots end with a child that is not proven gone: "
            f"{texts}. Nothing was published for it and the registration was kept; look at the named process"
        )
        error.__cause__ = self._unproven[0]
        return error
