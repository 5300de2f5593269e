"""The world of the claim model: a network that can do anything, children whose ends are drawn, and the referee.

The shells under test are the real ones (`SiblingsRun`, `LocalCallRun`, `AttemptKeeper`, `QueuedAttempt`). The referee
knows the truth, what each worker was told, and what became of each child; it judges every call at the moment it is
sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proctor.core.attempt import ChildEnd, Raised, Returned, StopCause, Unproven, WasStopped
from proctor.core.authority import OPERATION_LIMIT_SECONDS, AttemptDeadlines, Exchange
from proctor.core.codec import encode, encode_bytes, envelope
from proctor.core.instants import parse_instant
from proctor.core.jobs import Job
from proctor.core.replay.decision import LocalCall
from proctor.core.wire.outcome import Closed
from proctor.core.wire.prepare import ClaimIdentity
from proctor.core.wire.queued import QueuedTask
from proctor.core.wire.tasks import WorkflowTask
from proctor.errors import ProtocolBreach, ServerRefused, ServerUnreachable, StopUnconfirmed
from proctor.running.claim import ClaimCalls
from proctor.running.local_call import Acknowledged
from proctor.running.queued_attempt import LeasedAttempt, QueuedAttempt, QueuedTerms
from proctor.running.siblings import SiblingsRun
from proctor.running.surroundings import Surroundings
from proctor.transport.calls import Answer, Call
from running.claims_truth import HEARTBEAT, MOST_ATTEMPTS, START_TO_CLOSE, Attempt, Body, Reply, Truth

_LATEST = 1e-6
"""Rounding of instants on the wire."""
_DEADLINE = "local_activity_deadline_expired"

LIES: dict[str, list[tuple[str, Any]]] = {
    "prepare": [("prepared", 1), ("worker_attempt_id", "another"), ("workflow_task_attempt", 99), ("lease_owner", "x"),
                ("activity_attempt_id", " "), ("lease_expires_at", "2020-01-01T00:00:00Z"), ("reason", "why"),
                ("heartbeat_deadline_at", None), ("start_to_close_deadline_at", None), ("workflow_task_id", "x"),
                ("cancellation_cleanup", {}), ("attempt_number", True)],
    "control": [("active", "yes"), ("renewed", "yes"), ("stop_required", None), ("lease_owner", "x"), ("reason", 7),
                ("workflow_task_attempt", 99), ("workflow_task_id", "x"), ("activity_attempt_id", "x"),
                ("activity_execution_id", "x"), ("start_to_close_deadline_at", None), ("heartbeat_recorded", 1),
                ("heartbeat_deadline_at", "2030-01-01T00:00:00Z"), ("cancellation_cleanup", {})],
    "heartbeat": [("active", "yes"), ("renewed", 0), ("lease_owner", "x"), ("workflow_task_attempt", True),
                  ("heartbeat_recorded", None), ("activity_attempt_id", "x"), ("schedule_to_close_deadline_at", "now")],
    "outcome": [("recorded", 1), ("worker_attempt_id", "x"), ("workflow_task_attempt", 99), ("event_type", "Other"),
                ("activity_attempt_id", "x"), ("claim_released", 7), ("created_task_ids", None), ("recorded_at", 1)],
    "acknowledge-cancellation": [("acknowledged", "yes"), ("history_event_id", None), ("reason", "why")],
    "recover": [("recovered", 1), ("callback_stop_state", "stopped"), ("activity_attempt_id", "x")],
    "renew-lease": [("lease_renewed", 1), ("activity_attempt_id", "x"), ("lease_owner", "x"), ("attempt_number", 99),
                    ("lease_expires_at", "2020-01-01T00:00:00Z")],
    "status": [("activity_attempt_id", "x"), ("lease_owner", "x"), ("can_continue", "yes"), ("cancel_requested", 0)],
}  # fmt: skip


@dataclass
class Flight:
    """One call on its way."""

    call: Call
    claim: ClaimIdentity
    operation: str
    attempt: Attempt | None
    serve: Callable[[], Reply]
    reply: Reply | None = None
    lease: float = 0.0
    """True end of the claim's lease when the server served it."""
    lied: bool = False
    over: trio.Event = field(default_factory=trio.Event)


