"""The life of this worker's registration: register, beat, deregister behind its fence (worker.md §1).

Deregistration is for the caller to order, and only after everything in flight has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from proctor.core.negotiation import (
    QUERY_TASKS,
    UPDATE_VALIDATION,
    WORKFLOW_UPDATES,
    Terms,
    negotiate,
    require_update_validation,
)
from proctor.core.wire.registration import (
    Registration,
    heartbeat_interval,
    read_deregistration,
    read_registration,
    retry_deregistration_after,
)
from proctor.errors import AuthorityLost, ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.running.process_facts import ProcessFacts
from proctor.transport.calls import Call, Transport, accepted, refusal, segment
from proctor.version import __version__

DISCOVERY_SECONDS = 15.0
_REGISTER_SECONDS = 15.0
_BEAT_SECONDS = 10.0
_DEFAULT_INTERVAL = 10.0
_RETRY_FIRST, _RETRY_LAST = 0.1, 1.0

UNSUPPORTED_VERSION = "unsupported_protocol_version"
"""What a server says that came back with an older worker protocol than was agreed on (transport.md §6)."""

_log = structlog.get_logger("proctor.registration")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What this worker says of itself when it registers."""

    worker_id: str
    task_queue: str
    workflow_types: tuple[str, ...]
    slots: int
    build_id: str | None = None
    profile: str = "supervised"
    queued_slots: int = 0
    activity_types: tuple[str, ...] = ()
    """The activities that are offered to the queue; none without queued slots."""
    command_contracts: Mapping[str, Any] = field(default_factory=dict)
    """By workflow type, what its runs can be told and asked."""

    @property
    def own_capabilities(self) -> tuple[str, ...]:
        """What the workflows of this worker can do, as the flat list spells it."""
        updates = any(contract.get("updates") for contract in self.command_contracts.values())
        return (
            *((WORKFLOW_UPDATES,) if updates else ()),
            *((UPDATE_VALIDATION,) if self.validates_updates else ()),
        )

    @property
    def validates_updates(self) -> bool:
        """Whether a workflow of this worker has a validator."""
        return any(contract.get("update_validators") for contract in self.command_contracts.values())


@dataclass(frozen=True, slots=True)
class FreeSlots:
    """How many tasks could be taken now."""

    workflow: int
    queued: int


async def discover(transport: Transport, profile: str = "supervised", *, validates_updates: bool = False) -> Terms:
    """Read cluster info and agree on `profile`, and on the validation of updates where workflows have it.

    Raises NegotiationRefused, ServerUnreachable, ServerRefused.
    """
    call = Call("discovery", "GET", "/cluster/info")
    answer = accepted(call, await transport.send(call, within=DISCOVERY_SECONDS))
    terms = negotiate(profile, answer.body)
    if validates_updates:
        require_update_validation(answer.body)
    return terms


