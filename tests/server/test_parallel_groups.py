"""Parallel groups: members agree or the batch is refused; the workflow is woken once, by the last (commands.md §5)."""

from __future__ import annotations

from typing import Any

import pytest

from server.groups import TIMER, level, member
from server.test_queued_activities import CALL, Hand, hands, poll, take
from server.wire import Wire, Worker

__all__ = ["hands"]  # a fixture of this module, too


def nested() -> list[dict[str, Any]]:
    """Give `[activity, [activity, timer]]` from number 1 on."""
    return [
        member(CALL, level("mixed", 1, 3, 0)),
        member(CALL, level("mixed", 1, 3, 1), level("mixed", 2, 2, 0)),
        member(TIMER, level("mixed", 1, 3, 2), level("mixed", 2, 2, 1)),
    ]


async def test_the_workflow_is_woken_once_by_the_last_member(wire: Wire, worker: Worker, hands: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(*nested())).ok()
    one, two = await take(hands), await take(hands)

    (await two.complete()).ok()
    (await one.complete()).ok()
    assert await worker.idle()
    wire.clock.advance(30)
    await worker.poll()
    assert await worker.idle()

    for event in (await wire.events())[2:]:
        payload = event["payload"]
        assert payload["parallel_group_path"] == nested()[payload["sequence"] - 1]["parallel_group_path"]


async def test_a_failed_member_waits_for_the_others(wire: Wire, worker: Worker, hands: Worker) -> None:
    await wire.start()
    batch = [member(CALL, level("activity", 1, 2, 0)), member(CALL, level("activity", 1, 2, 1))]
    (await (await worker.poll()).complete(*batch)).ok()
    first = await take(hands)
    second = Hand(hands, await poll(hands) or {})

    (await first.fail()).ok()
    assert await worker.idle()
    (await second.complete()).ok()

    await worker.poll()


def _broken(index: int, **changes: Any) -> list[dict[str, Any]]:
    batch = nested()
    path = [{**one, **changes} if place == 0 else one for place, one in enumerate(batch[index]["parallel_group_path"])]
    batch[index] = member({"type": batch[index]["type"], **(CALL if index < 2 else TIMER)}, *path)
    return batch


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (nested()[:2], "invalid_commands"),
        (nested()[1:], "invalid_commands"),
        ([nested()[1], nested()[0], nested()[2]], "invalid_commands"),
        ([TIMER, *nested()], "invalid_commands"),
        (_broken(0, parallel_group_index=1), "invalid_commands"),
        (_broken(0, parallel_group_id="other"), "validation_failed"),
        (_broken(0, parallel_group_size=0), "validation_failed"),
        (_broken(0, parallel_group_kind="none"), "validation_failed"),
        (_broken(0, parallel_group_mode="select"), "validation_failed"),
        (
            [member(CALL, level("timer", 1, 2, 0)), member(TIMER, level("timer", 1, 2, 1))],
            "invalid_commands",
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
    (await claim.complete(*nested())).ok()
