"""What operators see of workers and task queues, and taking a worker off the roster (control-plane.md §10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from server.test_queued_activities import CALL, Hand, poll
from server.wire import Wire, Worker, instant, retries

FIXTURES = ("worker-list-parity.json", "worker-describe-parity.json")


async def queue(wire: Wire, name: str = "q") -> dict[str, Any]:
    return (await wire.control("GET", f"/task-queues/{name}")).ok()


async def hands(wire: Wire, worker_id: str = "hands", **changes: Any) -> Worker:
    worker = Worker(wire, worker_id)
    await worker.register(supported_workflow_types=[], supported_activity_types=["charge"], **changes)
    return worker


async def test_a_queue_that_nobody_used_is_an_empty_one(wire: Wire) -> None:
    shown = await queue(wire, "nothing/yet")
    assert (shown["name"], shown["namespace"]) == ("nothing/yet", "default")
    assert (shown["pollers"], shown["current_leases"]) == ([], [])
    assert shown["stats"]["approximate_backlog_count"] == 0
    assert shown["stats"]["oldest_ready_task"] is None
    assert shown["admission"]["workflow_tasks"]["status"] == "no_active_workers"
    assert (await wire.control("GET", "/task-queues")).ok()["task_queues"] == []


async def test_what_waits_is_counted_with_its_age(wire: Wire, worker: Worker) -> None:
    started = await wire.start()
    wire.clock.advance(5)
    await wire.start("wf2")
    wire.clock.advance(2.9)

    stats = (await queue(wire))["stats"]

    assert (stats["approximate_backlog_count"], stats["approximate_backlog_age"]) == (2, "7s")
    assert stats["approximate_backlog_age_seconds"] == 7
    oldest = stats["oldest_ready_task"]
    assert (oldest["task_type"], oldest["workflow_id"], oldest["run_id"]) == ("workflow", "wf", started["run_id"])
    assert (oldest["available_at"], oldest["age_seconds"]) == (instant(0), 7)
    assert stats["workflow_tasks"] == {"ready_count": 2, "leased_count": 0, "expired_lease_count": 0}
    assert stats["pollers"] == {"active_count": 1, "stale_count": 0, "stale_after_seconds": 300}


async def test_leases_of_both_kinds_are_shown_until_they_end(wire: Wire, worker: Worker) -> None:
    hand = await hands(wire)
    await wire.start()
    (await (await worker.poll()).complete({**CALL, "retry_policy": retries(2, 0)})).ok()
    activity = await poll(hand)
    assert activity is not None
    await wire.start("wf2")
    claim = await worker.poll()

    workflow, running = (await queue(wire))["current_leases"]

    assert workflow == {
        "task_id": claim.task["task_id"],
        "task_type": "workflow",
        "workflow_id": "wf2",
        "run_id": claim.task["run_id"],
        "lease_owner": "w",
        "lease_expires_at": instant(10),
        "is_expired": False,
        "workflow_task_attempt": 1,
        "sticky_replay_mode": "cold_replay",
        "sticky_claimed_at": instant(0),
    }
    assert running == {
        "task_id": activity["task_id"],
        "task_type": "activity",
        "workflow_id": "wf",
        "run_id": activity["run_id"],
        "lease_owner": "hands",
        "lease_expires_at": instant(60),
        "is_expired": False,
        "activity_attempt_id": activity["activity_attempt_id"],
        "attempt_number": 1,
    }
    wire.clock.advance(60)
    later = await queue(wire)
    assert later["current_leases"] == []
    assert later["stats"]["workflow_tasks"]["ready_count"] == 1
    assert later["stats"]["activity_tasks"] == {"ready_count": 1, "leased_count": 0, "expired_lease_count": 0}
    assert later["stats"]["oldest_ready_task"]["age_seconds"] == 60


@pytest.mark.parametrize(
    ("slots", "leased", "status", "free"),
    [((2,), 1, "accepting", 1), ((1,), 1, "saturated", 0), ((0,), 0, "no_slots", 0), ((1, 2), 1, "accepting", 2)],
)
async def test_admission_is_what_the_active_workers_can_take(
    wire: Wire, slots: tuple[int, ...], leased: int, status: str, free: int
) -> None:
    workers = [Worker(wire, f"w{index}") for index in range(len(slots))]
    for worker, count in zip(workers, slots, strict=True):
        await worker.register(max_concurrent_workflow_tasks=count, max_concurrent_activity_tasks=3)
    await wire.start()
    await wire.start("wf2")
    for _ in range(leased):
        await workers[-1].poll()

    admission = (await queue(wire))["admission"]["workflow_tasks"]

    assert (admission["status"], admission["available_slot_count"]) == (status, free)
    assert (admission["active_worker_count"], admission["configured_slot_count"]) == (len(slots), sum(slots))
    assert (admission["leased_count"], admission["ready_count"]) == (leased, 2 - leased)
    assert admission["budget_source"] == "worker_registration.max_concurrent_workflow_tasks"
    assert admission["server_max_active_leases_per_queue"] is None
    assert admission["server_namespace_active_lease_count"] == leased


async def test_silent_workers_are_pollers_but_take_nothing(wire: Wire, worker: Worker) -> None:
    wire.clock.advance(301)
    await Worker(wire, "fresh").register()

    shown = await queue(wire)

    assert [(row["worker_id"], row["status"], row["is_stale"]) for row in shown["pollers"]] == [
        ("fresh", "active", False),
        ("w", "stale", True),
    ]
    assert shown["pollers"][1]["heartbeat_expires_at"] == instant(300)
    assert shown["stats"]["pollers"] == {"active_count": 1, "stale_count": 1, "stale_after_seconds": 300}
    assert shown["admission"]["workflow_tasks"]["active_worker_count"] == 1


async def test_waiting_queries_are_counted_against_their_budget(wire: Wire, worker: Worker) -> None:
    capable = Worker(wire, "asked", capabilities=("query_tasks",))
    await capable.register()
    await wire.start()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.control, "POST", "/workflows/wf/query/total", {})
        await trio.testing.wait_all_tasks_blocked()
        admission = (await queue(wire))["admission"]["query_tasks"]
        nursery.cancel_scope.cancel()

    assert (admission["status"], admission["approximate_pending_count"]) == ("accepting", 1)
    assert admission["remaining_pending_capacity"] == admission["max_pending_per_queue"] - 1


async def test_queues_are_listed_with_workers_or_open_tasks(wire: Wire, worker: Worker) -> None:
    await Worker(wire, "elsewhere").register(task_queue="b")
    await wire.start("wf", task_queue="a")
    await wire.start("done", task_queue="c")
    (await wire.control("POST", "/workflows/done/terminate", {})).ok()

    listed = (await wire.control("GET", "/task-queues")).ok()

    assert [row["name"] for row in listed["task_queues"]] == ["a", "b", "q"]
    assert listed["namespace"] == "default"
    assert listed["task_queues"][0]["stats"]["workflow_tasks"]["ready_count"] == 1
    assert "pollers" not in listed["task_queues"][0]


async def test_workers_are_filtered_by_queue_and_status(wire: Wire, worker: Worker) -> None:
    wire.clock.advance(301)
    await Worker(wire, "fresh").register()
    await Worker(wire, "other").register(task_queue="b")

    async def names(query: str) -> list[str]:
        rows = (await wire.control("GET", f"/workers{query}")).ok()["workers"]
        return [row["worker_id"] for row in rows]

    assert await names("") == ["fresh", "other", "w"]
    assert await names("?status=active") == ["fresh", "other"]
    assert await names("?status=stale") == ["w"]
    assert await names("?status=draining") == []
    assert await names("?task_queue=b") == ["other"]
    assert await names("?task_queue=q&status=active") == ["fresh"]
    (await wire.worker("/heartbeat", {"worker_id": "w"})).ok()
    assert await names("?status=stale") == []


async def test_a_worker_taken_off_the_roster_holds_nothing_and_is_not_believed_to_have_stopped(wire: Wire) -> None:
    worker = Worker(wire, "team/w")
    token = (await worker.register())["registration_token"]
    hand = await hands(wire, "team/hands")
    await wire.start()
    (await (await worker.poll()).complete({**CALL, "retry_policy": retries(2, 0)})).ok()
    taken = await poll(hand)
    assert taken is not None
    await wire.start("wf2")
    attempt = await (await worker.poll()).prepared()
    until = attempt.receipt["lease_expires_at"]

    for name in ("team/w", "team/hands"):
        removed = (await wire.control("DELETE", f"/workers/{name}")).ok()
        assert (removed["worker_id"], removed["outcome"]) == (name, "deregistered")

    (await wire.control("GET", "/workers/team/w")).refused(404, "worker_not_found")
    (await wire.control("DELETE", "/workers/team/w")).refused(404, "worker_not_found")
    (await worker.try_poll()).refused(412, "worker_not_registered")
    (await wire.worker("/heartbeat", {"worker_id": "team/w"})).refused(404, "worker_not_registered")
    (await Hand(hand, taken).complete()).refused(409, "stale_attempt")
    (await attempt.claim.complete()).refused(409, "task_not_leased")
    kept = await wire.store.transact(lambda tx: tx.running_attempts_of(attempt.claim.task["task_id"]))
    assert [row.lease_expires_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for row in kept] == [until]
    reply = await wire.worker("/registrations/w/deregister", {"registration_token": token})
    reply.refused(404, "worker_registration_token_not_found")


async def test_the_fixtures_of_worker_readouts_name_nothing_we_lack(
    wire: Wire, worker: Worker, shared_fixtures: Path
) -> None:
    listed, described = (
        json.loads((shared_fixtures / "control-plane" / name).read_text())["response_body"] for name in FIXTURES
    )
    ours = (await wire.control("GET", "/workers?task_queue=q&status=active")).ok()
    assert listed.keys() <= ours.keys()
    assert listed["workers"][0].keys() <= ours["workers"][0].keys()
    assert described.keys() <= (await wire.control("GET", "/workers/w")).ok().keys()