class Registrar:
    """Keeps one worker registered. `free_slots` gives the idle slots whenever it is asked.

    `agreed` is told the terms of every later agreement before the worker is registered on them, and gives the transport
    that announces them.
    """

    def __init__(
        self,
        transport: Transport,
        identity: WorkerIdentity,
        terms: Terms,
        *,
        free_slots: Callable[[], FreeSlots],
        agreed: Callable[[Terms], Transport],
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._terms = terms
        self._free_slots = free_slots
        self._agreed = agreed
        self._facts = ProcessFacts()
        self._registration: Registration | None = None
        self._superseded = False
        self._wanted = trio.Event()

    async def register(self) -> Registration:
        """Register a new incarnation. Raises ServerRefused, ServerUnreachable, ProtocolBreach."""
        call = Call("worker", "POST", "/worker/register", self._body())
        answer = accepted(call, await self._transport.send(call, within=_REGISTER_SECONDS))
        self._registration = read_registration(
            answer.body,
            worker_id=self._identity.worker_id,
            fenced=self._terms.fenced_deregistration,
            default_interval=_DEFAULT_INTERVAL,
        )
        _log.info("registered", worker=self._identity.worker_id, queue=self._identity.task_queue)
        return self._registration

    def missed(self) -> None:
        """Say that the server calls this registration unknown or stale; the next beat comes at once and finds out."""
        self._wanted.set()

    async def beat(self) -> None:
        """Send worker heartbeats until cancelled.

        A failed beat is logged and repeated at the next interval. A server that has forgotten the worker, or does not
        speak the agreed version any more, gets a new registration. Raises AuthorityLost when another worker has taken
        this worker id over, and NegotiationRefused when a server that came back offers less than the profile needs.
        """
        assert self._registration is not None
        interval = self._registration.heartbeat_interval
        registered = True
        while True:
            with trio.move_on_after(interval):
                await self._wanted.wait()
            self._wanted = trio.Event()
            call = Call(
                "worker",
                "POST",
                "/worker/heartbeat",
                {
                    "worker_id": self._identity.worker_id,
                    "task_slots": self._slots(),
                    "process_metrics": self._facts.now(),
                },
            )
            try:
                answer = accepted(call, await self._transport.send(call, within=_BEAT_SECONDS))
            except ServerRefused as exc:
                if exc.reason == "worker_registration_superseded":
                    self._superseded = True
                    raise AuthorityLost(
                        f"another worker has registered as {self._identity.worker_id!r}; this one stops. "
                        "Give each worker an id of its own",
                        reason=exc.reason,
                    ) from exc
                if exc.reason in ("worker_not_registered", UNSUPPORTED_VERSION):
                    registered = False
                else:
                    _log.warning("worker_heartbeat_failed", problem=str(exc))
            except ServerUnreachable as exc:
                _log.warning("worker_heartbeat_failed", problem=str(exc))
            else:
                interval = heartbeat_interval(answer.body, default=interval)
            if not registered:
                registered = await self._register_again()

    async def _register_again(self) -> bool:
        """Agree with the server as it is now, and register on that; True when that succeeded."""
        try:
            self._terms = await discover(
                self._transport, self._identity.profile, validates_updates=self._identity.validates_updates
            )
            self._transport = self._agreed(self._terms)
            await self.register()
        except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
            _log.warning("registration_failed", problem=str(exc))
            return False
        return True

    async def deregister(self) -> bool:
        """End this registration; True when the server confirmed it. Repeats only what may be repeated.

        The caller bounds the time. A refusal or a contradiction is logged and ends it.
        """
        registration = self._registration
        if registration is None:
            return True
        if self._superseded and registration.fence is None:
            return False  # without a fence this would end the registration of the worker that has the id now
        pause = _RETRY_FIRST
        while True:
            call = self._deregistration(registration)
            try:
                answer = await self._transport.send(call, within=_BEAT_SECONDS)
            except ServerUnreachable as exc:
                if registration.fence is None:
                    _log.warning("deregistration_failed", problem=str(exc))
                    return False
                await trio.sleep(pause)
                pause = min(_RETRY_LAST, pause * 2)
                continue
            if 200 <= answer.status < 300:
                try:
                    recovered = read_deregistration(answer.body, registration=registration)
                except ProtocolBreach as exc:
                    _log.warning("deregistration_failed", problem=str(exc))
                    return False
                _log.info("deregistered", worker=registration.worker_id, recovered_workflow_tasks=recovered)
                return True
            if registration.fence is None and answer.status == 404:
                return True  # already gone
            after = retry_deregistration_after(answer.body, registration=registration)
            if answer.status != 503 or after is None:
                _log.warning("deregistration_refused", problem=str(refusal(call, answer)))
                return False
            await trio.sleep(after)

    def _deregistration(self, registration: Registration) -> Call:
        path = f"/worker/registrations/{segment(registration.worker_id)}"
        if registration.fence is None:
            return Call("worker", "DELETE", path, single=True)
        body = {"registration_token": registration.fence}
        return Call("worker", "POST", f"{path}/deregister", body, single=True)

    def _slots(self) -> Mapping[str, int]:
        free = self._free_slots()
        return {"workflow_available": free.workflow, "activity_available": free.queued, "session_available": 0}

    def _body(self) -> Mapping[str, Any]:
        identity = self._identity
        types: Sequence[str] = identity.workflow_types
        body: dict[str, Any] = {
            "worker_id": identity.worker_id,
            "task_queue": identity.task_queue,
            "runtime": "python",
            "sdk_version": f"proctor/{__version__}",
            "supported_workflow_types": list(types),
            "supported_activity_types": list(identity.activity_types if identity.queued_slots else ()),
            "capabilities": [
                *(name for name in self._terms.capabilities if types or name != QUERY_TASKS),
                *identity.own_capabilities,
            ],
            "capability_manifest": dict(self._terms.manifest),
            "max_concurrent_workflow_tasks": identity.slots if types else 0,
            "max_concurrent_activity_tasks": identity.queued_slots,
            "task_slots": self._slots(),
            "process_metrics": self._facts.now(),
            "heartbeat_interval_seconds": int(_DEFAULT_INTERVAL),
        }
        if types:
            body["workflow_command_contracts"] = dict(identity.command_contracts)
        if identity.build_id is not None:
            body["build_id"] = identity.build_id
        return body
