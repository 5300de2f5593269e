"""Worker sessions: who may hold one, for how long, and what each operation refuses first (sessions.md §3, §5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from proctor.server.rules.book import Settings
from server.wire import ManualClock, Reply, Wire, Worker, instant, running_server

SESSIONS = ("worker_sessions", "cache:local")


@pytest.fixture
async def holder(wire: Wire) -> Worker:
    return await registered(wire, "holder")


async def registered(wire: Wire, worker_id: str, *capabilities: str, version: str = "1.20", **changes: Any) -> Worker:
    worker = Worker(wire, worker_id, capabilities=(*SESSIONS, *capabilities), version=version)
    await worker.register(**changes)
    return worker


async def create(worker: Worker, session_id: Any = "s", **options: Any) -> Reply:
    body = {"worker_id": worker.worker_id, "session_id": session_id, **options}
    return await worker.wire.worker("/sessions", body, version=worker.version)


async def renew(worker: Worker, session_id: str = "s", **options: Any) -> Reply:
    body = {"worker_id": worker.worker_id, **options}
    return await worker.wire.worker(f"/sessions/{session_id}/heartbeat", body, version=worker.version)


async def close(worker: Worker, session_id: str = "s") -> Reply:
    body = {"worker_id": worker.worker_id, "reason": "worker_shutdown"}
    return await worker.wire.worker(f"/sessions/{session_id}", body, version=worker.version, method="DELETE")


async def shown(wire: Wire, session_id: str = "s") -> dict[str, Any]:
    session: dict[str, Any] = (await wire.control("GET", f"/worker-sessions/{session_id}")).ok()["session"]
    return session


async def beat(*workers: Worker) -> None:
    for worker in workers:
        (await worker.wire.worker("/heartbeat", {"worker_id": worker.worker_id})).ok()


def refusal(reply: Reply, reason: str, *, status: int = 409, session: bool = False) -> dict[str, Any]:
    body = reply.refused(status, reason)
    assert (body["admitted"], body["status"]) == (False, status)
    assert body["error"]
    assert ("session" in body) is session
    return body


async def test_a_session_is_created_reused_renewed_and_closed_once(wire: Wire, holder: Worker) -> None:
    created = (await create(holder, requirements=["cache:local"])).ok(201)
    assert (created["admitted"], created["outcome"], created["status"]) == (True, "created", 201)
    assert (created["activity_task_id"], created["reason"]) == (None, None)
    session = created["session"]
    assert session == {
        "session_id": "s",
        "namespace": "default",
        "connection": None,
        "queue": "q",
        "requirements": ["cache:local"],
        "status": "active",
        "lease_owner": "holder",
        "holder": {
            "worker_id": "holder",
            "task_queue": "q",
            "status": "active",
            "last_heartbeat_at": instant(0),
            "is_stale": False,
        },
        "lease_expires_at": instant(120),
        "ttl_expires_at": instant(1800),
        "closed_at": None,
        "failure_reason": None,
        "lease_seconds": 120,
        "ttl_seconds": 1800,
        "max_concurrent_activities": 1,
        "create_if_missing": True,
        "allow_reacquire_after_failure": True,
        "active_activity_count": 0,
        "last_heartbeat_at": instant(0),
        "created_at": instant(0),
        "updated_at": instant(0),
    }
    wire.clock.advance(10)
    reused = (await create(holder, lease_seconds=60, ttl_seconds=9, max_concurrent_activities=2)).ok(200)
    assert (reused["outcome"], reused["status"]) == ("reused", 200)
    assert reused["session"]["lease_expires_at"] == instant(70)
    assert reused["session"]["ttl_expires_at"] == instant(1800)
    assert (reused["session"]["ttl_seconds"], reused["session"]["max_concurrent_activities"]) == (9, 2)
    assert reused["session"]["created_at"] == instant(0)
    once = (await renew(holder, lease_seconds=5)).ok()
    assert (once["outcome"], once["session"]["lease_expires_at"]) == ("heartbeat_recorded", instant(15))
    assert once["session"]["lease_seconds"] == 60
    assert (await renew(holder)).ok()["session"]["lease_expires_at"] == instant(70)
    closed = (await close(holder)).ok()
    assert (closed["outcome"], closed["session"]["status"]) == ("closed", "closed")
    assert closed["session"]["closed_at"] == instant(10)
    wire.clock.advance(10)
    again = (await close(holder)).ok()
    assert (again["outcome"], again["session"]["closed_at"]) == ("already_closed", instant(10))


async def test_others_are_refused_while_it_is_held_and_everybody_after_it_is_closed(wire: Wire, holder: Worker) -> None:
    other = await registered(wire, "other")
    (await create(holder)).ok(201)

    owned = refusal(await create(other), "session_owned_by_another_worker", session=True)
    assert owned["session"]["lease_owner"] == "holder"
    refusal(await renew(other), "session_owner_mismatch", session=True)
    refusal(await close(other), "session_owner_mismatch", session=True)
    (await close(holder)).ok()
    refusal(await create(other), "session_closed", session=True)
    refusal(await create(holder), "session_closed", session=True)
    refusal(await renew(holder), "session_not_active", session=True)
    refusal(await close(other), "session_owner_mismatch", session=True)


async def test_what_is_unknown_is_not_found(wire: Wire, holder: Worker) -> None:
    refusal(await renew(holder), "session_not_found", status=404)
    refusal(await close(holder), "session_not_found", status=404)
    refusal(await create(holder, create_if_missing=False), "session_missing")
    missing = (await wire.control("GET", "/worker-sessions/s")).refused(404, "worker_session_not_found")
    assert "message" in missing
    listed = (await wire.control("GET", "/worker-sessions")).ok()
    assert (listed["namespace"], listed["sessions"]) == ("default", [])
    assert set(listed["metrics"].values()) == {0}


async def test_the_holder_limit_counts_live_leases_only_and_reusing_needs_none(wire: Wire) -> None:
    worker = await registered(wire, "w", max_concurrent_worker_sessions=1)
    (await create(worker, "a", lease_seconds=30)).ok(201)
    body = refusal(await create(worker, "b"), "worker_session_limit_exceeded")
    assert body["max_concurrent_worker_sessions"] == 1
    assert (await create(worker, "a", lease_seconds=30)).ok()["outcome"] == "reused"
    wire.clock.advance(30)
    (await create(worker, "b")).ok(201)
    refusal(await create(worker, "a"), "worker_session_limit_exceeded")
    (await close(worker, "b")).ok()
    assert (await create(worker, "a")).ok()["outcome"] == "reacquired"


async def test_requirements_are_capabilities_of_the_registration(wire: Wire, holder: Worker) -> None:
    body = refusal(
        await create(holder, requirements=["gpu:l4", " cache:local ", "gpu:l4", "zone:a"]),
        "session_requirements_not_met",
    )
    assert body["missing_requirements"] == ["gpu:l4", "zone:a"]
    equipped = await registered(wire, "equipped", "gpu:l4")
    created = (await create(equipped, requirements=["gpu:l4", " cache:local ", "gpu:l4"])).ok(201)
    assert created["session"]["requirements"] == ["gpu:l4", "cache:local"]


async def test_the_queue_must_be_the_workers_own(wire: Wire, holder: Worker) -> None:
    body = (await create(holder, queue="elsewhere", requirements=["gpu:l4"])).refused(409, "session_queue_mismatch")
    assert (body["worker_id"], body["registered_task_queue"]) == ("holder", "q")
    assert body["requested_session_queue"] == "elsewhere"
    assert "admitted" not in body
    assert (await create(holder, queue=" q ")).ok(201)["session"]["queue"] == "q"


async def test_an_unregistered_worker_creates_nothing(wire: Wire) -> None:
    body = (await create(Worker(wire, "nobody"))).refused(412, "worker_not_registered")
    assert body["worker_id"] == "nobody"
    assert "admitted" not in body
    refusal(await renew(Worker(wire, "nobody")), "session_not_found", status=404)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"session_id": None}, "session_id"),
        ({"session_id": 7}, "session_id"),
        ({"session_id": "x" * 256}, "session_id"),
        ({"worker_id": None}, "worker_id"),
        ({"queue": 7}, "queue"),
        ({"connection": "x" * 256}, "connection"),
        ({"requirements": "gpu"}, "requirements"),
        ({"requirements": [" "]}, "requirements"),
        ({"requirements": ["x" * 256]}, "requirements"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease_seconds": True}, "lease_seconds"),
        ({"lease_seconds": "soon"}, "lease_seconds"),
        ({"lease_seconds": "0"}, "lease_seconds"),
        ({"lease_seconds": "9" * 40}, "lease_seconds"),
        ({"ttl_seconds": 1.5}, "ttl_seconds"),
        ({"ttl_seconds": 2**63}, "ttl_seconds"),
        ({"max_concurrent_activities": -1}, "max_concurrent_activities"),
        ({"create_if_missing": "yes"}, "create_if_missing"),
        ({"allow_reacquire_after_failure": 2}, "allow_reacquire_after_failure"),
    ],
)
async def test_a_malformed_request_creates_nothing(
    wire: Wire, holder: Worker, options: dict[str, Any], field: str
) -> None:
    body = {"worker_id": "holder", "session_id": "s", **options}
    errors = (await wire.worker("/sessions", body)).refused(422, "validation_failed")["errors"]
    assert list(errors) == [field]
    assert (await wire.control("GET", "/worker-sessions")).ok()["metrics"]["total"] == 0


async def test_a_blank_session_id_has_a_reason_of_its_own(wire: Wire, holder: Worker) -> None:
    refusal(await create(holder, "  "), "invalid_worker_session", status=422)
    assert (await create(holder, " s ")).ok(201)["session"]["session_id"] == "s"


async def test_nulls_are_defaults_and_numbers_may_be_digits(wire: Wire, holder: Worker) -> None:
    nothing = dict.fromkeys(
        ("queue", "connection", "requirements", "lease_seconds", "create_if_missing", "allow_reacquire_after_failure")
    )
    session = (await create(holder, ttl_seconds="600", max_concurrent_activities="3", **nothing)).ok(201)["session"]
    assert (session["lease_seconds"], session["ttl_seconds"], session["max_concurrent_activities"]) == (120, 600, 3)
    assert (session["requirements"], session["create_if_missing"]) == ([], True)
    again = (await create(holder, create_if_missing=0, allow_reacquire_after_failure="1", lease_seconds="7")).ok()
    assert (again["session"]["create_if_missing"], again["session"]["allow_reacquire_after_failure"]) == (False, True)
    assert (await renew(holder, lease_seconds="9")).ok()["session"]["lease_expires_at"] == instant(9)


async def test_a_connection_is_kept_until_another_is_named(wire: Wire, holder: Worker) -> None:
    (await create(holder, connection="redis")).ok(201)
    assert (await create(holder)).ok()["session"]["connection"] == "redis"
    assert (await create(holder, connection="sqs")).ok()["session"]["connection"] == "sqs"


async def test_the_lease_ends_by_itself_and_is_never_silently_revived(wire: Wire, holder: Worker) -> None:
    other = await registered(wire, "other")
    (await create(holder, lease_seconds=3)).ok(201)
    wire.clock.advance(2.999999)
    assert (await shown(wire))["status"] == "active"
    wire.clock.advance(0.000001)
    expired = await shown(wire)
    assert (expired["status"], expired["failure_reason"], expired["lease_owner"]) == (
        "expired",
        "lease_expired",
        "holder",
    )
    refusal(await renew(holder), "session_not_active", session=True)

    taken = (await create(other, lease_seconds=3)).ok()
    assert (taken["outcome"], taken["session"]["lease_owner"]) == ("reacquired", "other")
    assert (taken["session"]["failure_reason"], taken["session"]["ttl_expires_at"]) == (None, instant(1800))
    refusal(await renew(holder), "session_owner_mismatch", session=True)


async def test_the_whole_life_is_fixed_at_creation_and_its_end_is_final(wire: Wire, holder: Worker) -> None:
    other = await registered(wire, "other")
    (await create(holder, lease_seconds=3, ttl_seconds=8)).ok(201)
    wire.clock.advance(3.25)
    taken = (await create(other, lease_seconds=300, ttl_seconds=800)).ok()
    assert taken["session"]["ttl_expires_at"] == instant(8)
    wire.clock.advance(4.75)
    refusal(await renew(other), "session_not_active", session=True)
    ended = await shown(wire)
    assert (ended["status"], ended["failure_reason"]) == ("expired", "ttl_expired")
    for worker in (holder, other):
        refusal(await create(worker), "session_reacquire_disallowed", session=True)
    assert (await close(other)).ok()["outcome"] == "closed"
    refusal(await create(other), "session_closed", session=True)


@pytest.mark.parametrize("stored", [True, False])
async def test_reacquiring_needs_the_consent_of_both(wire: Wire, holder: Worker, stored: bool) -> None:
    (await create(holder, lease_seconds=3, allow_reacquire_after_failure=stored)).ok(201)
    wire.clock.advance(3)
    reply = await create(holder, allow_reacquire_after_failure=not stored)
    refusal(reply, "session_reacquire_disallowed", session=True)
    again = await create(holder)
    if stored:
        assert again.ok()["outcome"] == "reacquired"
    else:
        refusal(again, "session_reacquire_disallowed", session=True)


async def test_an_expired_session_may_be_closed_by_its_last_holder(wire: Wire, holder: Worker) -> None:
    (await create(holder, lease_seconds=3)).ok(201)
    wire.clock.advance(3)
    closed = (await close(holder)).ok()
    assert (closed["outcome"], closed["session"]["failure_reason"]) == ("closed", None)
    refusal(await create(holder), "session_closed", session=True)


async def test_a_holder_that_is_gone_orphans_its_session_before_the_lease_ends(wire: Wire, holder: Worker) -> None:
    other = await registered(wire, "other")
    (await create(holder)).ok(201)
    (await wire.worker("/registrations/holder", method="DELETE")).ok()
    orphan = await shown(wire)
    assert (orphan["status"], orphan["failure_reason"]) == ("orphaned", "worker_heartbeat_stale")
    assert orphan["holder"] == {
        "worker_id": "holder",
        "task_queue": None,
        "status": None,
        "last_heartbeat_at": None,
        "is_stale": True,
    }
    assert (await create(other)).ok()["outcome"] == "reacquired"


async def test_a_silent_holder_orphans_its_session_for_good(wire: Wire, holder: Worker) -> None:
    other = await registered(wire, "other")
    (await create(holder, lease_seconds=3600, ttl_seconds=7200)).ok(201)
    wire.clock.advance(300)
    assert (await shown(wire))["status"] == "active"
    wire.clock.advance(0.000001)
    orphan = await shown(wire)
    assert (orphan["status"], orphan["failure_reason"], orphan["holder"]["status"]) == (
        "orphaned",
        "worker_heartbeat_stale",
        "active",
    )
    assert orphan["holder"]["is_stale"] is True
    await beat(holder, other)
    assert (await shown(wire))["status"] == "orphaned"
    refusal(await renew(holder), "session_not_active", session=True)
    assert (await create(other)).ok()["outcome"] == "reacquired"


async def test_a_holder_that_registers_again_still_holds(wire: Wire, holder: Worker) -> None:
    (await create(holder)).ok(201)
    await holder.register()
    assert (await renew(holder)).ok()["outcome"] == "heartbeat_recorded"


async def test_refusals_come_in_the_order_of_the_reference(wire: Wire, holder: Worker) -> None:
    full = await registered(wire, "full", max_concurrent_worker_sessions=1)
    (await create(holder)).ok(201)
    (await create(full, "own")).ok(201)
    (await create(full, requirements=["gpu"], create_if_missing=False)).refused(409, "session_requirements_not_met")
    (await create(full, "new", create_if_missing=False)).refused(409, "session_missing")
    (await create(full)).refused(409, "session_owned_by_another_worker")
    wire.clock.advance(120)
    await beat(full)
    (await create(full, "own2")).ok(201)
    (await create(full, allow_reacquire_after_failure=False)).refused(409, "session_reacquire_disallowed")
    (await create(full)).refused(409, "worker_session_limit_exceeded")
    (await close(holder)).ok()
    (await create(full, allow_reacquire_after_failure=False)).refused(409, "session_closed")


async def test_below_the_floor_nothing_is_offered(wire: Wire, holder: Worker) -> None:
    old = Worker(wire, "holder", version="1.7")
    for reply in (await create(old), await renew(old), await close(old)):
        body = reply.refused(409, "worker_sessions_unavailable")
        assert (body["requested_version"], body["minimum_protocol_version"]) == ("1.7", "1.8")
        assert (body["supported_version"], bool(body["remediation"])) == ("1.20", True)
    old.version = "1.8"
    (await create(old)).ok(201)


async def test_ids_with_slashes_and_colons_are_one_name(wire: Wire, holder: Worker) -> None:
    name = "fs:/mnt/models"
    (await create(holder, name)).ok(201)
    assert (await renew(holder, name)).ok()["session"]["session_id"] == name
    assert (await shown(wire, name))["session_id"] == name
    assert (await close(holder, name)).ok()["outcome"] == "closed"


async def test_sessions_are_listed_with_their_number_by_status(wire: Wire, holder: Worker) -> None:
    other = await registered(wire, "other")
    for name in ("a", "b", "c"):
        (await create(holder, name)).ok(201)
    (await create(holder, "d", lease_seconds=1)).ok(201)
    (await create(other, "e")).ok(201)
    (await close(holder, "b")).ok()
    (await wire.worker("/registrations/other", method="DELETE")).ok()
    wire.clock.advance(1)
    listed = (await wire.control("GET", "/worker-sessions")).ok()
    assert [(row["session_id"], row["status"]) for row in listed["sessions"]] == [
        ("d", "expired"),
        ("e", "orphaned"),
        ("a", "active"),
        ("b", "closed"),
        ("c", "active"),
    ]
    assert listed["metrics"] == {"total": 5, "active": 2, "closed": 1, "expired": 1, "failed": 0, "orphaned": 1}


@pytest.mark.parametrize("protocol", ["1.18", "1.19", "1.20"])
async def test_what_is_said_fits_the_official_schema(shared_fixtures: Path, protocol: str) -> None:
    schema = json.loads((shared_fixtures / "scenarios" / "worker-sessions-runtime.schema.json").read_text())

    def fits(name: str, value: Any) -> None:
        part = {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
        Draft202012Validator(part, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)

    async with running_server(Settings(protocol=protocol)) as wire:
        holder = await registered(wire, "holder", version=protocol)
        info = (await wire.request("GET", "/api/cluster/info")).ok()
        capabilities = info["worker_protocol"]["server_capabilities"]
        assert capabilities["worker_sessions"]["supported"] is True
        assert capabilities["worker_session_verbs"] == ["create", "heartbeat", "close"]
        fits("workerSessionRuntimeContract", capabilities["worker_sessions"])
        for reply in (
            await create(holder),
            await create(holder),
            await renew(holder),
            await create(holder, requirements=["gpu"]),
            await create(holder, "none", create_if_missing=False),
            await close(holder),
            await close(holder),
            await create(holder),
            await renew(holder, "nothing"),
        ):
            fits("workerSessionOperationResult", reply.body)
        fits("workerSessionVisibility", (await wire.control("GET", "/worker-sessions")).ok())
        fits("workerSessionDetail", (await wire.control("GET", "/worker-sessions/s")).ok())


async def test_sessions_outlive_the_server(tmp_path: Path) -> None:
    clock = ManualClock()
    for expected, seconds in (("created", 30), ("reused", 60), ("reacquired", 0)):
        async with running_server(database=tmp_path / "proctor.db", clock=clock) as wire:
            if expected == "created":
                holder = await registered(wire, "holder")
            holder.wire = wire
            reply = await create(holder, lease_seconds=60)
            assert reply.body["outcome"] == expected
            assert reply.body["session"]["ttl_expires_at"] == instant(1800)
        clock.advance(seconds)
