"""Faults inside the server: they end leases as time would, are recorded, and do not exist unless asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from proctor.server.credentials import Credentials
from server.test_queued_activities import schedule, take
from server.test_sessions import create, renew, shown
from server.wire import COOPERATIVE, Reply, Wire, Worker, instant, running_server

ROUTES = ("", "/expire-lease", "/advance-clock", "/refuse-admission", "/admit")


@pytest.fixture
async def faulty() -> AsyncIterator[Wire]:
    async with running_server(faults=True, sweeping=True) as running:
        yield running


async def fault(wire: Wire, name: str, body: Any = None, **headers: str) -> Reply:
    if name == "":
        return await wire.request("GET", "/faults", headers=headers)
    sent = {"Content-Type": "application/json", **headers}
    return await wire.request("POST", f"/faults/{name}", {} if body is None else body, headers=sent)


async def registered(wire: Wire, name: str = "w") -> Worker:
    worker = Worker(wire, worker_id=name, capabilities=COOPERATIVE)
    await worker.register()
    return worker


async def test_without_the_flag_there_are_no_routes(wire: Wire) -> None:
    for path in ROUTES:
        for method in ("GET", "POST"):
            reply = await wire.request(method, f"/faults{path}", {})
            assert (reply.status, reply.reason) == (404, "operation_not_found")


async def test_no_fault_can_be_reached_under_the_path_of_the_protocol(faulty: Wire) -> None:
    for path in ROUTES:
        assert (await faulty.request("POST", f"/api/faults{path}", {})).status == 404


async def test_a_lease_that_was_ended_is_given_to_the_next_worker_and_fences_the_old_one(faulty: Wire) -> None:
    first, second = await registered(faulty), await registered(faulty, "other")
    await faulty.start()
    claim = await first.poll()
    attempt = await claim.prepared()

    entry = (await fault(faulty, "expire-lease", {"task_id": claim.task["task_id"]})).ok()
    assert entry["ended"] == [{"kind": "workflow_task", "task_id": claim.task["task_id"]}]
    again = await second.poll()
    assert again.task["workflow_task_attempt"] == 2
    assert (await attempt.outcome()).status == 409
    assert (await attempt.control()).status == 409
    assert "ActivityCompleted" not in await faulty.event_types()


async def test_all_leases_of_a_worker_end_its_queued_activities_too(faulty: Wire) -> None:
    worker = Worker(faulty)
    await worker.register(supported_activity_types=["charge"])
    await schedule(faulty, worker, retry_policy={"max_attempts": 2, "backoff_seconds": [0]})
    hand = await take(worker)

    entry = (await fault(faulty, "expire-lease", {"worker_id": "w"})).ok()
    assert [ended["kind"] for ended in entry["ended"]] == ["activity_task"]
    assert (await hand.complete()).status == 409
    assert (await take(worker)).task["attempt_number"] == 2


async def holding(wire: Wire, worker_id: str) -> Worker:
    worker = Worker(wire, worker_id, capabilities=("worker_sessions",))
    await worker.register(supported_activity_types=["charge"])
    return worker


async def test_the_lease_of_a_session_ends_and_another_worker_takes_it_over(faulty: Wire) -> None:
    first, second = await holding(faulty, "first"), await holding(faulty, "second")
    created = (await create(first, lease_seconds=600)).ok(201)["session"]
    (await create(second)).refused(409, "session_owned_by_another_worker")

    entry = (await fault(faulty, "expire-lease", {"session_id": "s"})).ok()

    assert entry["ended"] == [{"kind": "worker_session", "session_id": "s", "lease_owner": "first"}]
    session = await shown(faulty)
    assert (session["status"], session["failure_reason"]) == ("expired", "lease_expired")
    assert session["lease_expires_at"] == instant(0)
    assert session["ttl_expires_at"] == created["ttl_expires_at"]
    (await renew(first)).refused(409, "session_not_active")
    (await fault(faulty, "expire-lease", {"session_id": "s"})).refused(404, "nothing_leased")
    assert (await create(second)).ok()["outcome"] == "reacquired"
    (await renew(first)).refused(409, "session_owner_mismatch")
    assert (await fault(faulty, "")).ok()["done"] == 1


async def test_an_attempt_learns_that_its_session_was_ended_and_keeps_its_own_lease(faulty: Wire) -> None:
    worker = await holding(faulty, "w")
    await schedule(faulty, worker, worker_session={"session_id": "s"})
    hand = await take(worker)

    (await fault(faulty, "expire-lease", {"session_id": "s"})).ok()

    status = (await hand.post("status")).ok()
    assert (status["can_continue"], status["reason"]) == (False, "worker_session_unavailable")
    assert status["task_status"] == "leased"


async def test_ending_a_session_wakes_the_poll_of_a_worker_that_may_take_its_next_activity(faulty: Wire) -> None:
    first, second = await holding(faulty, "first"), await holding(faulty, "second")
    (await create(first, lease_seconds=600)).ok(201)
    taken: list[Reply] = []

    async def park() -> None:
        body = {"worker_id": "second", "task_queue": "q", "timeout_seconds": 30}
        taken.append(await faulty.worker("/activity-tasks/poll", body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(park)
        await faulty.parked()
        await schedule(faulty, second, worker_session={"session_id": "s"})
        await faulty.settle()
        assert taken == []
        (await fault(faulty, "expire-lease", {"session_id": "s"})).ok()

    task = taken[0].ok()["task"]
    assert (task["worker_session"]["session_id"], task["worker_session"]["lease_owner"]) == ("s", "second")


async def test_ending_a_lease_wakes_a_parked_poll(faulty: Wire) -> None:
    first, second = await registered(faulty), await registered(faulty, "other")
    await faulty.start()
    claim = await first.poll()
    taken: list[Reply] = []

    async def park() -> None:
        taken.append(await second.try_poll(timeout_seconds=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(park)
        await faulty.settle()
        assert taken == []
        (await fault(faulty, "expire-lease", {"worker_id": "w"})).ok()

    assert taken[0].ok()["task"]["task_id"] == claim.task["task_id"]


async def test_the_clock_jumps_and_what_has_passed_then_is_over(faulty: Wire) -> None:
    worker = await registered(faulty)
    await faulty.start()
    claim = await worker.poll()
    (await fault(faulty, "advance-clock", {"seconds": 9.5})).ok()
    (await claim.post("/heartbeat")).ok()
    (await fault(faulty, "advance-clock", {"seconds": 10.5})).ok()
    await faulty.settle()

    (await claim.post("/heartbeat")).refused(409, "task_not_leased")
    shown = (await fault(faulty, "")).ok()
    assert (shown["clock_ahead_seconds"], shown["now"]) == (20.0, instant(20.0))
    assert [(entry["fault"], entry["at"]) for entry in shown["record"]] == [
        ("advance-clock", instant(9.5)),
        ("advance-clock", instant(20.0)),
    ]


async def test_a_jump_ends_a_parked_poll_whose_time_has_passed(faulty: Wire) -> None:
    worker = await registered(faulty)
    async with trio.open_nursery() as nursery:

        async def park() -> None:
            assert (await worker.try_poll(timeout_seconds=30)).ok()["task"] is None

        nursery.start_soon(park)
        await faulty.settle()
        with trio.fail_after(5):
            (await fault(faulty, "advance-clock", {"seconds": 31})).ok()


async def test_refused_admission_changes_nothing_and_ends(faulty: Wire) -> None:
    worker = await registered(faulty)
    await faulty.start()
    claim = await worker.poll()
    (await fault(faulty, "refuse-admission", {"reason": "storage_pressure", "retry_after_seconds": 7})).ok()

    reply = await worker.try_poll(request_id="p")
    body = reply.refused(503, "storage_pressure")
    assert reply.headers["retry-after"] == "7"
    assert body.items() >= {
        "retryable": True, "retry_after_seconds": 7, "storage_state": "draining", "request_admitted": False,
        "task": None, "poll_status": "storage_pressure", "poll_request_id": "p",
        "retry_same_poll_request_id": True, "claim_admitted": False, "protocol_version": "1.20",
    }.items()  # fmt: skip
    told = (await claim.complete({"type": "complete_workflow"})).refused(503, "storage_pressure")
    assert "poll_status" not in told
    assert (await faulty.describe())["status"] != "completed"
    assert (await fault(faulty, "admit")).ok()["refused"] == 2
    (await claim.complete({"type": "complete_workflow"})).ok()
    (await fault(faulty, "admit")).refused(404, "nothing_refused")


async def test_impossible_faults_are_refused_and_not_recorded(faulty: Wire) -> None:
    wrong: list[tuple[str, Any, int]] = [
        ("expire-lease", {}, 422),
        ("expire-lease", {"task_id": "a", "worker_id": "b"}, 422),
        ("expire-lease", {"task_id": "a", "session_id": "b"}, 422),
        ("expire-lease", {"task_id": "unknown"}, 404),
        ("expire-lease", {"session_id": "unknown"}, 404),
        ("expire-lease", {"session_id": ["unknown"]}, 422),
        ("expire-lease", {"worker_id": 5}, 422),
        ("advance-clock", {"seconds": -1}, 422),
        ("advance-clock", {"seconds": True}, 422),
        ("advance-clock", {"seconds": 1e12}, 422),
        ("refuse-admission", {"reason": "moody"}, 422),
        ("refuse-admission", {"retry_after_seconds": 0}, 422),
        ("advance-clock", [], 422),
    ]
    for name, body, status in wrong:
        assert (await fault(faulty, name, body)).status == status, (name, body)
    assert (await faulty.request("POST", "/faults/admit", raw=b"x", headers={})).status == 415
    assert (await fault(faulty, "")).ok()["record"] == []


async def test_faults_ask_for_the_control_plane_s_token() -> None:
    async with running_server(faults=True, credentials=Credentials(worker="w", control="c")) as wire:
        assert (await fault(wire, "")).status == 401
        assert (await fault(wire, "advance-clock", {"seconds": 1}, Authorization="Bearer w")).status == 403
        assert (await fault(wire, "advance-clock", {"seconds": 1}, Authorization="Bearer c")).status == 200


async def test_the_clock_goes_a_hundred_years_ahead_and_no_farther(faulty: Wire) -> None:
    year = 366 * 86_400
    for _ in range(99):
        (await fault(faulty, "advance-clock", {"seconds": year})).ok()
    refused = (await fault(faulty, "advance-clock", {"seconds": year})).refused(422, "validation_failed")
    assert list(refused["errors"]) == ["seconds"]
    assert (await faulty.start())["status"] == "pending"