class Child:
    """One child: its handler ends when the world says so, and a stop is proven when the world says so."""

    def __init__(self, job: Job, reins: ChildReins, on_heartbeat: Callable[[bytes], None]) -> None:
        self.state: Literal["running", "stopping", "gone", "unproven"] = "running"
        self.cause = StopCause.SHUTDOWN
        self.last_beat = trio.current_time()
        self.reins = reins
        self._job = job
        self._on_heartbeat = on_heartbeat
        self._end: ChildEnd | None = None

    def beat(self) -> None:
        if self.state == "running":
            self.last_beat = trio.current_time()
            self._on_heartbeat(encode_bytes({"at": 1}))

    def _settle(self, end: ChildEnd, state: Literal["gone", "unproven"]) -> None:
        self._end, self.state = end, state
        self.reins.moved.set()

    def finish(self, *, raises: bool, for_good: bool = False) -> None:
        """Let the handler end by itself; with a stop under way it may still win."""
        if self.state in ("running", "stopping"):
            failure = Raised("OSError", "no", non_retryable=for_good)
            self._settle(failure if raises else Returned(encode("done")), "gone")

    def prove(self) -> None:
        if self.state == "stopping":
            self._settle(WasStopped(self.cause, {}), "gone")

    def fail_to_prove(self) -> None:
        if self.state == "stopping":
            self._settle(Unproven(StopUnconfirmed("child 7 is not proven gone")), "unproven")

    @property
    def dead_mans_instant(self) -> float:
        return self.reins.authority or self._job.limits.authority

    def _stop_due(self) -> tuple[float, StopCause]:
        limits, now = self._job.limits, trio.current_time()
        known = [
            (limits.attempt, StopCause.ATTEMPT_TIMEOUT),
            (limits.total, StopCause.TOTAL_TIMEOUT),
            (self.dead_mans_instant, StopCause.AUTHORITY_LOST),
            (self.last_beat + (limits.heartbeat_timeout or 1e9), StopCause.HEARTBEAT_TIMEOUT),
            *((now, cause) for cause in self.reins.stops[:1]),
        ]
        return min((at, cause) for at, cause in known if at is not None)

    async def live(self) -> ChildEnd:
        while self._end is None:
            self.reins.moved = trio.Event()
            at, cause = self._stop_due()
            if self.state == "running" and at <= trio.current_time():
                self.state, self.cause = "stopping", cause
            with trio.move_on_at(at if self.state == "running" else float("inf")):
                await self.reins.moved.wait()
        return self._end


class ChildReins:
    def __init__(self) -> None:
        self.stops: list[StopCause] = []
        self.authority: float | None = None
        self.moved = trio.Event()

    def request_stop(self, cause: StopCause, detail: str) -> None:
        self.stops.append(cause)
        self.moved.set()

    def extend_authority(self, until: float) -> None:
        self.authority = until
        self.moved.set()


