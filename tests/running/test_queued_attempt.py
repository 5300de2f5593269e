"""Queued activities: the lease is kept beside the handler, one outcome is published, and only with authority."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor.core.attempt import StopCause
from proctor.core.codec import decode, envelope
from proctor.core.instants import format_instant
from proctor.errors import ServerUnreachable, StopUnconfirmed
from proctor.running.registration import WorkerIdentity
from proctor.running.service import ServiceOptions, WorkerService
from proctor.running.surroundings import Surroundings
from proctor.transport.calls import Answer, Call
from running.scripted_children import Behaviour, ScriptedChildren, beats, hangs, raises, returns
from running.scripted_server import Refusal, ScriptedServer, Silence

Body = dict[str, Any]
PUBLISHING = ("complete", "fail", "acknowledge-cancellation")
EPOCH = datetime(2026, 10, 2, tzinfo=UTC)


class QueueServer:
    """Leases one attempt and answers for it; honest by default. Its time is Trio's clock."""

    def __init__(
        self, *, renewable: bool, lease: float = 9.0, heartbeat_timeout: int | None = None, latency: float = 0.01
    ) -> None:
        self.inner = ScriptedServer()
        self.inner.capabilities["activity_lease_renewal"] = renewable
        self.lease = lease
        self.latency = latency
        self.heartbeat_timeout = heartbeat_timeout
        self.calls: list[tuple[str, Body, float]] = []
        self.spare: dict[str, float] = {}
        """By operation, how long before the end of the lease its last call would have given up."""
        self.lies: dict[str, list[Callable[[Body], Any]]] = defaultdict(list)
        self.leased_until = EPOCH
        self.polled = False
        self.cancelled = False
        self.done = trio.Event()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=trio.current_time())

    def operations(self, *names: str) -> list[str]:
        return [name for name, _, _ in self.calls if not names or name in names]

    def times(self, name: str) -> list[float]:
        return [at for called, _, at in self.calls if called == name]

    async def send(self, call: Call, *, within: float) -> Answer:
        if "/activity-tasks/" not in call.path:
            return await self.inner.send(call, within=within)
        started = trio.current_time()
        operation = call.path.rpartition("/")[2]
        self.calls.append((operation, dict(call.body or {}), started))
        self.spare[operation] = (self.leased_until - self.now()).total_seconds() - within
        with trio.move_on_after(within):
            await trio.sleep(self.latency / 2)
            if operation == "poll" and self.polled and not self.lies["poll"]:
                await trio.sleep_forever()
            status, body = self._answer(operation)
            if self.lies[operation]:
                try:
                    self.lies[operation].pop(0)(body)
                except Refusal as exc:
                    status, body = exc.status, exc.body
                except Silence as exc:
                    raise ServerUnreachable("broken") from exc
            at = self.now()
            await trio.sleep(self.latency / 2)
            return Answer(status, body, started, trio.current_time(), at)
        raise ServerUnreachable("nothing in time")

    def _answer(self, operation: str) -> tuple[int, Body]:
        now = self.now()
        if operation in ("renew-lease", "heartbeat", "poll"):
            self.leased_until = now + timedelta(seconds=self.lease)
        lease = format_instant(self.leased_until)
        if operation == "poll":
            self.polled = True
            task: Body = {
                "task_id": "T", "workflow_id": "wf-1", "run_id": "R", "activity_execution_id": "E",
                "activity_attempt_id": "A", "attempt_number": 2, "activity_type": "act", "payload_codec": "avro",
                "arguments": envelope(["in"]), "task_queue": "q", "lease_owner": "w", "lease_expires_at": lease,
                "deadlines": {"start_to_close": format_instant(now + timedelta(seconds=20))},
                "retry_policy": {"heartbeat_timeout": self.heartbeat_timeout} if self.heartbeat_timeout else {},
            }  # fmt: skip
            return 200, {"task": task, "poll_status": "leased", "server_time": format_instant(now)}
        if operation == "renew-lease":
            return 200, {
                "lease_renewed": True, "can_continue": True, "cancel_requested": False, "heartbeat_recorded": False,
                "reason": None, "server_time": format_instant(now), "lease_expires_at": lease,
                "workflow_task_id": "T", "workflow_instance_id": "wf-1", "workflow_run_id": "R",
                "activity_execution_id": "E", "activity_attempt_id": "A", "attempt_number": 2, "lease_owner": "w",
            }  # fmt: skip
        if operation in ("heartbeat", "status"):
            body: Body = {
                "task_id": "T", "activity_attempt_id": "A", "lease_owner": "w", "lease_expires_at": lease,
                "cancel_requested": self.cancelled, "can_continue": not self.cancelled,
                "reason": "run_cancelled" if self.cancelled else None,
                "heartbeat_recorded": operation == "heartbeat" and not self.cancelled,
            }  # fmt: skip
            if self.cancelled and operation == "status":
                body["cancellation_acknowledgement"] = {"request_id": "Q", "callback_state": "unknown"}
            return 200, body
        self.done.set()
        if operation == "acknowledge-cancellation":
            return 200, {
                "task_id": "T", "activity_attempt_id": "A", "lease_owner": "w", "request_id": "Q",
                "acknowledged": True, "duplicate": False, "reason": None, "history_event_id": "K",
                "heartbeat_recorded": False,
            }  # fmt: skip
        return 200, {"task_id": "T", "activity_attempt_id": "A", "outcome": operation, "recorded": True, "reason": None}


