"""Local activities beyond the plain call: prepared groups, cleanup after a cancellation, ordinary workers."""

from __future__ import annotations

from typing import Any

import pytest

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import (
    Boundary,
    Cleanup,
    Commands,
    Decision,
    LocalCall,
    LocalGroup,
    ReplayTask,
    Unworkable,
    replay,
)
from proctor.errors import NonDeterminismError

Context = workflow.WorkflowContext


def conclude(cls: type[Any], history: list[dict[str, Any]], **more: Any) -> Decision:
    definition = workflow.definition_of(cls)
    given: dict[str, Any] = {"prepared": True, "queue": "q"} | more
    return replay(definition, ReplayTask("workflow-1", "run-1", definition.name, "avro", None, history, **given))


def result(decision: Decision) -> Any:
    assert isinstance(decision, Commands)
    return codec.decode_value(decision.commands[-1]["result"], None)


# -- groups ----------------------------------------------------------------------------------------


@workflow.defn(name="mixed")
class Mixed:
    async def run(self, ctx: Context) -> Any:
        drawn = await ctx.side_effect(lambda: 1)
        return await ctx.gather(
            [ctx.local_activity("a", [drawn]), [ctx.sleep(5), ctx.local_activity("b")], ctx.schedule_activity("c")]
        )


def group_of(decision: Decision) -> LocalGroup:
    assert isinstance(decision, LocalGroup)
    return decision


def admitted() -> HistoryWriter:
    """The history after checkpoint and checkpoint-group."""
    history = HistoryWriter(prepared=False).side_effect(1, 1)
    group = group_of(conclude(Mixed, history.events))
    for sequence, member in enumerate(group.admission, group.base):
        fields = {key: value for key, value in member.items() if key.startswith("parallel_")}
        if member["type"] == "prepare_local_activity":
            history.scheduled(sequence, member["activity_type"], **fields)
        elif member["type"] == "start_timer":
            history.add("TimerScheduled", sequence=sequence, delay_seconds=5, timer_id="t", **fields)
        else:
            history.add("ActivityScheduled", sequence=sequence, activity_type="c", **fields)
    return history


def test_a_group_with_local_activities_follows_its_prefix_and_is_admitted_whole() -> None:
    group = group_of(conclude(Mixed, HistoryWriter().events))
    assert (len(group.prefix), group.prefix_start, group.base) == (1, 1, 2)

    group = group_of(conclude(Mixed, HistoryWriter().side_effect(1, 1).events))
    assert (group.prefix, group.prefix_start, group.base) == ((), 2, 2)
    assert [member["type"] for member in group.admission] == [
        "prepare_local_activity",
        "start_timer",
        "prepare_local_activity",
        "schedule_activity",
    ]
    assert [member["parallel_group_path"][0]["parallel_group_index"] for member in group.admission] == [0, 1, 2, 3]
    assert len(group.admission[1]["parallel_group_path"]) == 2
    assert [(call.sequence, call.activity_type, call.prefix) for call in group.calls] == [(2, "a", ()), (4, "b", ())]
    assert group.calls[0].descriptor["parallel_group_id"] == "parallel-calls:2:4"
    assert group.calls[0].descriptor["type"] == "record_local_activity"


def test_an_admitted_group_offers_its_open_local_members_only() -> None:
    group = group_of(conclude(Mixed, admitted().events))
    assert group.admission == ()
    assert [call.sequence for call in group.calls] == [2, 4]

    group = group_of(conclude(Mixed, admitted().started(2, "a").completed(2, "a", "A").events))
    assert [call.sequence for call in group.calls] == [4]

    interrupted = group_of(conclude(Mixed, admitted().started(2, "a").events)).calls[0]
    assert interrupted.interrupted is not None


def test_a_group_whose_local_members_have_ended_waits_for_the_others_and_repeats_nothing() -> None:
    history = admitted().completed(4, "b", "B").completed(2, "a", "A")

    assert conclude(Mixed, history.events) == Commands(())

    def path(sequence: int) -> dict[str, Any]:
        (found,) = [e["payload"] for e in history.events if e["payload"].get("sequence") == sequence][:1]
        return {key: value for key, value in found.items() if key.startswith("parallel_")}

    history.add("TimerFired", sequence=3, timer_id="t", delay_seconds=5, **path(3))
    history.add("ActivityCompleted", sequence=5, activity_type="c", result=codec.encode("C"), **path(5))
    for event in history.events:
        if event["event_type"] == "ActivityCompleted" and event["payload"].get("local_activity"):
            event["payload"] |= path(event["payload"]["sequence"])
    assert result(conclude(Mixed, history.events)) == ["A", [None, "B"], "C"]


def test_a_half_admitted_group_is_nondeterminism() -> None:
    history = admitted()

    with pytest.raises(NonDeterminismError, match="of its 4 members"):
        conclude(Mixed, history.events[:-1])


@workflow.defn(name="too-many")
class TooMany:
    async def run(self, ctx: Context) -> Any:
        return await ctx.gather([ctx.local_activity("a") for _ in range(101)])


@workflow.defn(name="racing")
class Racing:
    async def run(self, ctx: Context) -> Any:
        return await ctx.select([ctx.local_activity("a"), ctx.sleep(1)])


def test_what_no_worker_may_do_leaves_the_claim_alone() -> None:
    for cls, prepared, reason in (
        (TooMany, True, "local_group_too_large"),
        (TooMany, False, "local_group_not_prepared"),
        (Racing, True, "local_selection"),
    ):
        decision = conclude(cls, HistoryWriter().events, prepared=prepared)
        assert isinstance(decision, Unworkable)
        assert decision.reason == reason


