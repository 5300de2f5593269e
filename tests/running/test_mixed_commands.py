"""One turn that authors calls of every kind: all of them are opened, in authored order, on both profiles."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.codec import envelope
from running.scripted_children import returns
from running.whole_world import story

OPENINGS = {"ActivityScheduled", "TimerScheduled", "ChildWorkflowScheduled", "SideEffectRecorded", "MemoUpserted"}


@workflow.defn(name="mixed")
class Mixed:
    """What is not awaited at once is a group; its queued activity and its child have nobody who works on them."""

    async def run(self, ctx: Any) -> Any:
        await ctx.side_effect(lambda: "seed")
        first = await ctx.local_activity("act", ["first"], start_to_close_timeout=30)
        await ctx.upsert_memo({"first": first})
        group = [
            ctx.start_timer(60),
            ctx.local_activity("act", ["second"], start_to_close_timeout=30),
            ctx.schedule_activity("remote", []),
            ctx.start_child_workflow("nobody", []),
            ctx.local_activity("act", ["third"], start_to_close_timeout=30),
        ]
        return await ctx.gather(group)


@workflow.defn(name="rowed")
class Rowed:
    """The same in a row, as the ordinary profile has no groups with local members."""

    async def run(self, ctx: Any) -> Any:
        await ctx.side_effect(lambda: "seed")
        first = await ctx.local_activity("act", ["first"], start_to_close_timeout=30)
        await ctx.upsert_memo({"first": first})
        await ctx.local_activity("act", ["second"], start_to_close_timeout=30)
        group = [
            ctx.start_timer(60),
            ctx.schedule_activity("remote", []),
            ctx.start_child_workflow("nobody", []),
        ]
        return await ctx.gather(group)


@pytest.mark.parametrize(
    ("kind", "profile", "opened"),
    [
        (Mixed, "supervised", ["SideEffectRecorded", "ActivityScheduled", "MemoUpserted", "TimerScheduled",
                               "ActivityScheduled", "ActivityScheduled", "ChildWorkflowScheduled",
                               "ActivityScheduled"]),
        (Rowed, "supervised", ["SideEffectRecorded", "ActivityScheduled", "MemoUpserted", "ActivityScheduled",
                               "TimerScheduled", "ActivityScheduled", "ChildWorkflowScheduled"]),
        (Rowed, "ordinary", ["SideEffectRecorded", "ActivityScheduled", "MemoUpserted", "ActivityScheduled",
                             "TimerScheduled", "ActivityScheduled", "ChildWorkflowScheduled"]),
    ],
)  # fmt: skip
async def test_calls_of_every_kind_are_opened_in_authored_order(
    autojump_clock: MockClock, kind: type[Any], profile: str, opened: list[str]
) -> None:
    async with story(kind, *[returns("done")] * 4, slots=2, profile=profile) as told:
        await told.wire.start("wf", workflow.definition_of(kind).name, arguments=envelope([]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.service.run)
            await trio.sleep(20)
            history = await told.wire.events()
            nursery.cancel_scope.cancel()

    openings = [
        (event["payload"]["sequence"], event["event_type"]) for event in history if event["event_type"] in OPENINGS
    ]
    assert openings == list(enumerate(opened, start=1))
    ends = [event["payload"]["sequence"] for event in history if event["event_type"] == "ActivityCompleted"]
    assert len(set(ends)) == len(told.children.jobs) >= 2, "each local call ran once"