class QueueRig:
    def __init__(
        self,
        *behaviours: Behaviour,
        profile: str = "supervised",
        provable: bool = True,
        enforcing: bool = True,
        **server: Any,
    ) -> None:
        self.server = QueueServer(**{"renewable": True, **server})
        self.children = ScriptedChildren(*behaviours, provable=provable, enforcing=enforcing)
        self.events: list[Body] = []
        identity = WorkerIdentity("w", "q", (), 1, profile=profile, queued_slots=1, activity_types=("act",))
        self.service = WorkerService(
            ServiceOptions(identity),
            self.server,
            workflows={},
            replay=lambda definition, task: pytest.fail("no workflow task was leased"),
            surroundings=Surroundings(self.children, frozenset({"act"}), "w", "q", self.events.append),
        )

    async def run_for(self, seconds: float, meanwhile: Callable[[], Any] | None = None) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            if meanwhile is not None:
                nursery.start_soon(meanwhile)
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()

    def attempt(self) -> Body:
        (event,) = [event for event in self.events if event["event"] == "attempt_ended"]
        return event


def refusing(status: int, reason: str) -> Callable[[Body], None]:
    def lie(body: Body) -> None:
        raise Refusal(status, {"reason": reason})

    return lie


def silence(body: Body) -> None:
    raise Silence


def set_to(key: str, value: Any) -> Callable[[Body], None]:
    return lambda body: body.update({key: value})


@pytest.mark.parametrize("renewable", [True, False])
@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_a_result_is_published_once(autojump_clock: MockClock, profile: str, renewable: bool) -> None:
    rig = QueueRig(returns("out", after=12), profile=profile, renewable=renewable)

    await rig.run_for(15)

    (body,) = [body for name, body, _ in rig.server.calls if name == "complete"]
    assert decode(body["result"]["blob"]) == "out"
    assert (body["activity_attempt_id"], body["lease_owner"]) == ("A", "w")
    assert rig.attempt()["published"] is True
    assert bool(rig.server.operations("status")) is (profile == "supervised")
    assert bool(rig.server.operations("renew-lease")) is renewable


async def test_the_registration_offers_what_is_on_and_nothing_else(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs())

    await rig.run_for(15)

    (body,) = rig.server.inner.bodies("register")
    assert body["supported_activity_types"] == ["act"]
    assert body["max_concurrent_activity_tasks"] == 1
    assert body["max_concurrent_workflow_tasks"] == 0
    assert rig.server.inner.operations("poll") == []
    beat = rig.server.inner.bodies("worker_heartbeat")[0]
    assert beat["task_slots"] == {"workflow_available": 0, "activity_available": 0, "session_available": 0}


async def test_with_renewal_the_lease_is_renewed_once_before_the_child_and_by_thirds(autojump_clock: MockClock) -> None:
    rig = QueueRig(returns("out", after=15))

    await rig.run_for(17)

    times = rig.server.times("renew-lease")
    assert rig.server.operations()[:3] == ["poll", "renew-lease", "status"]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 3.1


async def test_without_renewal_the_workers_own_heartbeats_keep_the_lease(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs(), renewable=False, profile="ordinary", heartbeat_timeout=6)

    await rig.run_for(5)
    kept = len(rig.server.operations("heartbeat"))

    assert kept >= 2
    assert rig.children.jobs[0].limits.heartbeat_timeout == 6


