"""Sticky execution: the claim of a completion, the affinity it makes, and the mode of every leased task (sticky.md)."""

from __future__ import annotations

from typing import Any

import pytest

from proctor.server.rules.book import Settings
from server.wire import ENVELOPE, Claim, Reply, Wire, Worker, describe_call, running_server, side_effect

STICKY = ("sticky_execution",)
METRICS = {"hit": 3, "miss": 1, "eviction": 0, "forced_cold_replay": 2}
WAIT = {"type": "open_condition_wait", "condition_key": "never"}


@pytest.fixture
async def sticky(wire: Wire) -> Worker:
    registered = Worker(wire, capabilities=STICKY)
    await registered.register(build_id="b")
    return registered


def claim_of(claim: Claim, **changes: Any) -> dict[str, Any]:
    identity = {name: claim.task[name] for name in ("workflow_id", "run_id")}
    body = {"worker_id": claim.worker.worker_id, **identity, "build_id": "b", "ttl_seconds": 300, "metrics": METRICS}
    return {name: value for name, value in {**body, **changes}.items() if value is not ...}


async def complete(claim: Claim, *commands: dict[str, Any], **changes: Any) -> Reply:
    return await claim.post("/complete", commands=list(commands) or [WAIT], sticky_cache=claim_of(claim, **changes))


async def signal(wire: Wire, workflow_id: str = "wf") -> None:
    (await wire.control("POST", f"/workflows/{workflow_id}/signal/go", {})).ok(202)


async def kept(wire: Wire, worker: Worker, **changes: Any) -> None:
    """Run one task whose history the worker keeps, and wake the run again."""
    await wire.start()
    (await complete(await worker.poll(), **changes)).ok()
    await signal(wire)


def mode(claim: Claim) -> Any:
    return claim.task["sticky_replay_mode"]


async def other_worker(wire: Wire, worker_id: str = "other", **registered: Any) -> Worker:
    worker = Worker(wire, worker_id, capabilities=STICKY)
    await worker.register(build_id="b", **registered)
    return worker


async def test_a_task_without_affinity_is_replayed_cold(wire: Wire, sticky: Worker) -> None:
    await wire.start()
    first = await sticky.poll()
    (await first.complete(WAIT)).ok()
    await signal(wire)
    second = await sticky.poll()

    for claim in (first, second):
        assert mode(claim) == "cold_replay"
        assert claim.task["last_history_sequence"] == claim.task["total_history_events"]
        assert (claim.task["sticky_worker_id"], claim.task["sticky_until"]) == (None, None)


