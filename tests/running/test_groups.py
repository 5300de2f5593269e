"""Groups with local activities: admitted as a whole or not at all, and believed when history shows each member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.attempt import StopCause
from proctor.core.codec import decode
from running.rigs import Rig
from running.scripted_children import hangs, raises, returns
from running.scripted_server import ScriptedServer

PUBLISHING = ("outcome", "complete", "fail", "acknowledge")


@workflow.defn(name="wf")
class Both:
    async def run(self, ctx: Any) -> Any:
        seed = await ctx.side_effect(lambda: "seed")
        first = ctx.local_activity("act", [seed, 1], start_to_close_timeout=30)
        pause = ctx.start_timer(5)
        second = ctx.local_activity("act", [seed, 2], start_to_close_timeout=30)
        return await ctx.gather([first, [pause, second]])


def rig(*behaviours: Any, offered: bool = True) -> Rig:
    server = ScriptedServer()
    if offered:
        server.capabilities["prepared_local_activity_groups"] = True
    return Rig(*behaviours, server=server, workflow_class=Both)


def set_to(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.update({key: value})


async def test_a_group_is_checkpointed_admitted_and_run_in_authored_order(autojump_clock: MockClock) -> None:
    told = rig(returns("one"), returns("two"))

    await told.run_to_close()

    order = [
        name for name in told.server.operations() if name in ("checkpoint", "checkpoint_group", "prepare", "outcome")
    ]
    assert order == ["checkpoint", "checkpoint_group", "prepare", "outcome", "prepare", "outcome"]
    (group,) = told.server.bodies("checkpoint_group")
    assert group["start_sequence"] == 2
    assert [command["type"] for command in group["commands"]] == [
        "prepare_local_activity",
        "start_timer",
        "prepare_local_activity",
    ]
    assert [body["sequence"] for body in told.server.bodies("prepare")] == [2, 4]
    (done,) = told.server.bodies("complete")
    assert decode(done["commands"][-1]["result"]["blob"]) == ["one", [None, "two"]]


async def test_the_capability_is_registered_only_where_it_is_offered(autojump_clock: MockClock) -> None:
    with_groups, without = rig(), rig(offered=False)

    await with_groups.idle_for(1)
    await without.idle_for(1)

    assert "prepared_local_activity_groups" in with_groups.server.bodies("register")[0]["capabilities"]
    assert "prepared_local_activity_groups" not in without.server.bodies("register")[0]["capabilities"]


async def test_without_the_capability_nothing_of_the_group_is_started(autojump_clock: MockClock) -> None:
    told = rig(offered=False)

    await told.run_for(5)

    assert told.children.jobs == []
    assert told.server.operations("checkpoint", "checkpoint_group", "prepare", *PUBLISHING) == []


async def test_a_failing_member_fails_the_group_after_all_have_ended(autojump_clock: MockClock) -> None:
    told = rig(raises("OSError"), returns("two"))

    await told.run_to_close()

    assert len(told.children.jobs) == 2
    assert told.server.closed == "fail_workflow"


@pytest.mark.parametrize(
    "lie",
    [
        set_to("checkpointed", False),
        set_to("next_sequence", 4),
        set_to("local_activities", None),
        set_to("local_activities", [{"sequence": 2, "activity_execution_id": "E2"}]),
        lambda body: body["local_activities"].reverse(),
        lambda body: body["local_activities"][0].update(sequence=True),
        lambda body: body["local_activities"][1].update(activity_execution_id="E2"),
        lambda body: body["local_activities"][0].update(activity_execution_id="another"),
        lambda body: body["local_activities"][0].update(activity_execution_id=" "),
    ],
)
async def test_a_lying_group_receipt_prepares_nothing(autojump_clock: MockClock, lie: Callable[[Any], Any]) -> None:
    told = rig()
    told.server.lie("checkpoint_group", lie)

    await told.run_for(5)

    assert told.server.operations("prepare", *PUBLISHING) == []
    assert len(told.server.bodies("checkpoint_group")) == 1


def hide(kind: str) -> Callable[[dict[str, Any]], None]:
    def lie(body: dict[str, Any]) -> None:
        kept = [event for event in body["history_events"] if event["event_type"] != kind]
        body["history_events"] = [{**event, "sequence": number} for number, event in enumerate(kept, start=1)]

    return lie


def misplace(body: dict[str, Any]) -> None:
    for event in body["history_events"]:
        if event["event_type"] == "TimerScheduled":
            event["payload"] = {**event["payload"], "parallel_group_path": []}


@pytest.mark.parametrize("lie", [hide("ActivityScheduled"), hide("TimerScheduled"), misplace])
async def test_a_group_that_history_does_not_show_is_not_believed(
    autojump_clock: MockClock, lie: Callable[[Any], Any]
) -> None:
    told = rig()
    told.server.lie("history", lambda body: None, lie)

    await told.run_for(5)

    assert told.server.operations("prepare", *PUBLISHING) == []


async def test_a_cancellation_stops_the_running_member_and_is_delivered_at_the_group(autojump_clock: MockClock) -> None:
    told = rig(hangs())
    told.server.start_run()
    async with told.serving():
        await told.children.started.wait()
        told.server.request_cancellation()
        await trio.sleep(5)

    assert told.children.all_reins[0].stops[0][0] == StopCause.CANCELLED
    (delivery,) = told.server.bodies("deliver")
    assert (delivery["call_kind"], delivery["sequence"], delivery["sequence_span"]) == ("parallel", 2, 3)
    assert len(told.children.jobs) == 1