async def test_a_failure_is_published_with_its_type(autojump_clock: MockClock) -> None:
    rig = QueueRig(raises("OSError"))

    await rig.run_for(3)

    (body,) = [body for name, body, _ in rig.server.calls if name == "fail"]
    assert body["failure"]["type"] == "OSError"
    assert "non_retryable" not in body["failure"]


@pytest.mark.parametrize(
    ("operation", "lie"),
    [
        ("renew-lease", refusing(409, "lease_owner_mismatch")),
        ("renew-lease", set_to("lease_renewed", False)),
        ("renew-lease", set_to("workflow_run_id", "another")),
        ("renew-lease", set_to("attempt_number", True)),
        ("renew-lease", set_to("lease_expires_at", "2020-01-01T00:00:00.000000Z")),
        ("status", refusing(404, "attempt_not_found")),
        ("status", set_to("can_continue", False)),
        ("status", set_to("can_continue", "yes")),
        ("status", set_to("activity_attempt_id", "another")),
        ("status", set_to("heartbeat_recorded", True)),
        ("status", set_to("lease_expires_at", None)),
        ("heartbeat", set_to("heartbeat_recorded", False)),
        ("heartbeat", set_to("reason", "attempt_closed")),
    ],
)
async def test_a_refusal_or_a_lie_stops_the_child_and_publishes_nothing(
    autojump_clock: MockClock, operation: str, lie: Callable[[Body], Any]
) -> None:
    rig = QueueRig(beats({"n": 1}, every=4.5, then=hangs()))

    async def spoil() -> None:
        await rig.children.started.wait()
        rig.server.lies[operation].append(lie)

    await rig.run_for(4.2, spoil)

    assert rig.children.running == 0
    assert rig.children.all_reins[0].stops[0][0] == StopCause.AUTHORITY_LOST
    assert rig.server.operations(*PUBLISHING) == []


async def test_a_refused_renewal_before_the_child_starts_none(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs())
    rig.server.lies["renew-lease"].append(refusing(409, "lease_owner_mismatch"))

    await rig.run_for(3)

    assert rig.children.jobs == []
    assert rig.server.operations(*PUBLISHING) == []


async def test_a_cancelled_attempt_is_acknowledged_only_after_its_child_is_gone(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs())

    async def cancel() -> None:
        await rig.children.started.wait()
        rig.server.cancelled = True

    await rig.run_for(4, cancel)

    (at,) = rig.server.times("acknowledge-cancellation")
    assert at >= rig.children.ended_at[0]
    assert rig.server.operations("complete", "fail") == []
    assert rig.attempt()["outcome"] == "cancelled"


async def test_an_ordinary_worker_acknowledges_nothing(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs(), profile="ordinary", renewable=False)

    async def cancel() -> None:
        await rig.children.started.wait()
        rig.server.cancelled = True

    await rig.run_for(6, cancel)

    assert rig.children.running == 0
    assert rig.server.operations(*PUBLISHING) == []


async def test_an_unproven_stop_acknowledges_nothing_and_fails_the_worker(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs(), provable=False)

    async def cancel() -> None:
        await rig.children.started.wait()
        rig.server.cancelled = True

    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.run_for(30, cancel)

    assert caught.group_contains(StopUnconfirmed)
    assert rig.server.operations(*PUBLISHING) == []
    assert rig.server.inner.operations("deregister") == []


async def test_the_proof_of_a_stop_is_told_also_when_the_worker_is_cancelled(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs())

    await rig.run_for(3)

    assert rig.attempt()["stop"] == {"pid": 4711, "reason": "shutdown"}
    assert rig.attempt()["published"] is False


async def test_a_silent_server_has_the_child_stopped_before_its_lease_can_be_over(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs())

    async def fall_silent() -> None:
        await rig.children.started.wait()
        for operation in ("renew-lease", "status", "heartbeat"):
            rig.server.lies[operation] += [silence] * 1000

    await rig.run_for(15, fall_silent)

    assert rig.children.ended_at[0] <= rig.server.times("renew-lease")[0] + rig.server.lease + 0.06
    assert rig.server.operations(*PUBLISHING) == []


