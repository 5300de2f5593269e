"""Where history says that a cancellation was delivered, and code that does not get there as it did."""

from __future__ import annotations

from typing import Any

import pytest

from core.concluding import conclude, refused, result
from core.histories import HistoryWriter
from core.small_workflows import Drawing, TwoCalls
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Boundary, Commands, LocalCall

Context = workflow.WorkflowContext


@workflow.defn(name="cancellable")
class Cancellable:
    async def run(self, ctx: Context) -> Any:
        first = await ctx.local_activity("first")
        try:
            await ctx.local_activity("second")
        except workflow.WorkflowCancelled as exc:
            return [first, exc.request_id]
        return "not cancelled"


def request(history: HistoryWriter) -> HistoryWriter:
    return history.add(
        "CooperativeCancellationRequested",
        workflow_command_id="Q",
        workflow_run_id="run-1",
        cleanup_deadline_at="2026-01-02T03:14:05Z",
    )


def cancelled(history: HistoryWriter, sequence: int, call_kind: str = "local_activity") -> list[dict[str, Any]]:
    request(history)
    history.add("CooperativeCancellationDelivered", workflow_command_id="Q", sequence=sequence, call_kind=call_kind)
    return history.events


def test_a_delivered_cancellation_is_raised_at_its_call_instead_of_the_recorded_rows() -> None:
    history = HistoryWriter().call(1, "first", "x").scheduled(2, "second").started(2, "second")

    assert result(conclude(Cancellable, cancelled(history, 2))) == ["x", "Q"]


def test_an_uncaught_cancellation_fails_the_run() -> None:
    decision = conclude(TwoCalls, cancelled(HistoryWriter().call(1, "first", "x"), 2))

    assert isinstance(decision, Commands)
    assert decision.commands[0]["exception_type"] == "WorkflowCancelled"


def test_a_delivery_at_another_kind_of_call_is_nondeterminism() -> None:
    assert "'timer'" in refused(Cancellable, cancelled(HistoryWriter().call(1, "first", "x"), 2, "timer")).found


@pytest.mark.parametrize("sequence", [3, 9])
def test_a_delivery_that_the_code_never_reaches_is_nondeterminism(sequence: int) -> None:
    history = HistoryWriter().call(1, "first", "x").call(2, "second", "y")

    assert "cancellation delivered" in refused(Cancellable, cancelled(history, sequence)).found


def test_a_side_effect_at_the_place_of_a_delivery_is_nondeterminism_there() -> None:
    error = refused(Drawing, cancelled(HistoryWriter().side_effect(1, 7), 1), 7)

    assert (error.sequence, error.expected) == (1, "side effect")
    assert error.found == "a cancellation delivered at sequence 1"


@workflow.defn(name="waiting-twice")
class WaitingTwice:
    def __init__(self) -> None:
        self.go = False

    @workflow.signal("go")
    def on_go(self) -> None:
        self.go = True

    async def run(self, ctx: Context, last: str) -> Any:
        seen: list[Any] = []
        await ctx.side_effect(lambda: 1)
        try:
            seen.append(await ctx.wait_condition(lambda: self.go, key="passed"))
            if last == "timer":
                await ctx.sleep(5)
            else:
                await ctx.wait_condition(lambda: False, key="boundary")
        except workflow.WorkflowCancelled as exc:
            seen.append(str(exc))
        return seen


@pytest.mark.parametrize(("last", "kind"), [("timer", "timer"), ("wait", "condition")])
def test_a_wait_that_was_true_is_passed_on_the_way_to_the_delivery_behind_it(last: str, kind: str) -> None:
    history = HistoryWriter().add("SignalReceived", signal_name="go").side_effect(1, 1)
    if last == "wait":
        history.add("ConditionWaitOpened", sequence=2, condition_wait_id="w", condition_key="boundary")

    decision = conclude(WaitingTwice, cancelled(history, 2, kind), last)

    assert result(decision) == [True, "workflow cancellation was requested"]


