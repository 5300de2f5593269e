"""Activities that name a worker session: who gets them, how many at once, what an attempt learns (sessions.md §6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import trio
import trio.testing

from proctor.server.rules.book import Settings
from server.test_cancellation import deliver
from server.test_queued_activities import CALL, Hand, poll, take
from server.test_sessions import SESSIONS, beat, close, create, registered, renew, shown
from server.wire import WITH_POLICIES, Claim, Wire, Worker, instant, retries, running_server

TYPES: dict[str, Any] = {"supported_activity_types": ["charge"]}


@pytest.fixture
async def author(wire: Wire) -> Worker:
    """Give the worker that decides; it takes no activities."""
    worker = Worker(wire, "author", capabilities=(*WITH_POLICIES, *SESSIONS))
    await worker.register()
    return worker


@pytest.fixture
async def one(wire: Wire) -> Worker:
    return await registered(wire, "one", supported_workflow_types=[], **TYPES)


@pytest.fixture
async def two(wire: Wire) -> Worker:
    return await registered(wire, "two", supported_workflow_types=[], **TYPES)


def in_session(session_id: str = "s", options: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {**CALL, **fields, "worker_session": {"session_id": session_id, **(options or {})}}


async def schedule(wire: Wire, author: Worker, *commands: dict[str, Any], workflow_id: str = "wf") -> None:
    await wire.start(workflow_id)
    (await (await author.poll()).complete(*commands)).ok()


async def test_the_first_worker_that_polls_gets_the_session_and_what_follows_in_it(
    wire: Wire, author: Worker, one: Worker, two: Worker
) -> None:
    await schedule(wire, author, in_session(options={"lease_seconds": 30, "requirements": ["cache:local"]}))
    hand = await take(one)

    assert hand.task["worker_session"] == {
        "session_id": "s",
        "queue": "q",
        "requirements": ["cache:local"],
        "lease_seconds": 30,
        "ttl_seconds": 1800,
        "max_concurrent_activities": 1,
        "create_if_missing": True,
        "allow_reacquire_after_failure": True,
        "status": "active",
        "lease_owner": "one",
        "lease_expires_at": instant(30),
        "ttl_expires_at": instant(1800),
    }
    session = await shown(wire)
    assert (session["lease_owner"], session["active_activity_count"]) == ("one", 1)
    (await hand.complete()).ok()
    assert (await shown(wire))["active_activity_count"] == 0

    wire.clock.advance(20)
    await schedule(wire, author, in_session(options={"lease_seconds": 30}), workflow_id="wf2")
    assert await poll(two) is None
    assert (await take(one)).task["worker_session"]["lease_expires_at"] == instant(50)


async def test_history_keeps_the_options_and_says_nothing_else_of_sessions(
    wire: Wire, author: Worker, one: Worker
) -> None:
    await schedule(wire, author, in_session(options={"lease_seconds": 30}))
    (await (await take(one)).complete()).ok()
    recorded = next(event for event in await wire.events() if event["event_type"] == "ActivityScheduled")
    assert recorded["payload"]["activity"]["worker_session"] == {
        "session_id": "s",
        "connection": None,
        "queue": None,
        "requirements": [],
        "lease_seconds": 30,
        "ttl_seconds": None,
        "max_concurrent_activities": None,
        "create_if_missing": True,
        "allow_reacquire_after_failure": True,
    }
    kinds = await wire.event_types()
    assert kinds == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityCompleted",
    ]


async def test_a_worker_without_the_requirements_takes_nothing_and_leaves_nothing(
    wire: Wire, author: Worker, one: Worker
) -> None:
    equipped = await registered(wire, "equipped", "gpu:l4", supported_workflow_types=[], **TYPES)
    await schedule(wire, author, in_session(options={"requirements": ["gpu:l4"]}))
    before = await wire.event_types()

    assert await poll(one) is None

    assert (await wire.control("GET", "/worker-sessions")).ok()["metrics"]["total"] == 0
    assert await wire.event_types() == before
    assert (await take(equipped)).task["worker_session"]["lease_owner"] == "equipped"


async def test_a_skipped_activity_does_not_hold_up_the_others(
    wire: Wire, author: Worker, one: Worker, two: Worker
) -> None:
    (await create(two)).ok(201)
    await schedule(wire, author, *[in_session() for _ in range(150)], CALL)
    hand = await take(one)
    assert "worker_session" not in hand.task
    assert await poll(one) is None
    assert (await take(two)).task["worker_session"]["session_id"] == "s"


async def test_a_session_without_consent_to_be_created_waits_for_its_worker(
    wire: Wire, author: Worker, one: Worker
) -> None:
    await schedule(wire, author, in_session(options={"create_if_missing": False}))
    assert await poll(one) is None
    (await create(one)).ok(201)
    assert (await take(one)).task["worker_session"]["lease_owner"] == "one"


async def test_no_more_than_the_limit_run_at_once_and_an_end_wakes_the_next(
    wire: Wire, author: Worker, one: Worker
) -> None:
    await schedule(wire, author, in_session(), in_session())
    first = await take(one)
    got: list[dict[str, Any] | None] = []

    async def wait() -> None:
        got.append(await poll(one, timeout_seconds=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        (await first.complete()).ok()

    assert got[0] is not None
    assert (await shown(wire))["active_activity_count"] == 1


async def test_the_limit_is_the_sessions(wire: Wire, author: Worker, one: Worker) -> None:
    await schedule(wire, author, *[in_session(options={"max_concurrent_activities": 2}) for _ in range(3)])
    await take(one)
    second = await take(one)
    assert await poll(one) is None
    assert (await shown(wire))["active_activity_count"] == 2
    (await second.fail(non_retryable=True)).ok()
    await take(one)


async def test_the_recorded_limit_counts_until_an_admitted_activity_brings_another(
    wire: Wire, author: Worker, one: Worker
) -> None:
    wide, narrow = (in_session(options={"max_concurrent_activities": count}) for count in (2, 1))
    await schedule(wire, author, wide, narrow, wide)
    first = await take(one)
    second = await take(one)
    assert (await shown(wire))["max_concurrent_activities"] == 1
    assert second.task["worker_session"]["max_concurrent_activities"] == 1
    assert first.task["worker_session"]["max_concurrent_activities"] == 2
    assert await poll(one) is None
    (await second.complete()).ok()
    assert await poll(one) is None
    (await first.complete()).ok()
    await take(one)


async def test_attempts_of_a_lost_holder_do_not_count_against_the_next(
    wire: Wire, author: Worker, one: Worker, two: Worker
) -> None:
    await schedule(wire, author, in_session(options={"lease_seconds": 3}), in_session())
    await take(one)
    wire.clock.advance(3)
    assert (await take(two)).task["worker_session"]["lease_owner"] == "two"


async def test_an_attempt_whose_lease_ended_counts_no_more(wire: Wire, author: Worker, one: Worker) -> None:
    await schedule(wire, author, in_session(options={"lease_seconds": 600}), in_session())
    await take(one)
    wire.clock.advance(59)
    assert await poll(one) is None
    wire.clock.advance(1)
    await take(one)


async def test_the_holders_own_limit_counts_for_activities_too(wire: Wire, author: Worker) -> None:
    small = await registered(wire, "small", supported_workflow_types=[], max_concurrent_worker_sessions=1, **TYPES)
    await schedule(wire, author, in_session("a"), in_session("b"))
    first = await take(small)
    (await first.complete()).ok()
    assert await poll(small) is None
    got: list[dict[str, Any] | None] = []

    async def wait() -> None:
        got.append(await poll(small, timeout_seconds=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        (await close(small, "a")).ok()

    assert got[0] is not None
    assert got[0]["worker_session"]["session_id"] == "b"


async def test_a_closed_session_takes_no_activity_any_more_and_nothing_fails(
    wire: Wire, author: Worker, one: Worker
) -> None:
    (await create(one)).ok(201)
    (await close(one)).ok()
    await schedule(wire, author, in_session(schedule_to_start_timeout=60))
    assert await poll(one) is None
    assert (await wire.event_types())[-1] == "ActivityScheduled"
    wire.clock.advance(60)
    await author.poll()
    assert (await wire.event_types())[-1] == "ActivityTimedOut"


async def test_the_session_of_a_lost_worker_goes_to_another_and_its_late_reports_are_refused(
    wire: Wire, author: Worker, one: Worker, two: Worker
) -> None:
    options = {"lease_seconds": 3, "ttl_seconds": 45}
    await schedule(wire, author, in_session(options=options, start_to_close_timeout=10, retry_policy=retries(2, 0)))
    lost = await take(one)
    wire.clock.advance(3.25)
    assert (await create(two, **options)).ok()["outcome"] == "reacquired"
    assert await poll(two) is None
    wire.clock.advance(6.75)
    (await renew(one)).refused(409, "session_not_active")
    again = await take(two)

    assert again.task["attempt_number"] == 2
    assert again.task["activity_attempt_id"] != lost.task["activity_attempt_id"]
    assert again.task["worker_session"]["ttl_expires_at"] == instant(45)
    (await lost.complete()).refused(409, "stale_attempt")
    (await lost.fail()).refused(409, "stale_attempt")
    (await renew(one)).refused(409, "session_owner_mismatch")
    (await again.complete()).ok()
    kinds = await wire.event_types()
    assert kinds.count("ActivityCompleted") == 1
    assert kinds.count("ActivityHeartbeatRecorded") == 0


async def test_a_parked_poll_hears_of_a_lease_that_ends(swept: Wire) -> None:
    wire = swept
    author = Worker(wire, "author", capabilities=SESSIONS)
    await author.register()
    one, two = [await registered(wire, name, supported_workflow_types=[], **TYPES) for name in ("one", "two")]
    (await create(one, lease_seconds=20)).ok(201)
    await schedule(wire, author, in_session())
    got: list[dict[str, Any] | None] = []

    async def wait() -> None:
        got.append(await poll(two, timeout_seconds=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wire.clock.sleeper(wire.clock.now().replace(microsecond=0) + timedelta(seconds=20))
        assert got == []
        wire.clock.advance(20)

    assert got[0] is not None
    assert got[0]["worker_session"]["lease_owner"] == "two"


async def test_a_parked_poll_hears_of_a_holder_that_fell_silent_or_left(swept: Wire) -> None:
    wire = swept
    author = Worker(wire, "author", capabilities=SESSIONS)
    await author.register()
    one, two = [await registered(wire, name, supported_workflow_types=[], **TYPES) for name in ("one", "two")]
    (await create(one, lease_seconds=9_000, ttl_seconds=9_000)).ok(201)
    (await create(one, "t", lease_seconds=9_000, ttl_seconds=9_000)).ok(201)
    wire.clock.advance(290)
    await beat(two, author)
    await schedule(wire, author, in_session())
    got: list[dict[str, Any] | None] = []

    async def wait() -> None:
        got.append(await poll(two, timeout_seconds=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wire.clock.sleeper(wire.clock.now().replace(microsecond=0) + timedelta(seconds=10.000001))
        wire.clock.advance(10.000001)
    assert got[0] is not None
    await schedule(wire, author, in_session("u"), workflow_id="wf2")
    (await Hand(two, got[0]).complete()).ok()
    third = await registered(wire, "three", supported_workflow_types=[], **TYPES)
    (await create(third, "v")).ok(201)
    (await (await take(two)).complete()).ok()
    await schedule(wire, author, in_session("v"), workflow_id="wf3")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert len(got) == 1
        (await wire.worker("/registrations/three", method="DELETE")).ok()
    assert got[1] is not None
    assert got[1]["worker_session"]["session_id"] == "v"


@pytest.fixture
async def swept() -> AsyncIterator[Wire]:
    async with running_server(sweeping=True) as wire:
        yield wire


async def test_a_heartbeat_renews_the_session_and_a_renewed_lease_or_a_look_does_not(
    wire: Wire, author: Worker, one: Worker
) -> None:
    await schedule(wire, author, in_session(options={"lease_seconds": 30}))
    hand = await take(one)
    wire.clock.advance(10)
    (await hand.post("renew-lease")).ok()
    looked = (await hand.post("status")).ok()
    assert looked["worker_session"] == hand.task["worker_session"]
    assert looked["worker_session"]["lease_expires_at"] == instant(30)
    told = (await hand.post("heartbeat")).ok()["worker_session"]
    assert (told["admitted"], told["outcome"], told["reason"]) == (True, "heartbeat_recorded", None)
    assert told["session"]["lease_expires_at"] == (await shown(wire))["lease_expires_at"] == instant(40)


async def test_an_attempt_goes_on_without_its_session_but_a_look_says_that_it_is_lost(
    wire: Wire, author: Worker, one: Worker, two: Worker
) -> None:
    await schedule(wire, author, in_session(options={"lease_seconds": 5}))
    hand = await take(one)
    wire.clock.advance(5)
    lost = (await hand.post("status")).ok()
    assert (lost["can_continue"], lost["cancel_requested"]) == (False, False)
    assert lost["reason"] == "worker_session_unavailable"
    assert (lost["worker_session"]["status"], lost["attempt_status"]) == ("expired", "running")
    told = (await hand.post("heartbeat")).ok()
    assert (told["can_continue"], told["heartbeat_recorded"]) == (True, True)
    assert (told["worker_session"]["admitted"], told["worker_session"]["reason"]) == (False, "session_not_active")
    (await create(two)).ok()
    assert (await hand.post("status")).ok()["worker_session"]["lease_owner"] == "two"
    assert (await hand.post("heartbeat")).ok()["worker_session"]["reason"] == "session_owner_mismatch"
    (await hand.complete()).ok()


async def test_an_activity_without_a_session_has_none_anywhere(wire: Wire, author: Worker, one: Worker) -> None:
    await schedule(wire, author, CALL)
    hand = await take(one)
    assert "worker_session" not in hand.task
    assert (await hand.post("heartbeat")).ok()["worker_session"] is None
    assert (await hand.post("status")).ok()["worker_session"] is None
    scheduled = next(event for event in await wire.events() if event["event_type"] == "ActivityScheduled")
    assert "worker_session" not in scheduled["payload"]["activity"]


async def test_a_cancellation_is_not_outlived_by_the_session(wire: Wire, author: Worker, one: Worker) -> None:
    await schedule(wire, author, in_session())
    hand = await take(one)
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    (await deliver(await author.poll(), request_id, call_kind="activity")).ok()
    wire.clock.advance(20)
    told = (await hand.post("heartbeat")).ok()
    assert (told["cancel_requested"], told["reason"], told["worker_session"]) == (True, "cancellation_requested", None)
    assert (await shown(wire))["lease_expires_at"] == instant(120)
    assert (await shown(wire))["active_activity_count"] == 0


async def test_a_repeated_poll_gives_the_same_lease_with_its_session(wire: Wire, author: Worker, one: Worker) -> None:
    await schedule(wire, author, in_session())
    first = await poll(one, poll_request_id="r")
    assert first is not None
    assert await poll(one, poll_request_id="r") == first


async def test_the_sessions_queue_decides_where_an_activity_waits_unless_it_names_its_own(
    wire: Wire, author: Worker, one: Worker
) -> None:
    there = await registered(wire, "there", supported_workflow_types=[], task_queue="q2", **TYPES)
    await schedule(
        wire,
        author,
        in_session("a", {"queue": "q2"}),
        in_session("b", {"queue": "q2"}, queue="q"),
        in_session("c", queue="q2"),
    )
    assert await poll(one) is None
    taken = [await poll(there, task_queue="q2") for _ in range(3)]
    assert [task and task["worker_session"]["session_id"] for task in taken] == ["a", "c", None]


async def test_below_the_floor_a_worker_gets_no_activity_of_a_session(wire: Wire, author: Worker, one: Worker) -> None:
    await schedule(wire, author, in_session(), CALL)
    body = {"worker_id": "one", "task_queue": "q", "timeout_seconds": 0}
    old = (await wire.worker("/activity-tasks/poll", body, version="1.7")).ok()["task"]
    assert "worker_session" not in old
    assert (await wire.worker("/activity-tasks/poll", body, version="1.7")).ok()["task"] is None
    assert (await wire.worker("/activity-tasks/poll", body, version="1.8")).ok()["task"]["worker_session"]


@pytest.mark.parametrize(
    ("version", "reason"),
    [("1.7", "worker_sessions_unavailable"), ("1.17", "portable_worker_affinity_protocol_floor_unavailable")],
)
async def test_a_completion_below_the_floors_schedules_nothing(
    wire: Wire, author: Worker, version: str, reason: str
) -> None:
    await wire.start()
    claim = await author.poll()
    old = Claim(Worker(wire, "author", version=version), claim.task)
    body = (await old.complete(in_session())).refused(409, reason)
    assert (body["outcome"], body["recorded"], body["requested_version"]) == ("rejected", False, version)
    assert (body["task_id"], body["workflow_task_attempt"]) == (claim.task["task_id"], 1)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.complete(in_session())).ok()


async def test_a_worker_that_did_not_register_sessions_may_not_name_one(wire: Wire) -> None:
    plain = Worker(wire, capabilities=())
    await plain.register()
    await wire.start()
    claim = await plain.poll()
    body = (await claim.complete(in_session())).refused(409, "worker_capability_not_supported")
    assert (body["capability"], body["recorded"]) == ("worker_sessions", False)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.complete(CALL)).ok()


@pytest.mark.parametrize(
    ("session", "field"),
    [
        ("s", ""),
        ([], ""),
        ({}, ".session_id"),
        ({"session_id": " "}, ".session_id"),
        ({"session_id": "s", "queue": ""}, ".queue"),
        ({"session_id": "s", "connection": 7}, ".connection"),
        ({"session_id": "s", "requirements": [""]}, ".requirements"),
        ({"session_id": "s", "lease_seconds": "120"}, ".lease_seconds"),
        ({"session_id": "s", "ttl_seconds": 0}, ".ttl_seconds"),
        ({"session_id": "s", "max_concurrent_activities": True}, ".max_concurrent_activities"),
        ({"session_id": "s", "create_if_missing": 1}, ".create_if_missing"),
        ({"session_id": "s", "allow_reacquire_after_failure": "no"}, ".allow_reacquire_after_failure"),
    ],
)
async def test_malformed_options_are_refused_by_field(wire: Wire, author: Worker, session: Any, field: str) -> None:
    await wire.start()
    claim = await author.poll()
    reply = await claim.complete({**CALL, "worker_session": session})
    assert list(reply.refused(422, "validation_failed")["errors"]) == [f"commands.0.worker_session{field}"]


async def test_other_commands_have_no_session(wire: Wire, author: Worker) -> None:
    await wire.start()
    claim = await author.poll()
    timer = {"type": "start_timer", "delay_seconds": 1, "worker_session": {"session_id": "s"}}
    errors = (await claim.complete(timer)).refused(422, "validation_failed")["errors"]
    assert list(errors) == ["commands.0.worker_session"]


@pytest.mark.parametrize("protocol", ["1.18", "1.19", "1.20"])
async def test_every_version_has_sessions(protocol: str) -> None:
    async with running_server(Settings(protocol=protocol)) as wire:
        author = await registered(wire, "author", version=protocol, **TYPES)
        await schedule(wire, author, in_session())
        body = {"worker_id": "author", "task_queue": "q", "timeout_seconds": 0}
        task = (await wire.worker("/activity-tasks/poll", body, version=protocol)).ok()["task"]
        assert task["worker_session"]["lease_owner"] == "author"