# -- cleanup after a cancellation ------------------------------------------------------------------


@workflow.defn(name="cleaning")
class Cleaning:
    async def run(self, ctx: Context, shielded: bool = True) -> Any:
        try:
            await ctx.local_activity("work")
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                return await ctx.local_activity("undo")


@workflow.defn(name="careless")
class Careless:
    async def run(self, ctx: Context) -> Any:
        try:
            await ctx.local_activity("work")
        except workflow.WorkflowCancelled:
            return await ctx.local_activity("undo")


CONTEXT = {
    "schema": "durable-workflow.cancellation-context/v1",
    "request_id": "Q",
    "root_request_id": "R",
    "root_workflow_instance_id": "parent",
    "root_workflow_run_id": "run-0",
    "parent_request_id": "R",
    "reason": None,
    "requester": {"type": "operator"},
    "source": "control_plane",
    "requested_at": "2026-01-02T03:04:00.000000Z",
    "cleanup_deadline_at": "2026-01-02T03:14:05.000000Z",
    "lineage": [
        {"request_id": "R", "workflow_instance_id": "parent", "workflow_run_id": "run-0"},
        {"request_id": "Q", "workflow_instance_id": "workflow-1", "workflow_run_id": "run-1"},
    ],
}


def cancelled() -> HistoryWriter:
    request = {
        "workflow_command_id": "Q",
        "workflow_run_id": "run-1",
        "cleanup_deadline_at": CONTEXT["cleanup_deadline_at"],
        "cancellation": CONTEXT,
    }
    history = HistoryWriter().scheduled(1, "work").add("CooperativeCancellationRequested", **request)
    assert conclude(Cleaning, history.events) == Boundary((), 1, "Q", "local_activity", 1)
    return history.add("CooperativeCancellationDelivered", **request, sequence=1, call_kind="local_activity")


def test_a_local_call_inside_a_shield_after_the_delivery_carries_the_proof_of_its_cleanup() -> None:
    call = conclude(Cleaning, cancelled().events)

    assert isinstance(call, LocalCall)
    assert call.sequence == 2
    assert call.cleanup == Cleanup("Q", "R", "event-5", "2026-01-02T03:14:05.000000Z")
    assert call.descriptor["cancellation_cleanup"] == {"request_id": "Q", "delivery_history_event_id": "event-5"}


def test_a_local_call_outside_a_shield_after_the_delivery_is_not_run() -> None:
    decision = conclude(Careless, cancelled().events)

    assert isinstance(decision, Unworkable)
    assert decision.reason == "call_after_cancellation"


# -- ordinary workers: what this task authored before --------------------------------------------------


@workflow.defn(name="ordinary")
class Ordinary:
    drawn = 0

    async def run(self, ctx: Context) -> Any:
        def draw() -> int:
            type(self).drawn += 1
            return self.drawn

        first = await ctx.side_effect(draw)
        await ctx.upsert_memo({"a": 1})
        patched = await ctx.patched("fix")
        try:
            here = await ctx.local_activity("here", [first])
        except workflow.ActivityFailed as exc:
            here = [str(exc), exc.activity_type, exc.exception_type, exc.non_retryable, exc.step_sequence]
        second = await ctx.side_effect(draw)
        return [first, patched, here, second, await ctx.local_activity("there", [here])]


COMPLETED = {"type": "record_local_activity", "activity_type": "here", "outcome": "completed"}
FAILED = COMPLETED | {"outcome": "failed", "message": "no", "exception_type": "OSError", "non_retryable": True}


@pytest.mark.parametrize(
    ("record", "seen"),
    [
        (COMPLETED | {"result": codec.envelope("done")}, "done"),
        (FAILED, ["no", "here", "OSError", True, None]),
    ],
)
def test_what_a_task_authored_before_is_taken_as_it_was_and_drawn_once(record: dict[str, Any], seen: Any) -> None:
    Ordinary.drawn = 0
    first = conclude(Ordinary, HistoryWriter().events, prepared=False)
    assert isinstance(first, LocalCall)
    assert [command["type"] for command in first.prefix] == [
        "record_side_effect",
        "upsert_memo",
        "record_version_marker",
    ]

    second = conclude(Ordinary, HistoryWriter().events, prepared=False, uncommitted=(*first.prefix, record))
    assert isinstance(second, LocalCall)
    assert (second.activity_type, second.arguments, second.sequence) == ("there", [seen], 6)
    assert second.prefix[:4] == (*first.prefix, record)

    last = {**COMPLETED, "activity_type": "there", "result": codec.envelope("end")}
    done = conclude(Ordinary, HistoryWriter().events, prepared=False, uncommitted=(*second.prefix, last))
    assert isinstance(done, Commands)
    assert [command["type"] for command in done.commands] == [
        "record_side_effect",
        "upsert_memo",
        "record_version_marker",
        "record_local_activity",
        "record_side_effect",
        "record_local_activity",
        "complete_workflow",
    ]
    assert result(done) == [1, True, seen, 2, "end"]
    assert Ordinary.drawn == 2


def test_code_that_does_something_else_than_before_in_one_task_is_nondeterminism() -> None:
    marker = {"type": "record_version_marker", "change_id": "x", "version": 1}

    with pytest.raises(NonDeterminismError, match="of this very task"):
        conclude(Ordinary, HistoryWriter().events, prepared=False, uncommitted=(marker,))
