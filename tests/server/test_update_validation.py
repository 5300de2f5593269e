"""Updates that are validated before they are accepted: asked of a capable worker, decided once, recorded only then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from server.test_updates import completed
from server.wire import EMPTY_LIST, ENVELOPE, WITH_POLICIES, Reply, Wire, Worker, instant, running_server

ARGUMENTS = {"codec": "avro", "blob": EMPTY_LIST}
VALIDATING = (*WITH_POLICIES, "update_validation_tasks")
CONTRACT = {"t": {"updates": ["set", "free"], "update_validators": ["set"]}}
BOTH = ["workflow", "update_validation"]


@dataclass
class Sent:
    """An update that somebody has sent in another task."""

    replies: list[Reply] = field(default_factory=list)
    answered: trio.Event = field(default_factory=trio.Event)

    async def reply(self) -> Reply:
        with trio.fail_after(5):
            await self.answered.wait()
        return self.replies[0]


@asynccontextmanager
async def sent(wire: Wire, name: str = "set", request_id: str | None = "one", **body: Any) -> AsyncIterator[Sent]:
    update = Sent()

    async def send() -> None:
        told = {"input": ARGUMENTS, "request_id": request_id, **body}
        update.replies.append(await wire.control("POST", f"/workflows/wf/update/{name}", told))
        update.answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wire.parked()
        yield update


@dataclass
class Leased:
    worker: Worker
    task: dict[str, Any]

    async def decide(self, verdict: str, **body: Any) -> Reply:
        identity = {name: self.task[name] for name in ("lease_owner", "update_validation_attempt")}
        path = f"/update-validation-tasks/{self.task['update_validation_task_id']}/{verdict}"
        return await self.worker.wire.worker(path, identity | body)


async def poll(worker: Worker, **changes: Any) -> Leased:
    task = (await worker.try_poll(task_kinds=BOTH, **changes)).ok()["task"]
    assert task is not None
    assert task["task_kind"] == "update_validation"
    return Leased(worker, task)


@pytest.fixture
async def validating(wire: Wire) -> Worker:
    worker = Worker(wire, capabilities=VALIDATING)
    await worker.register(workflow_command_contracts=CONTRACT)
    await wire.start(input=ENVELOPE)
    return worker


async def test_what_the_validator_approves_is_accepted_and_run(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as update:
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
        leased = await poll(validating)
        events = leased.task.pop("history_events")
        assert [event["event_type"] for event in events] == ["StartAccepted", "WorkflowStarted"]
        started = await wire.describe()
        assert leased.task == {
            "task_kind": "update_validation",
            "update_validation_task_id": leased.task["update_id"],
            "update_id": leased.task["update_id"],
            "update_validation_attempt": 1,
            "workflow_id": "wf",
            "run_id": started["run_id"],
            "workflow_type": "t",
            "compatibility": None,
            "update_name": "set",
            "update_arguments": ARGUMENTS,
            "workflow_arguments": ENVELOPE,
            "payload_codec": "avro",
            "run_status": "pending",
            "last_history_sequence": 2,
            "task_queue": "q",
            "lease_owner": "w",
            "lease_expires_at": instant(10),
            "server_time": instant(0),
        }
        told = (await leased.decide("approve")).ok()
        assert (told["outcome"], told["reason"], told["status"]) == ("approved", None, 200)
        accepted = (await update.reply()).ok(202)
    assert (accepted["update_id"], accepted["update_status"]) == (leased.task["update_id"], "accepted")
    assert (await wire.events())[-1]["payload"]["update_id"] == accepted["update_id"]
    again = (await wire.control("POST", "/workflows/wf/update/set", {"input": ARGUMENTS, "request_id": "one"})).ok(202)
    assert (again["update_id"], again["retained"]) == (accepted["update_id"], True)
    (await (await validating.poll()).complete({"type": "start_timer", "delay_seconds": 60})).ok()
    claim = await validating.poll()
    assert claim.task["workflow_update_id"] == accepted["update_id"]
    (await claim.complete(completed(claim))).ok()


async def test_what_the_validator_rejects_is_not_recorded(wire: Wire, validating: Worker) -> None:
    async with sent(wire, wait_for="completed") as update:
        leased = await poll(validating)
        failure = {"message": "too much", "type": "ValueError", "validation_errors": {"amount": ["is too much"]}}
        told = (await leased.decide("reject", failure=failure)).ok()
        assert (told["outcome"], told["reason"]) == ("rejected", "update_validator_rejected")
        refused = (await update.reply()).refused(422, "update_validator_rejected")
    assert (refused["message"], refused["update_status"]) == ("too much", "rejected")
    assert refused["outcome"] == "rejected_invalid_arguments"
    assert refused["validation_errors"] == {"amount": ["is too much"]}
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    async with sent(wire) as again:
        (await again.reply()).refused(422, "update_validator_rejected")


async def test_a_validator_that_could_not_be_asked_is_another_refusal(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as update:
        leased = await poll(validating)
        failure = {"message": "replay broke", "reason": "update_validation_worker_failed"}
        assert (await leased.decide("reject", failure=failure)).ok()["outcome"] == "failed"
        (await update.reply()).refused(409, "update_validation_worker_failed")
    async with sent(wire) as again:  # nothing was said of the update, so it may be asked again
        second = await poll(validating, request_id="second")
        (await second.decide("approve")).ok()
        (await again.reply()).ok(202)


async def test_a_validation_has_ten_seconds(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as update:
        wire.clock.advance(10)
        (await update.reply()).refused(504, "update_validation_task_not_claimed")
    async with sent(wire) as update:
        leased = await poll(validating)
        wire.clock.advance(10)
        (await leased.decide("approve")).refused(409, "update_validation_lease_expired")
        (await update.reply()).refused(504, "update_validation_execution_timeout")
    (await leased.decide("approve")).refused(409, "duplicate_update_validation_completion")
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


async def test_who_could_validate_is_known_before_anything_is_asked(wire: Wire) -> None:
    await wire.start()
    body = {"input": ARGUMENTS, "request_id": "one"}

    async def refused(status: int, reason: str, **changes: Any) -> None:
        (await wire.control("POST", "/workflows/wf/update/set", body | changes)).refused(status, reason)

    plain = Worker(wire, "plain")
    await plain.register(workflow_command_contracts=CONTRACT)
    await refused(409, "update_validation_capability_unsupported")
    await refused(422, "update_validation_request_id_required", request_id=None)
    await Worker(wire, "other", capabilities=VALIDATING).register(
        workflow_command_contracts={"t": {"updates": ["set"], "update_validators": []}}
    )
    await refused(409, "update_validator_worker_incompatible")
    wire.clock.advance(301)
    await refused(409, "update_validator_worker_unavailable")


async def test_an_update_without_a_validator_is_accepted_at_once(wire: Wire, validating: Worker) -> None:
    async with sent(wire, "free") as update:
        (await update.reply()).ok(202)


async def test_the_decision_is_fenced(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as update:
        leased = await poll(validating)
        unknown = Leased(validating, {**leased.task, "update_validation_task_id": "nothing"})
        (await unknown.decide("approve")).refused(404, "update_validation_task_not_found")
        foreign = Leased(validating, {**leased.task, "lease_owner": "x"})
        (await foreign.decide("approve")).refused(409, "update_validation_lease_owner_mismatch")
        late = Leased(validating, {**leased.task, "update_validation_attempt": 2})
        stale = (await late.decide("approve")).refused(409, "stale_update_validation_completion")
        assert (stale["outcome"], stale["status"], stale["update_validation_attempt"]) == ("rejected", 409, 1)
        (await leased.decide("reject")).refused(422, "validation_failed")
        (await leased.decide("reject", failure={"message": " "})).refused(422, "validation_failed")
        (await leased.decide("approve")).ok()
        (await leased.decide("approve")).refused(409, "duplicate_update_validation_completion")
        (await leased.decide("reject", failure={"message": "no"})).refused(
            409, "duplicate_update_validation_completion"
        )
        (await late.decide("approve")).refused(409, "stale_update_validation_completion")
        (await update.reply()).ok(202)
    assert (await wire.event_types()).count("UpdateAccepted") == 1


async def test_a_lost_worker_gives_its_validation_to_another(wire: Wire, validating: Worker) -> None:
    other = Worker(wire, "other", capabilities=VALIDATING)
    await other.register(workflow_command_contracts=CONTRACT)
    async with sent(wire) as update:
        lost = await poll(validating)
        await validating.register(workflow_command_contracts=CONTRACT)
        (await lost.decide("approve")).refused(409, "update_validation_task_not_leased")
        second = await poll(other)
        assert second.task["update_validation_attempt"] == 2
        (await lost.decide("approve")).refused(409, "update_validation_lease_owner_mismatch")
        (await second.decide("approve")).ok()
        (await update.reply()).ok(202)


async def test_the_same_request_waits_for_the_same_validation(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as first, sent(wire) as second:
        leased = await poll(validating)
        other = {"input": ENVELOPE, "request_id": "one"}
        (await wire.control("POST", "/workflows/wf/update/set", other)).refused(
            409, "update_validation_idempotency_conflict"
        )
        (await leased.decide("approve")).ok()
        told = [(await update.reply()).ok(202)["update_id"] for update in (first, second)]
    assert told[0] == told[1]
    assert (await wire.event_types()).count("UpdateAccepted") == 1


async def test_a_run_that_ends_while_its_update_is_validated_refuses_it(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as update:
        leased = await poll(validating)
        (await wire.control("POST", "/workflows/wf/terminate", {})).ok()
        assert (await leased.decide("approve")).ok()["outcome"] == "approved"
        (await update.reply()).refused(409, "run_not_active")
    assert "UpdateAccepted" not in await wire.event_types()


async def test_polls_ask_for_kinds_and_keep_to_them(wire: Wire, validating: Worker) -> None:
    async with sent(wire) as update:
        assert (await validating.try_poll(task_kinds=["workflow"])).ok()["task"]["task_kind"] == "workflow"
        leased = await poll(validating, request_id="mine")
        assert (await poll(validating, request_id="mine")).task == leased.task
        conflict = (await validating.try_poll(request_id="mine")).refused(409, "poll_cached_task_kind_conflict")
        assert (conflict["poll_status"], conflict["cached_task_kind"]) == ("conflict", "update_validation")
        nothing = (await validating.try_poll(task_kinds=["update_validation"])).ok()
        assert nothing["task"] is None
        (await leased.decide("approve")).ok()
        (await update.reply()).ok(202)
    for kinds in (["activity"], "workflow"):
        (await validating.try_poll(task_kinds=kinds)).refused(422, "validation_failed")
    plain = Worker(wire, "plain")
    await plain.register()
    unsupported = (await plain.try_poll(task_kinds=BOTH)).refused(409, "update_validation_capability_not_advertised")
    assert (unsupported["task"], unsupported["poll_status"]) == (None, "unsupported")


async def test_a_repeated_poll_gets_its_task_again_and_not_what_came_in_between(wire: Wire, validating: Worker) -> None:
    first = (await validating.try_poll(request_id="mine", task_kinds=BOTH)).ok()["task"]
    assert first["task_kind"] == "workflow"
    async with sent(wire) as update:
        again = (await validating.try_poll(request_id="mine", task_kinds=BOTH)).ok()["task"]
        assert (again["task_id"], again["workflow_task_attempt"]) == (first["task_id"], 1)
        (await (await poll(validating, request_id="other")).decide("approve")).ok()
        (await update.reply()).ok(202)


async def test_a_request_id_is_bound_to_the_kinds_it_asked_for(wire: Wire, validating: Worker) -> None:
    (await validating.try_poll(request_id="mine", task_kinds=BOTH)).ok()
    again = (await validating.try_poll(request_id="mine", task_kinds=list(reversed(BOTH)))).ok()
    assert again["task"]["task_kind"] == "workflow"
    conflict = (await validating.try_poll(request_id="mine")).refused(409, "poll_request_task_kinds_conflict")
    assert conflict["requested_task_kinds"] == ["workflow"]
    assert sorted(conflict["bound_task_kinds"]) == sorted(BOTH)


@pytest.mark.parametrize("path", ["workflow-tasks", "update-validation-tasks"])
async def test_a_parked_poll_gets_the_validation_that_arrives(wire: Wire, validating: Worker, path: str) -> None:
    plain = Worker(wire, "plain")
    await plain.register()
    await plain.poll()  # so that nothing else is ready
    replies: list[Reply] = []

    async def park(worker: str, into: list[Reply], **kinds: Any) -> None:
        body = {"worker_id": worker, "task_queue": "q", "timeout_seconds": 5, **kinds}
        into.append(await wire.worker(f"/{path}/poll" if kinds else "/workflow-tasks/poll", body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(park, "plain", [])  # longer in the line, and cannot do it
        await wire.parked()
        nursery.start_soon(lambda: park("w", replies, task_kinds=BOTH))
        await wire.parked()
        async with sent(wire) as update:
            await wire.parked()
            leased = Leased(validating, replies[0].ok()["task"])
            (await leased.decide("approve")).ok()
            (await update.reply()).ok(202)
        nursery.cancel_scope.cancel()


async def test_a_poll_whose_client_has_left_takes_no_validation(wire: Wire, validating: Worker) -> None:
    gone = trio.Event()
    gone.set()
    async with sent(wire) as update:
        body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0, "task_kinds": BOTH}
        await wire.worker("/workflow-tasks/poll", body, left=gone)
        leased = await poll(validating)
        assert leased.task["update_validation_attempt"] == 2
        (await leased.decide("approve")).ok()
        (await update.reply()).ok(202)


async def test_a_validation_is_forgotten_a_minute_after_its_end() -> None:
    async with running_server(sweeping=True) as wire:
        worker = Worker(wire, capabilities=VALIDATING)
        await worker.register(workflow_command_contracts=CONTRACT)
        await wire.start()
        async with sent(wire) as update:
            leased = await poll(worker)
            wire.clock.advance(10)
            (await update.reply()).refused(504, "update_validation_execution_timeout")
        await wire.settle()
        wire.clock.advance(60)
        await wire.settle()
        (await leased.decide("approve")).refused(404, "update_validation_task_not_found")
