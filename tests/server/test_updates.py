"""Updates on the wire: accepted once, asked in a task of their own, answered once, replayed by their event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from official.events import check_events
from proctor.server.rules.book import Settings, StructuralLimits
from server.wire import EMPTY_LIST, ENVELOPE, Claim, Reply, Wire, Worker, running_server

ARGUMENTS = {"codec": "avro", "blob": EMPTY_LIST}
WAIT = {"type": "open_condition_wait", "condition_key": "gate"}


async def ask(wire: Wire, name: str = "set", workflow_id: str = "wf", **body: Any) -> Reply:
    return await wire.control("POST", f"/workflows/{workflow_id}/update/{name}", {"input": ARGUMENTS, **body})


def completed(claim: Claim, **changes: Any) -> dict[str, Any]:
    return {"type": "complete_update", "update_id": claim.task["workflow_update_id"], "result": ENVELOPE, **changes}


def failed(claim: Claim, **changes: Any) -> dict[str, Any]:
    told = {"update_id": claim.task["workflow_update_id"], "message": "no", "exception_type": "ValueError"}
    return {"type": "fail_update", **told, **changes}


async def waiting_run(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(WAIT)).ok()


async def test_an_update_is_accepted_asked_of_a_worker_and_answered(
    wire: Wire, worker: Worker, shared_fixtures: Path
) -> None:
    await waiting_run(wire, worker)

    accepted = (await ask(wire, request_id="one")).ok(202)
    claim = await worker.poll()

    assert accepted["update_status"] == "accepted"
    assert (accepted["outcome"], accepted["result"], accepted["reason"]) == ("update_accepted", None, None)
    assert (accepted["request_id"], accepted["retained"]) == ("one", False)
    assert claim.task["workflow_update_id"] == accepted["update_id"]
    assert claim.task["workflow_command_id"] == accepted["command_id"]
    assert claim.task["resume_source_kind"] == claim.task["workflow_wait_kind"] == "update"
    recorded = claim.task["history_events"][-1]
    assert recorded["event_type"] == "UpdateAccepted"
    assert recorded["workflow_command_id"] == accepted["command_id"]
    told = recorded["payload"]
    assert (told["update_id"], told["update_name"]) == (accepted["update_id"], "set")
    assert (told["arguments"], told["payload_codec"], told["request_id"]) == (ARGUMENTS, "avro", "one")

    (await claim.complete(completed(claim))).ok()

    events = await wire.events()
    assert [event["event_type"] for event in events[3:]] == ["UpdateAccepted", "UpdateApplied", "UpdateCompleted"]
    applied, done = events[-2]["payload"], events[-1]["payload"]
    assert (applied["update_id"], applied["update_name"]) == (accepted["update_id"], "set")
    assert applied["arguments"] == ARGUMENTS
    assert applied["sequence"] == done["sequence"] == 1  # that of the open wait
    assert done["result"] == ENVELOPE
    check_events(shared_fixtures, events)
    again = (await ask(wire, request_id="one")).ok(200)
    assert (again["update_id"], again["update_status"]) == (accepted["update_id"], "completed")
    assert (again["outcome"], again["result_envelope"]) == ("update_completed", ENVELOPE)
    assert again["retained"] is True
    assert (await wire.event_types()).count("UpdateAccepted") == 1


async def test_the_code_is_woken_after_an_answer_and_its_wait_continues(wire: Wire, worker: Worker) -> None:
    await waiting_run(wire, worker)
    (await ask(wire)).ok(202)
    claim = await worker.poll()
    created = (await claim.complete(completed(claim))).ok()["created_task_ids"]

    reacts = await worker.poll()

    assert created == [reacts.task["task_id"]]
    assert reacts.task["workflow_update_id"] is None
    (await reacts.complete(WAIT)).ok()
    assert (await wire.event_types())[-2:] == ["ConditionWaitSatisfied", "ConditionWaitOpened"]
    assert await worker.idle()


async def test_a_failed_update_leaves_no_application(wire: Wire, worker: Worker) -> None:
    await waiting_run(wire, worker)
    accepted = (await ask(wire, request_id="one")).ok(202)
    claim = await worker.poll()
    (await claim.complete(failed(claim, exception_class="app.Bad", non_retryable=True))).ok()

    done = (await wire.events())[-1]
    assert (await wire.event_types())[-2:] == ["UpdateAccepted", "UpdateCompleted"]
    facts = {name: done["payload"][name] for name in ("message", "exception_type", "exception_class", "non_retryable")}
    assert facts == {
        "message": "no",
        "exception_type": "ValueError",
        "exception_class": "app.Bad",
        "non_retryable": True,
    }
    told = (await ask(wire, request_id="one", wait_for="completed")).refused(422, "update_failed")
    assert (told["update_status"], told["failure_message"]) == ("failed", "no")
    assert (told["update_id"], told["outcome"]) == (accepted["update_id"], "update_failed")


async def wait_for_answer(wire: Wire, replies: list[Reply], **body: Any) -> None:
    replies.append(await ask(wire, wait_for="completed", **body))


async def test_a_caller_may_wait_for_the_answer(wire: Wire, worker: Worker) -> None:
    await waiting_run(wire, worker)
    replies: list[Reply] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_answer, wire, replies)
        await wire.parked()
        claim = await worker.poll()
        assert replies == []
        await claim.complete(completed(claim))
    told = replies[0].ok(200)
    assert (told["update_status"], told["wait_for"], told["wait_timed_out"]) == ("completed", "completed", False)
    assert told["result_envelope"] == ENVELOPE


@pytest.mark.parametrize(("asked", "seconds"), [(None, 10), (3, 3)])
async def test_a_wait_ends_with_its_time_and_the_update_stays_accepted(
    wire: Wire, worker: Worker, asked: int | None, seconds: int
) -> None:
    await waiting_run(wire, worker)
    replies: list[Reply] = []
    async with trio.open_nursery() as nursery:
        body = {} if asked is None else {"wait_timeout_seconds": asked}
        nursery.start_soon(lambda: wait_for_answer(wire, replies, request_id="one", **body))
        await wire.parked()
        wire.clock.advance(seconds - 0.1)
        await wire.settle()
        assert replies == []
        wire.clock.advance(0.1)
    told = replies[0].ok(202)
    assert (told["update_status"], told["wait_timed_out"]) == ("accepted", True)
    claim = await worker.poll()
    await claim.complete(completed(claim))
    assert (await ask(wire, request_id="one")).ok(200)["update_status"] == "completed"


async def test_a_request_id_is_for_one_intent(wire: Wire, worker: Worker) -> None:
    await waiting_run(wire, worker)
    (await ask(wire, request_id="one")).ok(202)
    for name, arguments in (("other", ARGUMENTS), ("set", ENVELOPE)):
        conflict = (await ask(wire, name, request_id="one", input=arguments)).refused(409, "request_id_conflict")
        assert conflict["retained_command_type"] == "update"
    (await wire.control("POST", "/workflows/wf/signal/set", {"input": ARGUMENTS, "request_id": "one"})).refused(
        409, "request_id_conflict"
    )
    (await ask(wire, request_id="two")).ok(202)
    assert (await wire.event_types()).count("UpdateAccepted") == 2


async def test_what_is_due_for_the_code_comes_before_an_update_and_updates_come_in_order(
    wire: Wire, worker: Worker
) -> None:
    await wire.start()
    first = (await ask(wire)).ok(202)["update_id"]
    second = (await ask(wire)).ok(202)["update_id"]
    started = await worker.poll()
    assert started.task["workflow_update_id"] is None
    (await started.complete(WAIT)).ok()
    seen = []
    for _ in range(4):
        claim = await worker.poll()
        seen.append(claim.task["workflow_update_id"])
        (await claim.complete(completed(claim) if seen[-1] else WAIT)).ok()
    assert seen == [first, None, second, None]
    assert await worker.idle()


async def test_an_update_that_comes_during_a_claim_gets_its_task_afterwards(wire: Wire, worker: Worker) -> None:
    await wire.start()
    started = await worker.poll()
    accepted = (await ask(wire)).ok(202)
    assert await worker.idle()
    waits = {"type": "WorkflowTaskWaitingForHistory", "message": "Workflow task waiting for scheduled history."}
    told = (await started.post("/fail", failure=waits)).ok()
    claim = await worker.poll()
    assert told["next_task_id"] == claim.task["task_id"]
    assert claim.task["workflow_update_id"] == accepted["update_id"]


async def test_what_happens_during_an_update_is_not_lost(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete({"type": "start_timer", "delay_seconds": 5})).ok()
    (await ask(wire)).ok(202)
    wire.clock.advance(5)  # the timer fires while the task for the update is ready
    claim = await worker.poll()
    assert "TimerFired" in [event["event_type"] for event in claim.task["history_events"]]
    (await claim.complete(completed(claim))).ok()
    reacts = await worker.poll()
    assert reacts.task["workflow_update_id"] is None
    (await reacts.complete()).ok()
    assert (await wire.describe())["status"] == "completed"


async def test_what_happened_is_remembered_when_the_claim_on_an_update_is_lost(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete({"type": "start_timer", "delay_seconds": 5})).ok()
    (await ask(wire)).ok(202)
    await worker.poll()
    wire.clock.advance(12)  # the timer has fired and the lease is over
    claim = await worker.poll()
    assert (claim.task["workflow_update_id"] is not None, claim.task["workflow_task_attempt"]) == (True, 2)
    (await claim.complete(completed(claim))).ok()
    assert (await worker.poll()).task["workflow_update_id"] is None


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_a_run_that_ends_first_fails_its_updates(wire: Wire, worker: Worker, status: str) -> None:
    await wire.start()
    started = await worker.poll()
    replies: list[Reply] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: wait_for_answer(wire, replies, request_id="one"))
        await wire.parked()
        if status == "completed":
            (await started.complete()).ok()
        else:
            (await wire.control("POST", "/workflows/wf/cancel", {})).ok()
    told = replies[0].refused(422, "update_failed")
    assert "ended before the update was applied" in told["failure_message"]
    assert (await wire.event_types())[-1] == ("WorkflowCompleted" if status == "completed" else "WorkflowCancelled")
    (await ask(wire, request_id="two")).refused(409, "run_not_active")
    assert (await ask(wire, request_id="one")).refused(422, "update_failed")["retained"] is True


async def test_unknown_names_and_malformed_requests_accept_nothing(wire: Wire) -> None:
    (await ask(wire)).refused(404, "instance_not_found")
    worker = Worker(wire)
    await worker.register(workflow_command_contracts={"t": {"updates": ["set"]}})
    await wire.start()
    unknown = (await ask(wire, "other")).refused(404, "unknown_update")
    assert unknown["outcome"] == "rejected_unknown_update"
    for body in (
        {"wait_for": "applied"},
        {"wait_timeout_seconds": 0},
        {"wait_timeout_seconds": True},
        {"input": {"codec": "json"}},
        {"request_id": ""},
        {"request_id": "é" * 200},
    ):
        (await ask(wire, **body)).refused(422, "validation_failed")
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


async def test_only_the_task_of_an_update_answers_it_and_only_once(wire: Wire, worker: Worker) -> None:
    await wire.start()
    started = await worker.poll()
    accepted = (await ask(wire)).ok(202)
    foreign = {"type": "complete_update", "update_id": accepted["update_id"], "result": ENVELOPE}
    refused = (await started.complete(foreign)).refused(422, "validation_failed")
    assert "commands.0.update_id" in refused["errors"]
    (await started.complete(WAIT)).ok()
    claim = await worker.poll()
    for commands, field in (
        ([completed(claim, update_id="other")], "commands.0.update_id"),
        ([completed(claim), completed(claim)], "commands.1.update_id"),
        ([completed(claim), WAIT], "commands.1.type"),
        ([WAIT], "commands.0.type"),
        ([failed(claim, message=" ")], "commands.0.message"),
        ([failed(claim, non_retryable="yes")], "commands.0.non_retryable"),
        ([completed(claim, result={"codec": "json", "blob": "W10="})], "commands.0.result"),
    ):
        refused = (await claim.complete(*commands)).refused(422, "validation_failed")
        assert list(refused["errors"]) == [field]
    (await claim.complete(completed(claim))).ok()
    (await claim.complete(completed(claim))).refused(409, "task_not_leased")
    assert (await wire.event_types()).count("UpdateCompleted") == 1


async def test_a_worker_that_waits_instead_of_answering_is_asked_again_with_a_pause(wire: Wire, worker: Worker) -> None:
    await waiting_run(wire, worker)
    (await ask(wire)).ok(202)
    claim = await worker.poll()
    waits = {"type": "WorkflowTaskWaitingForHistory", "message": "Workflow task waiting for scheduled history."}
    assert (await claim.post("/fail", failure=waits)).ok()["outcome"] == "failed"
    assert await worker.idle()
    wire.clock.advance(1)
    assert (await worker.poll()).task["workflow_update_id"] == claim.task["workflow_update_id"]


async def test_a_task_that_waits_for_a_retry_lets_an_update_go_first(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    policy = {"max_attempts": 2, "backoff_seconds": [60]}
    attempt = await claim.prepared(retry_policy=policy)
    (await attempt.outcome("failed", message="no", exception_type="ValueError", non_retryable=False)).ok()
    assert await worker.idle()

    (await ask(wire)).ok(202)
    asked = await worker.poll()
    (await asked.complete(completed(asked))).ok()

    assert await worker.idle()  # the retry keeps its instant
    wire.clock.advance(60)
    assert (await worker.poll()).task["workflow_update_id"] is None


async def test_a_run_may_have_so_many_open_updates() -> None:
    async with running_server(Settings(limits=StructuralLimits(pending_update_count=2))) as wire:
        await wire.start()
        for number in range(2):
            (await ask(wire, request_id=str(number))).ok(202)
        full = (await ask(wire, request_id="2")).refused(409, "structural_limit_exceeded")
        assert (full["limit_kind"], full["current_value"], full["configured_limit"]) == ("pending_update_count", 3, 2)
        (await ask(wire, request_id="1")).ok(202)  # the same one again


async def test_discovery_names_the_stages_and_the_commands(wire: Wire) -> None:
    info = (await wire.request("GET", "/api/cluster/info")).ok()
    operations = info["control_plane"]["request_contract"]["operations"]
    assert operations["update"]["fields"]["wait_for"]["canonical_values"] == ["accepted", "completed"]
    commands = info["worker_protocol"]["server_capabilities"]["supported_workflow_task_commands"]
    assert {"complete_update", "fail_update"} <= set(commands)
