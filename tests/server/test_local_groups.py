"""checkpoint-group: a list with local calls is admitted whole or not at all; then its members may be attempted.

The rules are those of prepared-local.md §2.2; what all checkpoints share is tested in `test_local_checkpoint`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from proctor.server.rules.book import Settings
from server.groups import TIMER, flat, member, selected
from server.local_groups import QUEUED, admitted, descriptor, local, nested, prepared
from server.wire import (
    ENVELOPE,
    WITH_GROUPS,
    WITH_POLICIES,
    Claim,
    Wire,
    Worker,
    describe_call,
    instant,
    retries,
    running_server,
    side_effect,
)

REFUSED = "invalid_local_activity_checkpoint_commands"
UNTOUCHED = ["StartAccepted", "WorkflowStarted"]


@pytest.fixture
async def worker(wire: Wire) -> Worker:
    registered = Worker(wire, capabilities=WITH_GROUPS)
    await registered.register()
    return registered


async def test_every_member_is_opened_in_authored_order_and_nothing_is_started(
    wire: Wire, worker: Worker, shared_fixtures: Path
) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("prefix", 1, side_effect())).ok()
    wire.clock.advance(3)
    group = nested(2, schedule_to_close_timeout=60)

    receipt = (await claim.checkpoint_group("g", 2, *group)).ok()

    assert (receipt["checkpointed"], receipt["duplicate"], receipt["reason"]) == (True, False, None)
    assert (receipt["checkpoint_id"], receipt["start_sequence"], receipt["next_sequence"]) == ("g", 2, 7)
    assert receipt["lease_expires_at"] == instant(10)
    events = (await wire.events())[3:]
    assert [event["event_type"] for event in events] == [
        "ActivityScheduled",
        "TimerScheduled",
        "ActivityScheduled",
        "ActivityScheduled",
        "ChildWorkflowScheduled",
        "ChildRunStarted",
    ]
    for event in events:
        payload = event["payload"]
        assert payload["parallel_group_path"] == group[payload["sequence"] - 2]["parallel_group_path"]
        assert event["workflow_task_id"] == claim.task["task_id"]
    first, second = events[0]["payload"], events[2]["payload"]
    assert receipt["local_activities"] == [
        {"sequence": 2, "activity_execution_id": first["activity_execution_id"]},
        {"sequence": 4, "activity_execution_id": second["activity_execution_id"]},
    ]
    assert first["execution_mode"] == "local"
    assert "activity_attempt_id" not in first
    assert first["activity"]["status"] == "pending"
    admission = first["local_group_admission"]
    assert (admission["version"], admission["checkpoint_id"], admission["workflow_task_attempt"]) == (1, "g", 1)
    assert admission["batch_fingerprint"] == second["local_group_admission"]["batch_fingerprint"]
    assert admission["descriptor_fingerprint"] != second["local_group_admission"]["descriptor_fingerprint"]
    assert "cancellation_cleanup" not in admission
    assert "local_group_admission" not in events[3]["payload"]
    check_events(shared_fixtures, await wire.events())

    wire.clock.advance(5)
    attempt = await prepared(claim, group, 2)
    assert attempt.receipt["schedule_to_close_deadline_at"] == instant(63), "the total time began with the admission"


async def test_the_identical_group_gets_the_same_receipt_even_after_a_cancellation(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    group = flat(local(), local())
    first = (await claim.checkpoint_group("g", 1, *group)).ok()
    await wire.cancel_cooperatively()

    assert (await claim.checkpoint_group("g", 1, *group)).ok() == {**first, "duplicate": True}
    (await claim.checkpoint_group("g", 1, *flat(local()))).refused(409, "local_activity_checkpoint_mismatch")
    (await claim.checkpoint_group("h", 1, *group)).refused(409, "cancellation_requested")
    assert (await wire.event_types()).count("ActivityScheduled") == 2


async def test_a_group_begins_at_the_next_number_and_an_older_one_is_not_repeated(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    late = flat(local(), base=2)
    (await claim.checkpoint_group("late", 2, *late)).refused(409, "local_activity_checkpoint_sequence_mismatch")
    (await claim.checkpoint_group("g", 1, *flat(local()))).ok()
    (await claim.checkpoint("after", 2, side_effect())).ok()
    (await claim.checkpoint_group("g", 1, *flat(local()))).refused(409, "local_activity_checkpoint_sequence_mismatch")


def _altered(index: int, **changes: Any) -> list[dict[str, Any]]:
    group = nested()
    group[index] = {**group[index], **changes}
    return group


@pytest.mark.parametrize(
    ("group", "status", "reason"),
    [
        (nested()[:4], 409, REFUSED),
        (nested()[1:], 409, REFUSED),
        ([*nested(), *flat(local(), base=6)], 409, REFUSED),
        ([nested()[2], *nested()[1:]], 409, REFUSED),
        ([local()], 409, REFUSED),
        ([member(TIMER, *selected())], 409, REFUSED),
        (flat(TIMER, QUEUED, kind="mixed"), 409, REFUSED),
        (flat(local(), TIMER, kind="activity"), 409, REFUSED),
        (flat(local(), side_effect(), kind="mixed"), 409, REFUSED),
        (flat(local(), {"type": "complete_workflow", "result": ENVELOPE}, kind="mixed"), 409, REFUSED),
        (flat(local(), {"type": "open_condition_wait"}, kind="mixed"), 409, REFUSED),
        (flat(local(), {"type": "open_signal_wait", "signal_name": "go"}, kind="mixed"), 409, REFUSED),
        (flat(local(), describe_call()), 409, REFUSED),
        (_altered(0, queue="other"), 409, REFUSED),
        (_altered(0, worker_session={"session_id": "s"}), 409, REFUSED),
        (_altered(0, schedule_to_start_timeout=5), 409, REFUSED),
        (_altered(0, cancellation_scope_id="scope"), 409, REFUSED),
        (_altered(0, activity_type=" "), 409, REFUSED),
        (_altered(0, arguments={"codec": "json", "blob": "AA=="}), 422, "validation_failed"),
        (_altered(0, parallel_group_index=1), 422, "validation_failed"),
        (_altered(0, parallel_group_path=None), 422, "validation_failed"),
        (_altered(1, delay_seconds=-1), 422, "validation_failed"),
        (_altered(3, activity_type=""), 422, "validation_failed"),
        (_altered(3, queue=7), 422, "validation_failed"),
        (_altered(4, workflow_type=None), 422, "validation_failed"),
        ([], 409, "invalid_local_activity_checkpoint"),
        (flat(*[local()] * 101), 409, "invalid_local_activity_checkpoint"),
    ],
)
async def test_one_wrong_member_and_nothing_is_admitted(
    wire: Wire, worker: Worker, group: list[dict[str, Any]], status: int, reason: str
) -> None:
    await wire.start()
    claim = await worker.poll()

    refused = (await claim.checkpoint_group("g", 1, *group)).refused(status, reason)

    assert refused.get("checkpointed", False) is False
    assert await wire.event_types() == UNTOUCHED
    (await claim.checkpoint_group("g", 1, *nested())).ok()


async def test_a_mistake_is_named_by_the_place_of_its_member(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    group = nested()
    group[1]["delay_seconds"] = "soon"
    group[2]["arguments"] = {"codec": "avro", "blob": "not base64"}
    first = (await claim.checkpoint_group("g", 1, *group)).refused(422, "validation_failed")
    group[2]["arguments"] = ENVELOPE
    second = (await claim.checkpoint_group("g", 1, *group)).refused(422, "validation_failed")

    assert list(first["errors"]) == ["commands.2.arguments"]
    assert list(second["errors"]) == ["commands.1.delay_seconds"]


async def test_what_the_worker_had_when_it_leased_the_task_decides(wire: Wire) -> None:
    without = Worker(wire, capabilities=WITH_POLICIES)
    await without.register()
    await wire.start()
    claim = await without.poll()
    refused = (await claim.checkpoint_group("g", 1, *nested())).refused(
        409, "prepared_local_activity_groups_not_supported"
    )
    assert refused["unavailable"] == ["worker_claim_capability"]
    assert refused["required_capability"] == "prepared_local_activity_groups"
    (await claim.prepare(sequence=1, **descriptor(nested()[0]))).refused(
        409, "prepared_local_activity_groups_not_supported"
    )
    without.version = "1.19"
    older = (await claim.checkpoint_group("g", 1, *nested())).refused(409, "prepared_local_activity_not_supported")
    assert older["unavailable"] == ["request_protocol"]
    assert await wire.event_types() == UNTOUCHED


async def test_a_server_below_1_20_has_no_groups() -> None:
    async with running_server(Settings(protocol="1.19")) as wire:
        plain = Worker(wire, capabilities=(), version="1.19")
        await plain.register()
        await wire.start()
        refused = (await (await plain.poll()).checkpoint_group("g", 1, *nested())).refused(
            409, "prepared_local_activity_not_supported"
        )
        assert refused["unavailable"] == ["server_protocol", "request_protocol"]


async def test_an_explicit_policy_of_one_member_must_be_available(wire: Wire) -> None:
    capabilities = tuple(one for one in WITH_GROUPS if not one.endswith("policies"))
    worker = Worker(wire, capabilities=capabilities)
    await worker.register()
    await wire.start()
    claim = await worker.poll()
    for policy in ("try_cancel", "abandon", None):
        refused = (await claim.checkpoint_group("g", 1, *flat(local(), local(cancellation_policy=policy)))).refused(
            409, "prepared_local_activity_cancellation_policy_not_supported"
        )
        assert refused["requested_policy"] == policy
    assert await wire.event_types() == UNTOUCHED


async def test_only_the_holder_of_a_living_claim_admits(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(10)
    (await claim.checkpoint_group("g", 1, *nested())).refused(409, "workflow_claim_expired")
    again = await worker.poll()
    (await claim.checkpoint_group("g", 1, *nested())).refused(409, "workflow_claim_mismatch")
    (await again.checkpoint_group("g", 1, *nested())).ok()
    other = Claim(worker, {**again.task, "task_id": "other"})
    (await other.checkpoint_group("g", 1, *nested())).refused(404, "task_not_found")


async def test_a_member_is_attempted_only_as_it_was_admitted(wire: Wire, worker: Worker) -> None:
    group = nested()
    await wire.start()
    claim = await worker.poll()
    (await claim.prepare(**descriptor(group[0]))).refused(409, "local_activity_group_not_admitted")
    (await claim.checkpoint_group("g", 1, *group)).ok()

    moved = copy.deepcopy(descriptor(group[2]))
    moved["parallel_group_path"].reverse()
    as_text, as_float = copy.deepcopy(descriptor(group[2])), copy.deepcopy(descriptor(group[2]))
    as_text["parallel_group_path"][0]["parallel_group_size"] = "5"
    as_float["parallel_group_path"][0]["parallel_group_size"] = 5.0
    outside = describe_call()
    dearer = {**descriptor(group[2]), "start_to_close_timeout": 5}
    for changed in (moved, as_text, as_float, outside, dearer):
        (await claim.prepare(sequence=3, **changed)).refused(409, "local_activity_group_admission_mismatch")
    (await claim.prepare(sequence=2, **descriptor(group[2]))).refused(409, "local_activity_group_not_admitted")
    reordered = dict(reversed(descriptor(group[2]).items()))
    reordered["parallel_group_path"] = [dict(reversed(entry.items())) for entry in group[2]["parallel_group_path"]]

    receipt = (await claim.prepare(sequence=3, **reordered)).ok()

    assert receipt["attempt_number"] == 1
    started = (await wire.events())[-1]
    assert started["event_type"] == "ActivityStarted"
    assert started["payload"]["parallel_group_path"] == group[2]["parallel_group_path"]
    assert (await claim.prepare(sequence=3, **descriptor(group[2]))).ok()["duplicate"] is True


async def test_members_run_side_by_side_and_end_in_any_order(wire: Wire, worker: Worker) -> None:
    group = flat(local(), local())
    claim = await admitted(wire, worker, group)
    one, two = await prepared(claim, group, 1), await prepared(claim, group, 2)
    (await one.control()).ok()
    (await two.control()).ok()
    (await two.outcome()).ok()
    failed = (await one.outcome("failed", message="no")).ok()
    assert failed["claim_released"] is False
    (await claim.complete()).ok()
    assert (await wire.describe())["status"] == "completed"


async def test_a_replacement_starts_what_was_never_started_and_recovers_the_rest(wire: Wire, worker: Worker) -> None:
    group = flat(local(retry_policy=retries(2)), local(retry_policy=retries(2)))
    claim = await admitted(wire, worker, group)
    await prepared(claim, group, 1)
    wire.clock.advance(10)
    again = await worker.poll()

    (await again.prepare("new", sequence=1, **descriptor(group[0]))).refused(
        409, "local_activity_previous_attempt_unresolved"
    )
    never_started = await prepared(again, group, 2, "other")
    assert never_started.receipt["attempt_number"] == 1
    (await again.recover(sequence=2, **descriptor(group[1]))).refused(409, "local_activity_previous_attempt_live")
    (await never_started.outcome()).ok()
    recovered = (await again.recover(sequence=1, **descriptor(group[0]))).ok()
    assert (recovered["event_type"], recovered["claim_released"]) == ("ActivityRetryScheduled", True)
    event = (await wire.events())[-1]
    assert event["payload"]["parallel_group_path"] == group[0]["parallel_group_path"]

    third = await worker.poll()
    retried = await prepared(third, group, 1, "third")
    assert retried.receipt["attempt_number"] == 2
    (await retried.outcome()).ok()
    kinds = await wire.event_types()
    assert kinds.count("ActivityScheduled") == 2
    assert kinds.count("ActivityCompleted") == 2


async def test_a_retried_member_is_not_admitted_again(wire: Wire, worker: Worker) -> None:
    group = flat(local(retry_policy=retries(2, 5)), local())
    claim = await admitted(wire, worker, group)
    first, second = await prepared(claim, group, 1), await prepared(claim, group, 2)
    (await second.outcome()).ok()
    released = (await first.outcome("failed", message="no")).ok()
    assert released["claim_released"] is True
    assert await worker.idle()
    wire.clock.advance(5)
    again = await worker.poll()
    (await again.checkpoint_group("h", 1, *group)).refused(409, "local_activity_checkpoint_sequence_mismatch")
    changed = {**descriptor(group[0]), "start_to_close_timeout": 3}
    (await again.prepare("new", **changed)).refused(409, "local_activity_retry_preparation_mismatch")
    (await again.prepare("n1", **descriptor(group[0]))).refused(409, "local_activity_retry_worker_attempt_reused")
    assert (await prepared(again, group, 1, "new")).receipt["attempt_number"] == 2


async def test_the_total_time_of_a_member_runs_while_it_waits_to_be_started(wire: Wire, worker: Worker) -> None:
    group = flat(local(schedule_to_close_timeout=4), local())
    claim = await admitted(wire, worker, group)
    wire.clock.advance(4)

    refused = (await claim.prepare(**descriptor(group[0]))).refused(409, "local_activity_deadline_expired")

    event = (await wire.events())[-1]
    assert (refused["event_id"], refused["event_type"]) == (event["id"], "ActivityTimedOut")
    assert event["payload"]["timeout_kind"] == "schedule_to_close"
    assert "ActivityStarted" not in await wire.event_types()
    (await prepared(claim, group, 2)).receipt["attempt_number"]


async def test_only_workers_with_groups_go_on_with_one(wire: Wire, worker: Worker) -> None:
    await admitted(wire, worker, flat(local(), local()))
    wire.clock.advance(10)
    without = Worker(wire, "without", capabilities=WITH_POLICIES)
    await without.register()

    assert await without.idle()
    await worker.poll()


async def test_the_last_member_wakes_the_workflow_whoever_runs_it(wire: Wire, worker: Worker) -> None:
    group = flat(local(), TIMER, kind="mixed")
    claim = await admitted(wire, worker, group)
    (await (await prepared(claim, group, 1)).outcome()).ok()
    waiting = {"message": "Workflow task waiting for scheduled history.", "type": "WorkflowTaskWaitingForHistory"}
    assert (await claim.post("/fail", failure=waiting)).ok()["next_task_id"] is None
    assert await worker.idle()
    wire.clock.advance(30)
    await worker.poll()


async def test_a_member_that_ends_after_the_timer_did_needs_no_other_task(wire: Wire, worker: Worker) -> None:
    group = flat(local(), {"type": "start_timer", "delay_seconds": 1}, kind="mixed")
    claim = await admitted(wire, worker, group)
    attempt = await prepared(claim, group, 1)
    wire.clock.advance(2)
    (await attempt.control()).ok()
    (await attempt.outcome()).ok()
    (await claim.complete()).ok()
    assert (await wire.event_types())[-3:] == ["TimerFired", "ActivityCompleted", "WorkflowCompleted"]