class Referee:
    """What each worker was told, and the promises that follow from it."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.children: dict[str, Child] = {}
        self.leases: dict[object, float] = {}
        """By claim, and by queued attempt: the true end of the last lease that the worker was told of."""
        self.lost: set[object] = set()
        self.cancelled: set[str] = set()
        self.too_late: set[str] = set()
        self.confirmed: set[str] = set()
        """Attempts that the server called active after their admission."""
        self.seen: Counter[str] = Counter()
        self.broken: list[str] = []
        """The promises that were not kept. Noted and not raised: what was judged is to be wound up first."""

    def promise(self, kept: bool, text: str) -> None:
        if not kept:
            self.broken.append(f"{text}, at {trio.current_time():.3f}")

    def key(self, flight: Flight) -> object:
        return flight.attempt.id if flight.attempt is not None and flight.attempt.member == 0 else flight.claim

    def sent(self, flight: Flight, within: float) -> None:
        """Judge a call that a worker is about to send, and the seconds that it may take."""
        self.seen[flight.operation] += 1
        key, one = self.key(flight), flight.attempt
        name = f"{flight.operation} of {one.id if one else flight.claim}"
        if flight.operation in ("outcome", "complete", "fail", "acknowledge-cancellation"):
            assert one is not None
            child = self.children.get(one.id)
            gone = child is not None and child.state == "gone"
            never_ran = child is None and flight.operation == "acknowledge-cancellation"
            self.promise(gone or never_ran, f"{name} before the proof")
        if flight.operation in ("acknowledge-cancellation", "status"):
            return
        if flight.operation == "control" and one is not None and one.id in self.cancelled:
            return  # asks for the stop order behind a fenced outcome; a fenced claim is renewed by nothing
        if flight.operation in ("outcome", "complete", "fail"):
            assert one is not None
            self.promise(one.id not in self.cancelled, f"{name} after a stop order")
            self.promise(
                trio.current_time() < self.leases[key] + _LATEST, f"{name} after the lease it knew of was over"
            )
            timed_out = flight.operation == "outcome" and (flight.call.body or {})["report"]["outcome"] == "timed_out"
            self.promise(one.id not in self.too_late or timed_out, f"{name} after the server called it too late")
        self.promise(key not in self.lost, f"{name} after authority was lost")
        self.promise(0 < within <= OPERATION_LIMIT_SECONDS, f"{name} may take {within} s")
        if flight.operation not in ("prepare", "recover"):
            self.promise(trio.current_time() + within <= self.leases[key] + _LATEST, f"{name} may outlast the lease")

    def told(self, flight: Flight) -> None:
        """Take in what a worker learns at this instant."""
        assert flight.reply is not None
        (status, body), key, one = flight.reply, self.key(flight), flight.attempt
        reason = body.get("reason")
        if flight.lied:
            self.lost.add(key)
            self.seen["lies"] += 1
        elif status >= 500:
            if flight.operation not in ("control", "heartbeat", "renew-lease", "status"):
                self.lost.add(key)
        elif flight.operation in ("control", "heartbeat") and one is not None and one.member:
            if reason is None:
                self.confirmed.add(one.id)
                self.leases[key] = max(self.leases[key], flight.lease)
            elif reason == "cancellation_requested":
                self.cancelled.add(one.id)
            elif reason == _DEADLINE:
                self.too_late.add(one.id)
            else:
                self.lost.add(key)
                self.seen[f"told {reason}"] += 1
        elif one is not None and one.member == 0:
            if status == 200 and body.get("can_continue", True):
                self.leases[key] = max(self.leases[key], flight.lease)
            elif flight.operation != "acknowledge-cancellation":
                self.lost.add(key)
        elif flight.operation == "outcome":
            if reason == "cancellation_requested" and one is not None:
                self.cancelled.add(one.id)
            elif status != 200 or body["claim_released"]:
                self.lost.add(key)
        elif status != 200 and reason != "cancellation_requested":
            self.lost.add(key)

    def silent(self, flight: Flight) -> None:
        """A call got no answer: silence costs nothing but what was to be made sure by it."""
        if flight.operation in ("prepare", "outcome", "complete", "fail", "acknowledge-cancellation", "recover"):
            self.lost.add(self.key(flight))

    def look(self) -> None:
        """Hold the truth against the promises; after every step."""
        now = trio.current_time()
        for member, ends in self.truth.terminal.items():
            self.promise(len(ends) <= 1, f"member {member} ended {ends}")
        for one in self.truth.attempts.values():
            self.promise(one.recorded <= 1, f"{one.id} was published twice")
            self.promise(
                not (one.member and one.published and one.receipts), f"{one.id} was published and acknowledged"
            )
            child = self.children.get(one.id)
            if child is not None and child.state == "running":
                key: object = one.id if one.member == 0 else one.claim
                known, named = self.leases[key] + _LATEST, f"the child of {one.id}"
                self.promise(now <= known, f"{named} runs beyond the lease that its worker knew of")
                self.promise(child.dead_mans_instant <= known, f"{named} may outlive its lease if its worker dies")
                self.promise(key not in self.lost, f"{named} runs although its authority is lost")
                self.promise(one.id not in self.cancelled | self.too_late, f"{named} runs against a stop order")


class Wire:
    """The transport of one worker."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def send(self, call: Call, *, within: float) -> Answer:
        started = trio.current_time()
        await trio.lowlevel.checkpoint()
        flight = self._flight(call)
        self._world.referee.sent(flight, within)
        self._world.flights.append(flight)
        answered = False
        try:
            with trio.move_on_after(within):
                await flight.over.wait()
                answered = flight.reply is not None
        finally:
            if flight in self._world.flights:
                self._world.flights.remove(flight)
        if not answered or flight.reply is None:
            self._world.referee.silent(flight)
            raise ServerUnreachable("nothing came back in time")
        self._world.referee.told(flight)
        return Answer(*flight.reply, started, trio.current_time())

    def _flight(self, call: Call) -> Flight:
        truth, body = self._world.truth, dict(call.body or {})
        parts = call.path.split("/")
        operation = parts[-1]
        if parts[2] == "activity-tasks":
            one = truth.attempts[body.pop("activity_attempt_id")]
            body.pop("lease_owner")
            return Flight(call, one.claim, operation, one, lambda: truth.queued(one, operation, body))
        claim = ClaimIdentity(parts[3], "R", body["lease_owner"], body["workflow_task_attempt"])
        if operation == "prepare":
            return Flight(call, claim, operation, None, lambda: truth.prepare(claim, body))
        if operation == "recover":
            return Flight(call, claim, operation, None, lambda: truth.recover(claim, body))
        held = truth.attempts[parts[5]]
        serve: dict[str, Callable[[], Reply]] = {
            "control": lambda: truth.stand(held, beat=False),
            "heartbeat": lambda: truth.stand(held, beat=True),
            "outcome": lambda: truth.publish(held, body["report"]),
            "acknowledge-cancellation": lambda: truth.acknowledge(held),
        }
        return Flight(call, claim, operation, held, serve[operation])


