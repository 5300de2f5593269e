"""checkpoint: commands before a local call become durable, once, and the claim stays (prepared-local.md §2.1)."""

from __future__ import annotations

from typing import Any

import pytest

from server.groups import TIMER, member, selected
from server.wire import TEXT, Wire, Worker, instant, side_effect

MARKER = {
    "type": "record_version_marker",
    "change_id": "c",
    "version": 1,
    "min_supported": -1,
    "max_supported": 1,
}


async def test_records_the_commands_and_keeps_the_claim(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(3)
    receipt = (await claim.checkpoint("one", 1, side_effect(), MARKER)).ok()
    assert (receipt["checkpointed"], receipt["duplicate"], receipt["reason"]) == (True, False, None)
    assert (receipt["start_sequence"], receipt["next_sequence"]) == (1, 3)
    assert receipt["workflow_run_id"] == claim.task["run_id"]
    assert receipt["task_id"] == claim.task["task_id"]
    assert receipt["lease_owner"] == "w"
    assert receipt["workflow_task_attempt"] == 1
    assert receipt["lease_expires_at"] == instant(10)
    assert receipt["history_refresh_page_token"] == "MA=="
    assert receipt["created_task_ids"] == []
    effect, marker = (await wire.events())[-2:]
    assert (effect["event_type"], effect["payload"]["sequence"]) == ("SideEffectRecorded", 1)
    assert effect["payload"]["result"] == TEXT
    assert marker["payload"]["sequence"] == 2
    assert {k: v for k, v in MARKER.items() if k != "type"}.items() <= marker["payload"].items()
    assert marker["workflow_task_id"] == claim.task["task_id"]


async def test_the_identical_checkpoint_gets_the_same_receipt(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    first = (await claim.checkpoint("one", 1, side_effect())).ok()
    await wire.cancel_cooperatively()
    second = (await claim.checkpoint("one", 1, side_effect())).ok()
    assert second == {**first, "duplicate": True}
    (await claim.checkpoint("one", 1, MARKER)).refused(409, "local_activity_checkpoint_mismatch")
    (await claim.checkpoint("one", 2, side_effect())).refused(409, "local_activity_checkpoint_mismatch")
    assert (await wire.event_types()).count("SideEffectRecorded") == 1


async def test_only_the_latest_receipt_is_kept(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("one", 1, side_effect())).ok()
    (await claim.checkpoint("two", 2, side_effect())).ok()
    (await claim.checkpoint("one", 1, side_effect())).refused(409, "local_activity_checkpoint_sequence_mismatch")


async def test_a_replacement_cannot_reuse_the_id_and_the_replaced_owner_nothing(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("one", 1, side_effect())).ok()
    wire.clock.advance(10)
    again = await worker.poll()
    (await claim.checkpoint("one", 1, side_effect())).refused(409, "workflow_claim_mismatch")
    (await again.checkpoint("one", 1, side_effect())).refused(409, "local_activity_checkpoint_mismatch")


async def test_what_others_run_may_be_checkpointed_too_in_authored_order(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    activity = {"type": "schedule_activity", "activity_type": "charge"}
    child = {"type": "start_child_workflow", "workflow_type": "other"}

    receipt = (await claim.checkpoint("one", 1, activity, {"type": "start_timer", "delay_seconds": 5}, child)).ok()

    assert receipt["next_sequence"] == 4
    assert (await wire.event_types())[2:5] == ["ActivityScheduled", "TimerScheduled", "ChildWorkflowScheduled"]
    (await claim.prepare(sequence=4)).ok()


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        ({"type": "complete_workflow", "result": None}, 409, "invalid_local_activity_checkpoint_commands"),
        ({"type": "open_signal_wait", "signal_name": "go"}, 409, "invalid_local_activity_checkpoint_commands"),
        ({"type": "record_local_activity"}, 409, "invalid_local_activity_checkpoint_commands"),
        ({"type": "open_condition_wait"}, 409, "invalid_local_activity_checkpoint_commands"),
        ({"type": "cancel_selection_operation"}, 409, "invalid_local_activity_checkpoint_commands"),
        ({"type": "prepare_local_activity"}, 409, "invalid_local_activity_checkpoint_commands"),
        (member(TIMER, *selected()), 409, "invalid_local_activity_checkpoint_commands"),
        ({"type": "record_side_effect"}, 422, "validation_failed"),
        ({**MARKER, "version": "1"}, 422, "validation_failed"),
        ({**MARKER, "delay_seconds": 1}, 422, "validation_failed"),
    ],
)
async def test_one_bad_command_rolls_the_batch_back(
    wire: Wire, worker: Worker, command: dict[str, Any], status: int, reason: str
) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("one", 1, side_effect(), command)).refused(status, reason)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.checkpoint("one", 1, side_effect())).ok()


async def test_bad_identities_and_too_many_commands_are_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.checkpoint("", 1)).refused(409, "invalid_local_activity_checkpoint")
    (await claim.checkpoint("x" * 256, 1)).refused(409, "invalid_local_activity_checkpoint")
    (await claim.checkpoint("one", 0)).refused(409, "invalid_local_activity_checkpoint")
    many = [side_effect()] * 101
    (await claim.checkpoint("one", 1, *many)).refused(409, "invalid_local_activity_checkpoint")
    metadata = await claim.checkpoint("one", 1, sticky_cache={"worker_id": "w"})
    assert list(metadata.refused(422, "validation_failed")["errors"]) == ["sticky_cache"]
    assert (await claim.checkpoint("one", 1)).ok()["next_sequence"] == 1


async def test_an_ended_lease_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    wire.clock.advance(10)
    refused = (await claim.checkpoint("one", 1)).refused(409, "workflow_claim_expired")
    assert refused["checkpointed"] is False


async def test_new_work_is_refused_between_request_and_delivery(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    await wire.cancel_cooperatively()
    (await claim.checkpoint("one", 1, side_effect())).refused(409, "cancellation_requested")
