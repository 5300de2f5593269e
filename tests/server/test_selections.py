"""Selections on the embedded server: the first member to end wins; losers go on or are cancelled (commands.md §6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from server.groups import TIMER, level, member
from server.test_children import both_types, child, failure, of_type
from server.test_parallel_groups import nested
from server.test_queued_activities import CALL, hands, take
from server.wire import Wire, Worker

__all__ = ["hands"]  # a fixture of this module, too

WAIT = {"type": "open_condition_wait", "condition_key": "gate", "condition_definition_fingerprint": "sha256:aa"}
KINDS = {
    "schedule_activity": "activity",
    "start_timer": "timer",
    "start_child_workflow": "child",
    "open_condition_wait": "condition",
    "open_signal_wait": "signal",
}


def select(members: dict[int | str, Any], base: int = 1) -> list[dict[str, Any]]:
    """Give the commands of a selection; a member that is a list of commands is a flat group."""
    size = sum(len(one) if isinstance(one, list) else 1 for one in members.values())
    commands: list[dict[str, Any]] = []
    number = base
    for index, (key, one) in enumerate(members.items()):
        leaves = one if isinstance(one, list) else [one]
        entry = {
            "parallel_group_id": f"select-calls:{base}:{size}",
            "parallel_group_kind": "mixed",
            "parallel_group_mode": "select",
            "parallel_group_base_sequence": base,
            "parallel_group_size": size,
            "selection_member_key": key,
            "selection_member_index": index,
            "selection_member_base_sequence": number,
            "selection_member_size": len(leaves),
            "selection_member_kind": "group" if isinstance(one, list) else KINDS[one["type"]],
        }
        for offset, leaf in enumerate(leaves):
            path = [{**entry, "parallel_group_index": number + offset - base}]
            if isinstance(one, list):
                path.append(level("mixed", number, len(leaves), offset))
            commands.append(member(leaf, *path))
        number += len(leaves)
    return commands


def cancel(events: list[dict[str, Any]], number: int, **changes: Any) -> dict[str, Any]:
    """Give the command that cancels the member which begins at a number."""
    (opened,) = [
        event["payload"]
        for event in events
        if event["payload"].get("sequence") == number
        and event["event_type"].endswith(("Scheduled", "WaitOpened"))
        and "timer_kind" not in event["payload"]
    ]
    entry = opened["parallel_group_path"][0]
    size = entry["selection_member_size"]
    names = ("activity_execution_id", "child_workflow_run_id", "condition_wait_id", "signal_wait_id", "timer_id")
    identity = next(opened[name] for name in names if name in opened)
    return {
        "type": "cancel_selection_operation",
        "selection_group_id": entry["parallel_group_id"],
        "member_key": entry["selection_member_key"],
        "member_index": entry["selection_member_index"],
        "member_base_sequence": number,
        "member_size": size,
        "operation_kind": entry["selection_member_kind"],
        "operation_identity": f"group:{number}:{size}" if entry["selection_member_kind"] == "group" else identity,
        **changes,
    }


async def begun(wire: Wire, worker: Worker, members: dict[int | str, Any]) -> None:
    await wire.start()
    (await (await worker.poll()).complete(*select(members))).ok()


async def test_the_first_member_to_end_wins_and_wakes_the_workflow(
    wire: Wire, worker: Worker, hands: Worker, shared_fixtures: Path
) -> None:
    await begun(wire, worker, {"work": CALL, 7: TIMER})
    hand = await take(hands)
    assert await worker.idle()
    wire.clock.advance(30)
    claim = await worker.poll()
    events = claim.task["history_events"]
    (marker,) = of_type(events, "SelectionResolved")
    (fired,) = [event for event in events if event["event_type"] == "TimerFired"]
    assert marker == {
        "selection_group_id": "select-calls:1:2",
        "selection_group_base_sequence": 1,
        "selection_group_size": 2,
        "member_key": 7,
        "member_index": 1,
        "member_base_sequence": 2,
        "member_size": 1,
        "operation_kind": "timer",
        "operation_identity": fired["payload"]["timer_id"],
        "outcome": "completed",
        "resolution_event_id": fired["id"],
        "resolution_event_type": "TimerFired",
    }
    check_events(shared_fixtures, events)
    (await claim.post("/fail", failure={"message": "x", "type": "WorkflowTaskWaitingForHistory"})).ok()
    (await hand.complete()).ok()
    later = (await worker.poll()).task["history_events"]
    assert later[-1]["event_type"] == "ActivityCompleted", "the loser's end wakes whoever awaits it"
    assert len(of_type(later, "SelectionResolved")) == 1


async def test_a_member_that_fails_wins_with_its_failure(wire: Wire, worker: Worker, hands: Worker) -> None:
    await begun(wire, worker, {"a": CALL, "b": TIMER})
    (await (await take(hands)).fail(non_retryable=True)).ok()
    (marker,) = of_type((await worker.poll()).task["history_events"], "SelectionResolved")
    assert (marker["member_key"], marker["outcome"]) == ("a", "failed")
    assert marker["resolution_event_type"] == "ActivityFailed"


async def test_a_list_wins_with_its_last_success(wire: Wire, worker: Worker, hands: Worker) -> None:
    await begun(wire, worker, {"list": [CALL, CALL], "late": {**TIMER, "delay_seconds": 300}})
    first, second = await take(hands), await take(hands)
    (await second.complete()).ok()
    assert await worker.idle()
    assert "SelectionResolved" not in await wire.event_types()
    (await first.complete()).ok()
    events = (await worker.poll()).task["history_events"]
    (marker,) = of_type(events, "SelectionResolved")
    assert (marker["operation_kind"], marker["operation_identity"]) == ("group", "group:1:2")
    assert marker["resolution_event_id"] == events[-2]["id"]


async def test_a_list_wins_with_its_first_failure(wire: Wire, worker: Worker, hands: Worker) -> None:
    await begun(wire, worker, {"list": [CALL, CALL], "late": {**TIMER, "delay_seconds": 300}})
    await take(hands)
    (await (await take(hands)).fail(non_retryable=True)).ok()
    (marker,) = of_type((await worker.poll()).task["history_events"], "SelectionResolved")
    assert (marker["member_key"], marker["outcome"]) == ("list", "failed")


async def test_a_child_wins_under_the_identity_it_was_started_with(wire: Wire) -> None:
    worker = await both_types(wire)
    await begun(wire, worker, {"c": child(retry_policy={"max_attempts": 2}), "t": TIMER})
    first = await worker.poll()
    (await first.complete(failure())).ok()
    (await (await worker.poll()).complete()).ok()
    events = (await worker.poll()).task["history_events"]
    (marker,) = of_type(events, "SelectionResolved")
    assert marker["operation_identity"] == first.task["run_id"]
    (completed,) = of_type(events, "ChildRunCompleted")
    assert completed["child_workflow_run_id"] == first.task["run_id"]
    assert completed["child_run_number"] == 2


async def test_a_selected_condition_ends_with_a_signal_or_its_timeout(wire: Wire, worker: Worker) -> None:
    await begun(wire, worker, {"gate": WAIT, "late": {**WAIT, "condition_key": "other", "timeout_seconds": 9}})
    (await wire.control("POST", "/workflows/wf/signal/open", {"request_id": "r"})).ok(202)
    claim = await worker.poll()
    kinds = [event["event_type"] for event in claim.task["history_events"]]
    assert kinds[-3:] == ["SignalReceived", "ConditionWaitSatisfied", "SelectionResolved"]
    (satisfied,) = of_type(claim.task["history_events"], "ConditionWaitSatisfied")
    assert satisfied["signal_name"] == "open"
    assert satisfied["parallel_group_path"][0]["selection_member_key"] == "gate"
    (await claim.post("/fail", failure={"message": "x", "type": "WorkflowTaskWaitingForHistory"})).ok()
    wire.clock.advance(9)
    events = (await worker.poll()).task["history_events"]
    assert events[-1]["event_type"] == "ConditionWaitTimedOut"
    assert events[-1]["payload"]["parallel_group_path"]


async def test_a_loser_is_cancelled_once_and_whatever_it_reports_is_stale(
    wire: Wire, worker: Worker, hands: Worker, shared_fixtures: Path
) -> None:
    await begun(wire, worker, {"w": CALL, "t": TIMER, "c": {**WAIT, "timeout_seconds": 500}})
    hand = await take(hands)
    wire.clock.advance(30)
    claim = await worker.poll()
    events = claim.task["history_events"]
    commands = [cancel(events, 1), cancel(events, 3)]
    wait = {**WAIT, "condition_key": "next"}
    (await claim.complete(*commands, wait)).ok()
    recorded = await wire.events()
    assert [event["event_type"] for event in recorded][len(events) :] == [
        "ActivityCancelled",
        "SelectionOperationCancelled",
        "TimerCancelled",
        "SelectionOperationCancelled",
        "ConditionWaitOpened",
    ]
    cancelled = of_type(recorded, "SelectionOperationCancelled")[0]
    assert {**commands[0], "cancelled_at": cancelled["cancelled_at"]} == {**cancelled, "type": commands[0]["type"]}
    assert of_type(recorded, "ConditionWaitOpened")[-1]["sequence"] == 4, "a cancellation takes no number"
    check_events(shared_fixtures, recorded)
    (await hand.complete()).refused(409, "stale_attempt")
    (await wire.control("POST", "/workflows/wf/signal/any", {"request_id": "r"})).ok(202)
    before = await wire.event_types()
    (await (await worker.poll()).complete(*commands, wait)).ok()
    assert (await wire.event_types()).count("SelectionOperationCancelled") == 2
    assert before.count("ConditionWaitOpened") == 2


async def test_cancelling_what_has_ended_leaves_an_open_wait_alone(wire: Wire, worker: Worker, hands: Worker) -> None:
    await begun(wire, worker, {"w": CALL, "t": TIMER})
    hand = await take(hands)
    wire.clock.advance(30)
    claim = await worker.poll()
    command = cancel(claim.task["history_events"], 1)
    (await hand.complete()).ok()
    (await claim.complete(command, WAIT)).ok()
    before = await wire.event_types()
    (await (await worker.poll()).complete(command, WAIT)).ok()
    assert await wire.event_types() == before
    assert "SelectionOperationCancelled" not in before


async def test_a_cancelled_child_is_closed_and_its_parent_hears_only_of_the_cancellation(wire: Wire) -> None:
    worker = await both_types(wire)
    await begun(wire, worker, {"c": child(), "t": TIMER})
    running = await worker.poll()
    wire.clock.advance(5)
    (await running.post("/heartbeat")).ok()
    wire.clock.advance(5)
    (await running.post("/heartbeat")).ok()
    for _ in range(4):
        wire.clock.advance(5)
        (await running.post("/heartbeat")).ok()
    claim = await worker.poll()
    (await claim.complete(cancel(claim.task["history_events"], 1))).ok()
    assert (await wire.describe(running.task["workflow_id"]))["status"] == "cancelled"
    assert (await wire.event_types())[-1] == "SelectionOperationCancelled"
    (await running.complete()).refused(409, "run_closed")


@pytest.mark.parametrize(
    "changes",
    [
        {"member_key": "other"},
        {"member_index": 1},
        {"member_size": 2},
        {"operation_kind": "child"},
        {"operation_identity": "another"},
        {"selection_group_id": "select-calls:9:2"},
    ],
)
async def test_a_cancellation_of_another_member_is_refused(
    wire: Wire, worker: Worker, hands: Worker, changes: dict[str, Any]
) -> None:
    await begun(wire, worker, {"w": CALL, "t": TIMER})
    await take(hands)
    wire.clock.advance(30)
    claim = await worker.poll()
    before = await wire.event_types()
    (await claim.complete(cancel(await wire.events(), 1, **changes))).refused(422, "invalid_commands")
    assert await wire.event_types() == before


async def test_no_member_is_cancelled_before_there_is_a_winner(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete({"type": "start_timer", "delay_seconds": 1}, *select({"t": TIMER}, 2))).ok()
    wire.clock.advance(1)
    command = cancel(await wire.events(), 2)
    (await (await worker.poll()).complete(command)).refused(422, "invalid_commands")


@pytest.mark.parametrize("name", ["selection_group_id", "member_key", "member_index", "operation_identity"])
async def test_every_field_of_a_cancellation_is_required(wire: Wire, worker: Worker, name: str) -> None:
    await begun(wire, worker, {"t": TIMER, "u": {**TIMER, "delay_seconds": 99}})
    wire.clock.advance(30)
    claim = await worker.poll()
    command = cancel(claim.task["history_events"], 2)
    del command[name]
    body = (await claim.complete(command)).refused(422, "validation_failed")
    assert list(body["errors"]) == [f"commands.0.{name}"]


async def test_a_cancellation_needs_protocol_1_19(wire: Wire) -> None:
    worker = Worker(wire, worker_id="old", capabilities=(), version="1.18")
    await worker.register()
    await begun(wire, worker, {"t": TIMER, "u": {**TIMER, "delay_seconds": 99}})
    wire.clock.advance(30)
    claim = await worker.poll()
    (await claim.complete(cancel(claim.task["history_events"], 2))).refused(422, "validation_failed")


def _broken(index: int, **changes: Any) -> list[dict[str, Any]]:
    batch = select({"a": TIMER, "b": [TIMER, CALL], 3: WAIT})
    first, *rest = batch[index]["parallel_group_path"]
    bare = {key: value for key, value in batch[index].items() if not key.startswith(("parallel_", "selection_"))}
    batch[index] = member(bare, {**first, **changes}, *rest)
    return batch


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (_broken(0, selection_member_key="b"), "invalid_commands"),
        (_broken(0, selection_member_index=1), "invalid_commands"),
        (_broken(0, selection_member_base_sequence=2), "invalid_commands"),
        (_broken(0, selection_member_kind="activity"), "invalid_commands"),
        (_broken(0, selection_member_kind="group"), "invalid_commands"),
        (_broken(2, selection_member_key="c"), "invalid_commands"),
        (_broken(3, selection_member_size=2), "invalid_commands"),
        (_broken(3, parallel_group_index=1), "invalid_commands"),
        (_broken(0, selection_member_key=""), "validation_failed"),
        (_broken(0, selection_member_key=-1), "validation_failed"),
        (_broken(0, selection_member_key=True), "validation_failed"),
        (_broken(0, selection_member_kind="hope"), "validation_failed"),
        (_broken(0, parallel_group_mode="race"), "validation_failed"),
        (_broken(0, parallel_group_id="parallel-calls:1:4"), "validation_failed"),
        (_broken(0)[:3], "invalid_commands"),
        ([member(WAIT, level("mixed", 1, 1, 0))], "invalid_commands"),
        (
            [member(TIMER, level("mixed", 1, 1, 0), select({"a": TIMER})[0]["parallel_group_path"][0])],
            "validation_failed",
        ),
    ],
)
async def test_members_that_disagree_are_refused_as_a_whole(
    wire: Wire, worker: Worker, batch: list[dict[str, Any]], reason: str
) -> None:
    await wire.start()
    claim = await worker.poll()
    (await claim.complete(*batch)).refused(422, reason)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    (await claim.complete(*_broken(0))).ok()


async def test_a_list_that_is_authored_again_is_recorded_once(wire: Wire, worker: Worker, hands: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await wire.control("POST", "/workflows/wf/signal/any", {"request_id": "r"})).ok(202)
    (await claim.complete(*nested())).ok()
    again = await worker.poll()
    before = await wire.event_types()
    (await again.complete(*nested())).ok()
    assert await wire.event_types() == before
    assert await worker.idle()
    for _ in range(2):
        (await (await take(hands)).complete()).ok()
    wire.clock.advance(30)
    (await (await worker.poll()).complete()).ok()


async def test_another_list_under_numbers_that_are_taken_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    claim = await worker.poll()
    (await wire.control("POST", "/workflows/wf/signal/any", {"request_id": "r"})).ok(202)
    (await claim.complete(*nested())).ok()
    again = await worker.poll()
    flat = [member(TIMER, level("timer", 1, 3, index)) for index in range(3)]
    (await again.complete(*flat)).refused(422, "invalid_commands")
    (await again.complete(*nested()[:2])).refused(422, "invalid_commands")


async def test_a_cancellation_is_delivered_where_the_handle_of_a_member_is_awaited(
    wire: Wire, worker: Worker, hands: Worker, shared_fixtures: Path
) -> None:
    """The delivery names the operations of the member, as every replay of it needs, and stops what is open of them."""
    await begun(wire, worker, {"work": CALL, "late": [TIMER, TIMER], "later": TIMER})
    (await (await take(hands)).complete()).ok()
    claim = await worker.poll()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]

    async def deliver(operation: int | None, span: int | None, sequence: int = 5) -> Any:
        body = {"request_id": request_id, "sequence": sequence, "call_kind": "selection_handle"}
        operations = {"operation_sequence": operation, "operation_sequence_span": span}
        return await claim.post("/deliver-cancellation", **body, **operations)

    for operation, span in ((2, None), (2, 3), (3, 1), (4, 2)):
        (await deliver(operation, span)).refused(409, "cancellation_delivery_sequence_mismatch")
    (await deliver(2, 2, 6)).refused(409, "cancellation_delivery_sequence_mismatch")
    (await deliver(2, 2, 4)).refused(409, "cancellation_delivery_shape_mismatch")
    (await deliver(None, None)).refused(409, "invalid_cancellation_delivery")
    (await deliver(1, None)).refused(409, "cancellation_delivery_not_eligible")
    told = (await deliver(2, 2)).ok()
    assert (told["delivered"], told["operation_sequence"], told["operation_sequence_span"]) == (True, 2, 2)
    events = await wire.events()
    (delivered,) = of_type(events, "CooperativeCancellationDelivered")
    assert (delivered["sequence"], delivered["operation_sequence"], delivered["operation_sequence_span"]) == (5, 2, 2)
    assert [payload["sequence"] for payload in of_type(events, "TimerCancelled")] == [2, 3]
    check_events(shared_fixtures, events)
    assert (await deliver(2, 2)).ok() == told
    (await deliver(4, None)).refused(409, "cancellation_delivery_mismatch")
    (await claim.complete({"type": "start_timer", "delay_seconds": 1})).ok()
    (timer,) = [event["payload"] for event in await wire.events() if event["event_type"] == "TimerScheduled"][-1:]
    assert timer["sequence"] == 6