def chosen(history: HistoryWriter) -> HistoryWriter:
    """Record a selection of an activity, which ends, and a timer, which the code cancels."""
    places = [
        {
            "parallel_group_id": "select-calls:1:2",
            "parallel_group_kind": "mixed",
            "parallel_group_mode": "select",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 2,
            "parallel_group_index": index,
            "selection_member_key": key,
            "selection_member_index": index,
            "selection_member_base_sequence": 1 + index,
            "selection_member_size": 1,
            "selection_member_kind": kind,
        }
        for index, (key, kind) in enumerate([("work", "activity"), ("late", "timer")])
    ]
    work = {"sequence": 1, "activity_type": "work", "activity_execution_id": "a", "parallel_group_path": places[:1]}
    late = {"sequence": 2, "delay_seconds": 5, "timer_id": "t", "parallel_group_path": places[1:]}
    history.add("ActivityScheduled", **work).add("TimerScheduled", **late)
    history.add("ActivityCompleted", **work, result=codec.envelope("done"))
    told = {"selection_group_id": "select-calls:1:2", "member_size": 1}
    history.add(
        "SelectionResolved",
        **told,
        selection_group_base_sequence=1,
        selection_group_size=2,
        member_key="work",
        member_index=0,
        member_base_sequence=1,
        operation_kind="activity",
        operation_identity="a",
        outcome="completed",
        resolution_event_id=history.events[-1]["id"],
        resolution_event_type="ActivityCompleted",
    )
    return history.add(
        "SelectionOperationCancelled",
        **told,
        member_key="late",
        member_index=1,
        member_base_sequence=2,
        operation_kind="timer",
        operation_identity="t",
    )


@workflow.defn(name="choosing")
class Choosing:
    async def run(self, ctx: Context) -> Any:
        first = await ctx.select({"work": ctx.schedule_activity("work"), "late": ctx.sleep(5)})
        await first.handles["late"].cancel()
        seen = [await first.winner]
        try:
            await ctx.sleep(60)
        except workflow.WorkflowCancelled:
            seen.append("cancelled")
        return seen


def test_what_takes_no_number_is_passed_on_the_way_to_the_delivery_behind_it() -> None:
    assert result(conclude(Choosing, cancelled(chosen(HistoryWriter()), 3, "timer"))) == ["done", "cancelled"]


def test_a_request_is_delivered_behind_what_takes_no_number() -> None:
    decision = conclude(Choosing, request(chosen(HistoryWriter())).events)

    assert isinstance(decision, Boundary)
    assert (decision.call_kind, decision.sequence, decision.prefix) == ("timer", 3, ())


@workflow.defn(name="cleaning-up")
class CleaningUp:
    async def run(self, ctx: Context) -> Any:
        patched = await ctx.patched("fix")
        try:
            await ctx.local_activity("first")
        except workflow.WorkflowCancelled:
            return await ctx.local_activity("release", [patched])


def test_a_call_after_the_delivery_follows_it_in_sequence() -> None:
    call = conclude(CleaningUp, cancelled(HistoryWriter(), 1))

    assert isinstance(call, LocalCall)
    assert (call.activity_type, call.sequence) == ("release", 2)


def test_a_patch_before_an_unreached_delivery_goes_the_old_way() -> None:
    call = conclude(CleaningUp, cancelled(HistoryWriter(), 1))

    assert isinstance(call, LocalCall)
    assert (call.arguments, call.prefix) == ([False], ())


def test_a_requested_cancellation_holds_the_history_to_the_authored_sequence() -> None:
    history = request(HistoryWriter(prepared=False).call(3, "first", "x"))

    assert "at sequence 3" in refused(Cancellable, history.events).found


def test_a_requested_cancellation_is_to_be_delivered_at_the_first_call_that_was_open_when_it_came() -> None:
    history = request(HistoryWriter().call(1, "first", "x"))

    boundary = conclude(Cancellable, history.events)

    assert boundary == Boundary((), 2, "Q", "local_activity", 2)
