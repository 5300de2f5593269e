"""A server that contradicts the protocol: the child is stopped first, and nothing is published.

Each lie changes one field of one otherwise honest answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor.core.attempt import StopCause
from proctor.core.replay import replay
from running.lies import forget, set_to, without
from running.rigs import Rig, one_call
from running.scripted_children import beats, hangs, raises, returns
from running.scripted_server import ScriptedServer

PUBLISHING = ("outcome", "complete", "fail", "acknowledge")


@pytest.mark.parametrize(
    "lie",
    [
        set_to("prepared", False),
        set_to("lease_owner", "another"),
        set_to("workflow_task_attempt", True),
        set_to("worker_attempt_id", "another"),
        set_to("lease_expires_at", "2020-01-01T00:00:00Z"),
        set_to("start_to_close_deadline_at", None),
        without("reason"),
        without("cancellation_cleanup"),
    ],
)
async def test_a_lying_prepare_starts_no_child(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], None]
) -> None:
    rig = Rig()
    rig.server.lie("prepare", lie)

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert rig.server.operations(*PUBLISHING) == []


@pytest.mark.parametrize(
    "lie",
    [
        set_to("activity_attempt_id", "another"),
        set_to("workflow_task_attempt", 2),
        set_to("workflow_task_id", "another"),
        set_to("active", "yes"),
        set_to("stop_required", True),
        set_to("renewed", False),
        set_to("heartbeat_recorded", True),
        set_to("start_to_close_deadline_at", "2030-01-01T00:00:00Z"),
        set_to("lease_expires_at", "2020-01-01T00:00:00Z"),
        set_to("workflow_lease_expires_at", None),
        set_to("server_time", "2026-10-02T00:00:00"),
        without("reason"),
        lambda body: [],
    ],
)
async def test_a_lying_control_stops_the_child_and_publishes_nothing(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.lie("control", lie)
        await trio.sleep(5)

        assert rig.children.running == 0
        assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")
        assert rig.server.operations(*PUBLISHING) == []
        assert rig.attempt()["outcome"] == "abandoned"


async def test_a_lying_control_after_the_result_publishes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=0.1))
    rig.server.lie("control", lambda body: None, set_to("lease_owner", "another"))

    await rig.run_for(5)

    assert rig.server.operations(*PUBLISHING) == []


@pytest.mark.parametrize(
    "lie",
    [
        set_to("fenced", "yes"),
        set_to("cancellation_history_event_id", " "),
        set_to("cancellation_request", None),
        lambda body: body["cancellation_request"]["lineage"][-1].update(workflow_run_id="another"),
        lambda body: body["cancellation_request"].update(requester={}),
    ],
)
async def test_a_lying_stop_order_stops_the_child_and_is_not_acknowledged(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(1)
        rig.server.request_cancellation()
        rig.server.lie("control", lie)
        await trio.sleep(5)

        assert rig.children.running == 0
        assert rig.server.operations(*PUBLISHING) == []


@pytest.mark.parametrize(
    "lie",
    [
        set_to("renewed", True),
        set_to("heartbeat_recorded", False),
        set_to("heartbeat_history_event_id", None),
        set_to("heartbeat_deadline_at", None),
        set_to("heartbeat_deadline_at", "2030-01-01T00:00:00Z"),
        set_to("activity_execution_id", "another"),
    ],
)
async def test_a_lying_heartbeat_stops_the_child_and_publishes_nothing(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig(beats({"n": 1}, then=hangs()), workflow_class=one_call(heartbeat_timeout=6))
    rig.server.lie("heartbeat", lie)

    await rig.run_for(3)

    assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")
    assert rig.server.operations(*PUBLISHING) == []


@pytest.mark.parametrize(
    "lie",
    [
        set_to("recorded", False),
        set_to("event_type", "ActivityCancelled"),
        set_to("event_id", "V999"),
        set_to("event_id", "V2"),
        set_to("claim_released", True),
        set_to("created_task_ids", ["T9"]),
        set_to("workflow_run_id", "another"),
        set_to("worker_attempt_id", "another"),
        set_to("recorded_at", "yesterday"),
        without("duplicate"),
    ],
)
async def test_a_lying_outcome_receipt_completes_nothing_and_starts_no_second_child(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig(returns("x"))
    rig.server.lie("outcome", lie)

    await rig.run_for(5)

    assert len(rig.children.jobs) == 1
    assert rig.server.operations("complete", "fail") == []


async def test_a_retry_that_does_not_release_the_claim_is_not_believed(autojump_clock: MockClock) -> None:
    retry = {"max_attempts": 2, "backoff_seconds": [], "non_retryable_error_types": []}
    server = ScriptedServer()
    rig = Rig(raises("OSError"), hangs(), server=server, workflow_class=one_call(retry_policy=retry))
    server.lie("outcome", set_to("claim_released", False))

    await rig.run_for(5)

    assert rig.events[-1]["event"] == "deregistered"
    assert rig.attempts()[0]["reason"] == "protocol_breach"


async def test_a_lying_acknowledgement_delivers_nothing(autojump_clock: MockClock) -> None:
    rig = Rig(hangs())
    rig.server.lie("acknowledge", set_to("history_event_id", None))
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        await trio.sleep(5)

    assert rig.server.operations("deliver", "complete", "fail", "outcome") == []
    assert rig.attempt()["published"] is False


@pytest.mark.parametrize(
    ("operation", "lie"),
    [
        ("claim_heartbeat", lambda body: body["cancellation_request"].update(request_id="another")),
        ("claim_heartbeat", set_to("renewed", False)),
        ("history", forget("CooperativeCancellationRequested")),
        ("history", lambda body: body["history_events"][-2]["payload"].update(cancellation={"request_id": "Q"})),
        ("deliver", set_to("sequence", 2)),
        ("deliver", set_to("delivered", "yes")),
    ],
)
async def test_a_lie_between_acknowledgement_and_delivery_ends_the_claim_silently(
    autojump_clock: MockClock, operation: str, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        rig.server.lie(operation, lie)
        await trio.sleep(8)

    assert rig.server.operations("complete", "fail", "outcome") == []
    assert [event["outcome"] for event in rig.events if event["event"] == "workflow_task"] == ["abandoned"]


@pytest.mark.parametrize(
    "lie",
    [
        set_to("checkpointed", False),
        set_to("next_sequence", 3),
        set_to("start_sequence", True),
        set_to("checkpoint_id", "another"),
        set_to("history_refresh_page_token", " "),
    ],
)
async def test_a_lying_checkpoint_prepares_nothing(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig(workflow_class=side_effect_then_call())
    rig.server.lie("checkpoint", lie)

    await rig.run_for(5)

    assert rig.server.operations("prepare", *PUBLISHING) == []


@pytest.mark.parametrize(
    "lie",
    [
        set_to("recovered", False),
        set_to("activity_attempt_id", "another"),
        set_to("callback_stop_state", "stopped"),
        set_to("event_type", "ActivityCompleted"),
        set_to("event_id", "V1"),
    ],
)
async def test_a_lying_recovery_completes_nothing(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig()
    interrupt(rig.server)
    rig.server.lie("recover", lie)

    await rig.run_for(5)

    assert rig.server.operations("prepare", *PUBLISHING) == []


async def test_a_page_token_that_repeats_ends_the_claim_silently(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x"))
    rig.server.lie_always("history", set_to("next_history_page_token", "MA=="))

    await rig.run_for(5)

    assert rig.server.operations("complete", "fail") == []


@pytest.mark.parametrize(
    "lie",
    [
        lambda body: body["task"].update(task_id=""),
        lambda body: body["task"].update(workflow_task_attempt="1"),
        lambda body: body["task"].update(lease_owner="another"),
        lambda body: body["task"].update(history_events={}),
        lambda body: body["task"].update(task_kind="query"),
        lambda body: body["task"].update(cancel_requested="yes"),
        without("task"),
        lambda body: "task",
    ],
)
async def test_a_lying_poll_is_not_worked_on_and_polling_goes_on(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig()
    rig.server.lie("poll", lie)

    await rig.run_for(10)

    assert rig.server.operations("prepare", *PUBLISHING) == []
    assert len(rig.server.bodies("poll")) >= 2


async def test_a_delivery_that_history_does_not_show_is_not_believed(autojump_clock: MockClock) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        rig.server.lie("history", lambda body: None, forget("CooperativeCancellationDelivered"))
        await trio.sleep(8)

    (turn,) = [event for event in rig.events if event["event"] == "workflow_task"]
    assert turn["reason"] == "protocol_breach"
    assert len(rig.server.bodies("deliver")) == 1
    assert rig.server.operations("complete", "fail", "outcome") == []


async def test_a_checkpoint_that_history_does_not_show_is_not_repeated_for_ever(autojump_clock: MockClock) -> None:
    rig = Rig(workflow_class=side_effect_then_call())
    rig.server.lie_always("history", forget("SideEffectRecorded"))

    await rig.run_for(5)

    assert len(rig.server.bodies("checkpoint")) == 1
    assert rig.server.operations("prepare", *PUBLISHING) == []


async def test_a_server_that_shows_the_receipt_but_hides_the_attempt_gets_no_second_child(
    autojump_clock: MockClock,
) -> None:
    def hide(definition: Any, task: Any) -> Any:
        shown = [event for event in task.history if not event["event_type"].startswith("Activity")]
        return replay(definition, dataclasses.replace(task, history=shown))

    rig = Rig(returns("x"), hangs(), replayed=hide)

    await rig.run_for(5)

    assert len(rig.children.jobs) == 1
    assert rig.server.operations("complete", "fail") == []


def side_effect_then_call() -> type[Any]:
    from proctor import workflow

    @workflow.defn(name="wf")
    class SideEffectThenCall:
        async def run(self, ctx: Any) -> Any:
            seed = await ctx.side_effect(lambda: 7)
            return [seed, await ctx.local_activity("act", [seed], start_to_close_timeout=30)]

    return SideEffectThenCall


def interrupt(server: ScriptedServer) -> None:
    """Put an attempt of a lost claim into the history before the run is leased."""
    server.attempt = {"id": "A-old"}
    original = server.start_run

    def start_run(*arguments: Any) -> None:
        original(*arguments)
        server._record_activity("ActivityScheduled", 1, "act", attempt_id=None)
        server._record_activity("ActivityStarted", 1, "act")

    server.start_run = start_run  # type: ignore[method-assign]


async def test_the_honest_versions_of_these_stories_do_complete(autojump_clock: MockClock) -> None:
    checkpointed = Rig(returns("x"), workflow_class=side_effect_then_call(), replayed=replay)
    recovered = Rig()
    interrupt(recovered.server)

    await checkpointed.run_to_close()
    await recovered.run_to_close()

    assert checkpointed.server.operations("checkpoint", "prepare", "outcome", "complete") == [
        "checkpoint", "prepare", "outcome", "complete",
    ]  # fmt: skip
    assert recovered.server.operations("recover", "prepare", "outcome", "complete") == ["recover", "complete"]