async def test_the_worker_asks_for_the_stop_itself_when_authority_is_spent(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs(), enforcing=False)

    async def fall_silent() -> None:
        await rig.children.started.wait()
        await trio.sleep(2)
        for operation in ("renew-lease", "status", "heartbeat"):
            rig.server.lies[operation] = [silence] * 200

    await rig.run_for(30, fall_silent)

    assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "authority_spent")
    assert rig.children.ended_at[0] < 13
    assert rig.server.operations("complete", "fail", "acknowledge-cancellation") == []


@pytest.mark.parametrize(("profile", "question"), [("supervised", "status"), ("ordinary", "renew-lease")])
async def test_the_claim_is_confirmed_between_the_end_of_the_child_and_its_report(
    autojump_clock: MockClock, profile: str, question: str
) -> None:
    rig = QueueRig(returns("x", after=0.5), profile=profile)

    await rig.run_for(3)

    (published,) = rig.server.times("complete")
    assert any(rig.children.ended_at[0] <= at < published for at in rig.server.times(question))


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_a_report_gives_up_before_the_lease_can_be_over(autojump_clock: MockClock, profile: str) -> None:
    rig = QueueRig(returns("x", after=0.5), profile=profile, lease=3.0)

    await rig.run_for(2)

    assert rig.server.spare["complete"] >= -1e-6


async def test_a_stop_is_not_acknowledged_where_the_server_does_not_speak_of_a_cancellation_any_more(
    autojump_clock: MockClock,
) -> None:
    rig = QueueRig(hangs())
    stops: list[Body] = []

    def take_back(body: Body) -> None:
        if body["cancel_requested"]:
            stops.append(body)
            if len(stops) == 2:  # the first one stopped the child
                body.update(cancel_requested=False, reason="stale_attempt")

    async def cancel() -> None:
        await rig.children.started.wait()
        rig.server.lies["status"] = [take_back] * 50
        rig.server.cancelled = True

    await rig.run_for(5, cancel)

    assert len(stops) == 2
    assert rig.server.operations("acknowledge-cancellation", "complete", "fail") == []
    assert rig.attempt()["reason"] == "cancellation_without_request"


@pytest.mark.parametrize("looks", range(2, 6))
async def test_what_a_status_says_while_a_report_waits_for_its_turn_counts_before_the_report(
    autojump_clock: MockClock, looks: int
) -> None:
    rig = QueueRig(returns("late", after=0.3), latency=1.2, lease=60.0)
    rig.server.lies["status"] = [*[lambda body: None] * (looks - 1), refusing(409, "stale_attempt")]

    await rig.run_for(15)

    asked = rig.server.times("status")
    assert len(asked) >= looks or looks > 4, "the calls that matter for this test were made"
    for told_at in asked[looks - 1 : looks]:
        published = rig.server.times("complete") + rig.server.times("fail")
        assert all(at < told_at + 1.1 for at in published), "nothing is published once the refusal was there"


async def test_a_deadline_stops_the_child_and_leaves_the_timeout_to_the_server(autojump_clock: MockClock) -> None:
    rig = QueueRig(hangs())

    await rig.run_for(25)

    assert rig.attempt()["stop"]["reason"] == StopCause.ATTEMPT_TIMEOUT
    assert rig.server.operations(*PUBLISHING) == []


async def test_a_lost_completion_is_never_followed_by_another_child(autojump_clock: MockClock) -> None:
    rig = QueueRig(returns("out"), hangs())
    rig.server.lies["complete"].append(silence)

    await rig.run_for(10)

    assert len(rig.children.jobs) == 1
    assert rig.attempt()["published"] is False


@pytest.mark.parametrize(
    "lie",
    [
        lambda body: body["task"].update(lease_owner="another"),
        lambda body: body["task"].update(task_queue="another"),
        lambda body: body["task"].update(attempt_number="2"),
        lambda body: body["task"].update(lease_expires_at="2020-01-01T00:00:00Z"),
        lambda body: body["task"].update(deadlines={"heartbeat": "2030-01-01T00:00:00Z"}),
        lambda body: body["task"].update(
            deadlines={"heartbeat": "2030-01-01T00:00:00Z"}, retry_policy={"heartbeat_timeout": 60}
        ),
        lambda body: body.pop("server_time"),
    ],
)
async def test_a_lying_poll_starts_nothing(autojump_clock: MockClock, lie: Callable[[Body], Any]) -> None:
    rig = QueueRig(hangs())
    rig.server.lies["poll"].append(lie)

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert rig.server.operations("renew-lease", *PUBLISHING) == []
