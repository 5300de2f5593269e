"""Groups with local activities: admitted as a whole or not at all, and believed when history shows each member.

How members run and end is in `test_groups_with_server`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trio.testing import MockClock

from proctor import workflow
from running.rigs import Rig
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