def task_of(claim: ClaimIdentity) -> WorkflowTask:
    return WorkflowTask(claim, "wf", "wf", "avro", None, (), None, None, None)


class Worker:
    """One incarnation of a worker: its places, its wire, its children."""

    def __init__(self, world: World, name: str, slots: int) -> None:
        self.name = name
        self.draining = False
        self.scopes: list[trio.CancelScope] = []
        self.lost_children: list[BaseException] = []
        self._world = world
        self.wire = Wire(world)
        self.around = Surroundings(
            self, frozenset({"act"}), name, "q", self._hear,
            places=trio.CapacityLimiter(slots), on_unproven=self.lost_children.append, on_place_kept=self._keep,
        )  # fmt: skip

    def _keep(self) -> None:
        self.draining = self.draining or self.around.places.available_tokens == 0

    def scope(self) -> trio.CancelScope:
        """Give the scope of one more claim."""
        self.scopes.append(trio.CancelScope())
        return self.scopes[-1]

    def stop(self) -> None:
        for scope in self.scopes:
            scope.cancel()

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "attempt_ended":
            self._world.referee.seen[f"ended {event['reason']}"] += 1

    def reins(self) -> ChildReins:
        return ChildReins()

    async def run(self, job: Job, reins: Any, on_heartbeat: Callable[[bytes], None]) -> ChildEnd:
        referee, one = self._world.referee, self._world.truth.attempts[job.attempt_id]
        referee.promise(job.attempt_id not in referee.children, f"{job.attempt_id} was started twice")
        if reins.stops:  # as the supervisor does: what was stopped before it began never begins
            return WasStopped(reins.stops[0], {})
        key: object = one.claim if one.member else one.id
        referee.promise(key not in referee.lost, f"{one.id} was started after authority was lost")
        referee.promise(one.id not in referee.cancelled, f"{one.id} was started after a stop order")
        confirmed = one.id in referee.confirmed or one.member == 0
        referee.promise(confirmed, f"{one.id} was started before a control confirmed it")
        child = referee.children[job.attempt_id] = Child(job, reins, on_heartbeat)
        return await child.live()