async def test_the_holder_is_told_to_expect_a_hit(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    before = await wire.event_types()
    claim = await sticky.poll()

    assert mode(claim) == "sticky_hit_expected"
    assert (claim.task["sticky_worker_id"], claim.task["sticky_until"]) == ("w", "2026-01-02T03:09:05.000000Z")
    assert claim.task["history_events"][0]["sequence"] == 1
    assert claim.task["last_history_sequence"] == len(before)
    assert await wire.event_types() == before


async def test_another_worker_is_told_that_it_must_replay_cold_and_takes_the_affinity_over(
    wire: Wire, sticky: Worker
) -> None:
    await kept(wire, sticky)
    other = await other_worker(wire)

    claim = await other.poll()
    assert mode(claim) == "forced_cold_replay"
    (await complete(claim)).ok()
    await signal(wire)
    assert mode(await sticky.poll()) == "forced_cold_replay"


async def test_a_pair_that_has_run_out_forces_a_cold_replay_and_is_not_inherited(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky, ttl_seconds=10)
    wire.clock.advance(10)
    expired = await sticky.poll()
    assert mode(expired) == "forced_cold_replay"

    (await expired.complete(WAIT)).ok()
    await signal(wire)
    assert mode(await sticky.poll()) == "cold_replay"


async def test_a_completion_without_a_claim_changes_no_affinity(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    (await (await sticky.poll()).complete(WAIT)).ok()
    await signal(wire)
    waiting = await sticky.poll()
    failure = {"type": "WorkflowTaskWaitingForHistory", "message": "waiting"}
    (await waiting.post("/fail", failure=failure)).ok()
    await signal(wire)

    assert mode(waiting) == mode(await sticky.poll()) == "sticky_hit_expected"


async def test_every_repeat_of_a_poll_repeats_the_mode(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    first = await sticky.poll(request_id="r")
    again = await sticky.poll(request_id="r")

    assert again.task["task_id"] == first.task["task_id"]
    assert mode(again) == mode(first) == "sticky_hit_expected"
    assert again.task["last_history_sequence"] == first.task["last_history_sequence"]


async def test_a_lost_lease_is_judged_anew(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    assert mode(await (await other_worker(wire)).poll()) == "forced_cold_replay"
    wire.clock.advance(10)

    assert mode(await sticky.poll()) == "sticky_hit_expected"


async def test_registering_again_forces_the_leased_task_cold_and_leaves_the_pair(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    assert mode(await sticky.poll()) == "sticky_hit_expected"

    await sticky.register(build_id="b")
    forced = await sticky.poll()

    assert mode(forced) == "forced_cold_replay"
    (await forced.complete(WAIT)).ok()
    await signal(wire)
    await sticky.register(build_id="b")
    assert mode(await sticky.poll()) == "sticky_hit_expected"


async def test_the_end_of_a_run_clears_its_affinity(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    (await complete(await sticky.poll(), {"type": "complete_workflow", "result": ENVELOPE})).ok()

    run = await wire.store.transact(lambda tx: tx.current_run("default", "wf"))
    assert run is not None
    assert run.affinity is None


async def test_the_next_run_of_a_chain_starts_cold(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    (await complete(await sticky.poll(), {"type": "continue_as_new"})).ok()

    assert mode(await sticky.poll()) == "cold_replay"


@pytest.mark.parametrize("ending", ["cancel", "terminate"])
async def test_an_end_from_outside_clears_it_too(wire: Wire, sticky: Worker, ending: str) -> None:
    await kept(wire, sticky)
    (await wire.control("POST", f"/workflows/wf/{ending}", {})).ok()

    run = await wire.store.transact(lambda tx: tx.current_run("default", "wf"))
    assert run is not None
    assert run.affinity is None


async def test_the_counters_of_the_latest_claim_are_shown_and_outlive_heartbeats(wire: Wire, sticky: Worker) -> None:
    await kept(wire, sticky)
    (await wire.worker("/heartbeat", {"worker_id": "w", "process_metrics": {"cpu_percent": 1}})).ok()
    shown = (await wire.control("GET", "/workers/w")).ok()["process_metrics"]
    assert shown == {"cpu_percent": 1, "sticky_cache": METRICS}

    latest = {"hit": 4, "miss": 1}
    (await complete(await sticky.poll(), metrics=latest)).ok()
    shown = (await wire.control("GET", "/workers/w")).ok()["process_metrics"]
    assert shown == {"cpu_percent": 1, "sticky_cache": latest}


async def test_without_a_build_id_the_version_of_the_sdk_identifies_the_build(wire: Wire) -> None:
    worker = Worker(wire, capabilities=STICKY)
    await worker.register(sdk_version="durable-workflow-python/2.12.0")
    await wire.start()
    claim = await worker.poll()

    (await complete(claim)).refused(409, "sticky_cache_identity_mismatch")
    (await complete(claim, build_id="durable-workflow-python/2.12.0")).ok()


async def test_a_blank_build_id_does_not_count_and_a_padded_one_is_trimmed(wire: Wire) -> None:
    worker = Worker(wire, capabilities=STICKY)
    await worker.register(build_id=" b ")
    await wire.start()
    (await complete(await worker.poll())).ok()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"worker_id": ...}, "worker_id"),
        ({"workflow_id": ""}, "workflow_id"),
        ({"run_id": 1}, "run_id"),
        ({"build_id": "x" * 256}, "build_id"),
        ({"ttl_seconds": ...}, "ttl_seconds"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": 3601}, "ttl_seconds"),
        ({"ttl_seconds": True}, "ttl_seconds"),
        ({"ttl_seconds": "300"}, "ttl_seconds"),
        ({"metrics": []}, "metrics"),
        ({"metrics": {"hit": -1}}, "metrics.hit"),
        ({"metrics": {"miss": 1.0}}, "metrics.miss"),
    ],
)
async def test_a_malformed_claim_is_refused_with_the_whole_completion(
    wire: Wire, sticky: Worker, changes: dict[str, Any], field: str
) -> None:
    await wire.start()
    claim = await sticky.poll()
    before = await wire.event_types()

    errors = (await complete(claim, side_effect(), **changes)).refused(422, "validation_failed")["errors"]

    assert list(errors) == [f"sticky_cache.{field}"]
    assert await wire.event_types() == before
    (await complete(claim)).ok()


async def test_a_claim_that_is_no_object_is_refused_before_ownership_is_looked_at(wire: Wire, sticky: Worker) -> None:
    await wire.start()
    claim = await sticky.poll()
    reply = await claim.post("/complete", commands=[WAIT], sticky_cache=[1], lease_owner="other")
    assert list(reply.refused(422, "validation_failed")["errors"]) == ["sticky_cache"]
    stranger = await claim.post("/complete", commands=[WAIT], sticky_cache=claim_of(claim), lease_owner="other")
    stranger.refused(409, "lease_owner_mismatch")


@pytest.mark.parametrize(
    "changes", [{"worker_id": "other"}, {"run_id": "R"}, {"workflow_id": "other"}, {"build_id": "c"}]
)
async def test_a_claim_for_anything_else_refuses_the_whole_completion(
    wire: Wire, sticky: Worker, changes: dict[str, str]
) -> None:
    await wire.start()
    claim = await sticky.poll()
    before = await wire.event_types()

    body = (await complete(claim, side_effect(), **changes)).refused(409, "sticky_cache_identity_mismatch")

    assert (body["outcome"], body["recorded"], body["capability"]) == ("rejected", False, "sticky_execution")
    assert (body["task_id"], body["workflow_task_attempt"]) == (claim.task["task_id"], 1)
    assert (body["requested_version"], body["minimum_protocol_version"]) == ("1.20", "1.18")
    assert body["remediation"]
    assert await wire.event_types() == before
    assert (await wire.control("GET", "/workers/w")).ok()["process_metrics"] is None


async def test_a_worker_that_did_not_register_the_capability_may_not_claim(wire: Wire) -> None:
    plain = Worker(wire, capabilities=())
    await plain.register(build_id="b")
    await wire.start()
    claim = await plain.poll()
    body = (await complete(claim, build_id="wrong")).refused(409, "worker_capability_not_supported")
    assert (body["outcome"], body["recorded"], body["minimum_protocol_version"]) == ("rejected", False, "1.18")
    (await claim.complete(WAIT)).ok()


async def test_a_request_below_the_floor_may_not_claim(wire: Wire, sticky: Worker) -> None:
    await wire.start()
    claim = await sticky.poll()
    old = Claim(Worker(wire, capabilities=STICKY, version="1.17"), claim.task)
    refused = (await complete(old)).refused(409, "portable_worker_affinity_protocol_floor_unavailable")
    assert (refused["requested_version"], refused["capability"]) == ("1.17", "sticky_execution")
    assert "ConditionWaitOpened" not in await wire.event_types()


async def test_a_checkpoint_must_not_claim(wire: Wire) -> None:
    worker = Worker(wire, capabilities=("cooperative_cancellation", "prepared_local_activities", *STICKY))
    await worker.register(build_id="b")
    await wire.start()
    claim = await worker.poll()
    reply = await claim.checkpoint("c", 1, side_effect(), sticky_cache=claim_of(claim), descriptor=describe_call())
    assert "sticky_cache" in reply.refused(422, "validation_failed")["errors"]


async def test_tokens_of_earlier_claims_and_the_first_page_token_are_accepted(wire: Wire, sticky: Worker) -> None:
    await wire.start()
    first = await sticky.poll(history_page_size=1)
    token = first.task["next_history_page_token"]
    (await complete(first, side_effect(), side_effect(), WAIT)).ok()
    await signal(wire)
    second = await sticky.poll()

    tail = (await second.post("/history", next_history_page_token=token)).ok()
    whole = (await second.post("/history", next_history_page_token="MA==")).ok()

    assert [event["sequence"] for event in tail["history_events"]] == list(range(2, tail["total_history_events"] + 1))
    assert whole["history_events"] == second.task["history_events"]
    assert tail["history_events"] == whole["history_events"][1:]
    for bad in ("nonsense", "MA", None):
        (await second.post("/history", next_history_page_token=bad)).refused(400, "invalid_page_token")


@pytest.mark.parametrize("protocol", ["1.18", "1.19", "1.20"])
async def test_every_version_offers_it(protocol: str) -> None:
    async with running_server(Settings(protocol=protocol)) as wire:
        worker = Worker(wire, capabilities=STICKY, version=protocol)
        await worker.register(build_id="b")
        await kept(wire, worker)
        assert mode(await worker.poll()) == "sticky_hit_expected"


async def test_a_run_that_is_pinned_to_a_build_goes_to_no_other(wire: Wire, sticky: Worker) -> None:
    started = await wire.start(build_id=" b ", compatibility="ignored")
    assert started["compatibility"] == "b"
    claim = await sticky.poll()
    assert claim.task["compatibility"] == "b"
    (await complete(claim, {"type": "open_condition_wait", "condition_key": "never"})).ok()
    await signal(wire)
    other = Worker(wire, "other", capabilities=STICKY)
    await other.register(build_id="c")
    plain = Worker(wire, "plain", capabilities=STICKY)
    await plain.register()

    for wrong in (other, plain):
        reply = (await wrong.try_poll()).ok()
        assert (reply["task"], reply["poll_status"]) == (None, "compatibility_blocked")

    again = await sticky.poll()
    assert mode(again) == "sticky_hit_expected"
    described = await wire.describe()
    assert described["compatibility"] == "b"
    opened = next(event for event in await wire.events() if event["event_type"] == "WorkflowStarted")
    assert opened["payload"]["compatibility"] == "b"
    (await again.complete({"type": "continue_as_new"})).ok()
    assert await other.idle()
    assert (await sticky.poll()).task["compatibility"] == "b"


@pytest.mark.parametrize("field", ["build_id", "compatibility"])
async def test_either_name_pins_a_run_and_neither_leaves_it_to_any_worker(
    wire: Wire, sticky: Worker, field: str
) -> None:
    await wire.start(**{field: "c"})
    assert await sticky.idle()
    await wire.start("free")
    assert (await sticky.poll()).task["workflow_id"] == "free"
    body = {"workflow_id": "x", "workflow_type": "t", field: 7}
    errors = (await wire.control("POST", "/workflows", body)).refused(422, "validation_failed")["errors"]
    assert list(errors) == [field]