class World:
    """Everything round the shells; each method is one thing that can happen."""

    def __init__(self, truth: Truth, slots: int, nursery: trio.Nursery, clock: MockClock) -> None:
        self.truth = truth
        self.referee = Referee(truth)
        self.flights: list[Flight] = []
        self.workers: list[Worker] = []
        self._slots = slots
        self._nursery = nursery
        self._clock = clock
        self.ever: list[Worker] = []
        for _ in range(2):
            self._hire()

    def _hire(self) -> None:
        worker = Worker(self, f"w{len(self.ever) + 1}", self._slots)
        self.workers.append(worker)
        self.ever.append(worker)

    def _fire(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._hire()

    @property
    def over(self) -> bool:
        """Tell whether nothing can happen any more that matters."""
        return self.truth.closed and not self.alive and not self.flights

    @property
    def alive(self) -> list[Child]:
        """Give the children that have not ended."""
        return [child for child in self.referee.children.values() if child.state in ("running", "stopping")]

    # -- the workers

    def lease(self, worker: Worker) -> None:
        if self.truth.leasable and not worker.draining:
            claim = self.truth.lease(worker.name)
            self.referee.leases[claim] = self.truth.lease_until
            self._nursery.start_soon(self._work, worker, claim)

    async def _work(self, worker: Worker, claim: ClaimIdentity) -> None:
        with worker.scope():
            calls = ClaimCalls(worker.wire, claim)
            try:
                open_calls = await self.open_calls(calls, claim)
            except (ServerRefused, ServerUnreachable, ProtocolBreach):
                return
            siblings = SiblingsRun(worker.around, calls, task_of(claim), open_calls, draining=lambda: worker.draining)
            await siblings.run()
            for _, end in siblings.ends:
                self.referee.seen[end.event_type if isinstance(end, Closed) else type(end).__name__] += 1
            published = [end for _, end in siblings.ends if isinstance(end, Closed) and not end.claim_released]
            self.referee.seen["several members on one claim"] += len(published) > 1
            if isinstance(siblings.breaking_end, Acknowledged) and self.truth.deliver():
                self._check_delivery()

    def _check_delivery(self) -> None:
        self.referee.seen[f"delivered {self.truth.policy}"] += 1
        if self.truth.policy == "wait_cancellation_completed":
            fenced = [one.id for one in self.truth.attempts.values() if one.member and one.status == "cancelled"]
            alive = [
                one for one in fenced if one in self.referee.children and self.referee.children[one].state != "gone"
            ]
            self.referee.promise(not alive, f"delivered while {alive} may still run")

    async def open_calls(self, calls: ClaimCalls, claim: ClaimIdentity) -> list[LocalCall]:
        """Close what an earlier claim left, then give the calls that are open."""
        if self.truth.cancelled:
            return []
        for member in self.truth.open_members():
            last = self.truth.last_of(member)
            if last is not None and last.status == "running" and last.claim != claim:
                closed = await calls.recover(
                    self._descriptor(), sequence=member, execution_id=f"E{member}", attempt_id=last.id
                )
                self.referee.seen["recovered"] += 1
                if closed.claim_released:
                    return []
        timeouts = START_TO_CLOSE, None, HEARTBEAT
        return [
            LocalCall((), member, member, "act", self._descriptor(), ["in"], None, None, 0, *timeouts)
            for member in self.truth.open_members()
        ]

    def _descriptor(self) -> Body:
        retry = {
            "max_attempts": MOST_ATTEMPTS,
            "backoff_seconds": [0] * (MOST_ATTEMPTS - 1),
            "non_retryable_error_types": [],
        }
        return {"activity_type": "act", "cancellation_policy": self.truth.policy, "retry_policy": retry}

    def lease_queued(self, worker: Worker, *, renewable: bool, cooperative: bool) -> None:
        one = None if worker.draining else self.truth.lease_queued(worker.name)
        if one is not None:
            self.referee.leases[one.id] = one.lease_until
            self._nursery.start_soon(self._work_queued, worker, one, QueuedTerms(renewable, cooperative))

    async def _work_queued(self, worker: Worker, one: Attempt, terms: QueuedTerms) -> None:
        now, stamp = trio.current_time(), self.truth.stamp
        deadlines = AttemptDeadlines(
            start_to_close=parse_instant(stamp(one.start_to_close)), heartbeat=parse_instant(stamp(one.heartbeat))
        )
        task = QueuedTask(
            "Q", "wf", "R", "E0", one.id, one.number, "act", envelope(["in"]), "avro", worker.name,
            parse_instant(stamp(one.lease_until)), deadlines, HEARTBEAT, parse_instant(stamp(now)),
        )  # fmt: skip
        leased = LeasedAttempt(task, Exchange(now, now, parse_instant(stamp(now))))
        with worker.scope():
            end = await QueuedAttempt(worker.wire, leased, worker.around, terms).run()
            self.referee.seen[f"queued {end.how} {end.reason}"] += 1

    def drain(self, worker: Worker) -> None:
        worker.draining = True
        self._fire(worker)

    def stop_now(self, worker: Worker) -> None:
        worker.stop()
        self._fire(worker)

    def replace_registration(self, worker: Worker) -> None:
        self.truth.replace_registration(worker.name)
        self._fire(worker)

    # -- the network

    def serve(self, flight: Flight) -> None:
        """Let the server see a call; a second time is a duplicate on the wire."""
        flight.reply = flight.serve()
        one = flight.attempt
        flight.lease = self.truth.lease_until if one is None or one.member else one.lease_until

    async def settle(self) -> None:
        await wait_all_tasks_blocked()

    async def all_goes_well(self) -> None:
        for flight in list(self.flights):
            self.serve(flight)
            flight.over.set()
        await self.settle()

    def lose(self, flight: Flight, *, served: bool) -> None:
        if served:
            self.serve(flight)
        flight.reply = None
        flight.over.set()

    def lie(self, flight: Flight, which: int) -> None:
        """Falsify an answer that would have let the attempt go on."""
        self.serve(flight)
        assert flight.reply is not None
        status, body = flight.reply
        lies = [(key, value) for key, value in LIES.get(flight.operation, []) if key in body]
        goes_on = status == 200 and body.get("active", True) and body.get("can_continue", True)
        if lies and goes_on:
            flight.lied = True
            flight.reply = status, {**body, **dict([lies[which % len(lies)]])}
        flight.over.set()

    def overload(self, flight: Flight) -> None:
        flight.reply = 503, {"reason": "backend_unavailable"}
        flight.over.set()

    # -- time

    async def time_passes(self, seconds: float) -> None:
        """Let time pass from one deadline to the next, as deadlines fire at their instants and not afterwards."""
        until = trio.current_time() + seconds
        while True:
            await self.settle()
            self.referee.look()
            left = until - trio.current_time()
            if left <= 0:
                return
            self._clock.jump(min(left, max(1e-4, trio.lowlevel.current_statistics().seconds_to_next_deadline)))

    async def end(self) -> None:
        """Stop every worker; afterwards every place that is not lost for good is free again."""
        for worker in self.ever:
            worker.stop()
        await self._wind_up()
        self.referee.promise(not self.alive, "a child was not stopped with its worker")
        for child in self.alive:
            child.finish(raises=True)
        await self._wind_up()
        self.referee.look()
        for worker in self.ever:
            unproven = [
                self.truth.attempts[name].member
                for name, child in self.referee.children.items()
                if child.state == "unproven" and self.truth.attempts[name].claim.lease_owner == worker.name
            ]
            known, taken = len(worker.lost_children), worker.around.places.borrowed_tokens
            self.referee.promise(known == len(unproven), f"{worker.name} does not know of each unproven stop")
            places = sum(member > 0 for member in unproven)
            self.referee.promise(taken == places, f"{worker.name} lost a place, or gave one back twice")

    async def _wind_up(self) -> None:
        for _ in range(20):
            await self.settle()
            for child in self.alive:
                child.prove()
            for flight in list(self.flights):
                self.lose(flight, served=False)
