"""Code against history: markers and side effects that are found again, and every contradiction with its place."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Boundary, Commands, Decision, LocalCall, ReplayTask, replay
from proctor.errors import NonDeterminismError, PayloadError, WorkflowCodeBroken

Context = workflow.WorkflowContext


def conclude(cls: type[Any], history: list[dict[str, Any]], *arguments: Any, prepared: bool = False) -> Decision:
    definition = workflow.definition_of(cls)
    task = ReplayTask(
        "workflow-1", "run-1", definition.name, "avro", codec.envelope(list(arguments)), history, prepared=prepared
    )
    return replay(definition, task)


def result(decision: Decision) -> Any:
    assert isinstance(decision, Commands)
    assert decision.commands[-1]["type"] == "complete_workflow"
    return codec.decode_value(decision.commands[-1]["result"], None)


def refused(cls: type[Any], history: list[dict[str, Any]], *arguments: Any, **options: Any) -> NonDeterminismError:
    with pytest.raises(NonDeterminismError) as caught:
        conclude(cls, history, *arguments, **options)
    assert caught.value.expected
    assert caught.value.found
    return caught.value


@workflow.defn(name="one-call")
class OneCall:
    async def run(self, ctx: Context) -> Any:
        return await ctx.local_activity("first")


@workflow.defn(name="drawing")
class Drawing:
    async def run(self, ctx: Context, drawn: int) -> list[Any]:
        value = await ctx.side_effect(lambda: drawn)
        again = await ctx.side_effect(lambda: [drawn])
        return [value, again, await ctx.local_activity("first", [value])]


def test_unrecorded_side_effects_become_the_prefix_of_the_next_local_activity() -> None:
    call = conclude(Drawing, HistoryWriter().events, 7)

    assert isinstance(call, LocalCall)
    assert call.prefix == (
        {"type": "record_side_effect", "result": codec.encode(7)},
        {"type": "record_side_effect", "result": codec.encode([7])},
    )
    assert (call.prefix_start, call.sequence) == (1, 3)


def test_recorded_side_effects_are_not_run_again_and_leave_no_prefix() -> None:
    history = HistoryWriter().side_effect(1, 99).side_effect(2, [98])

    call = conclude(Drawing, history.events, 7)
    assert isinstance(call, LocalCall)
    assert (call.prefix, call.prefix_start, call.sequence) == ((), 3, 3)
    assert call.arguments == [99]

    assert result(conclude(Drawing, history.call(3, "first", "x").events, 7)) == [99, [98], "x"]


def test_a_partly_recorded_prefix_continues_at_its_next_sequence() -> None:
    call = conclude(Drawing, HistoryWriter().side_effect(1, 99).events, 7)

    assert isinstance(call, LocalCall)
    assert (len(call.prefix), call.prefix_start, call.sequence) == (1, 2, 3)


@workflow.defn(name="last-effect")
class LastEffect:
    async def run(self, ctx: Context) -> Any:
        first = await ctx.local_activity("first")
        return [first, await ctx.side_effect(lambda: "drawn")]


def test_commands_after_the_last_local_activity_precede_the_completion() -> None:
    decision = conclude(LastEffect, HistoryWriter().call(1, "first", 1).events)

    assert isinstance(decision, Commands)
    assert [command["type"] for command in decision.commands] == ["record_side_effect", "complete_workflow"]
    assert result(decision) == [1, "drawn"]


@workflow.defn(name="failing-effect")
class FailingEffect:
    async def run(self, ctx: Context) -> str:
        try:
            await ctx.side_effect(lambda: 1 // 0)
        except ZeroDivisionError:
            return "caught"
        return "?"


def test_an_exception_of_a_side_effect_is_raised_at_its_await_and_not_recorded() -> None:
    decision = conclude(FailingEffect, HistoryWriter().events)

    assert isinstance(decision, Commands)
    assert len(decision.commands) == 1
    assert result(decision) == "caught"


async def _coroutine() -> int:
    return 1


class _Level(enum.IntEnum):
    HIGH = 3


@workflow.defn(name="enum-effect")
class EnumEffect:
    async def run(self, ctx: Context) -> str:
        return type(await ctx.side_effect(lambda: _Level.HIGH)).__name__


def test_a_fresh_side_effect_gives_the_value_as_every_later_replay_will_see_it() -> None:
    assert result(conclude(EnumEffect, HistoryWriter().events)) == "int"
    assert result(conclude(EnumEffect, HistoryWriter().side_effect(1, 3).events)) == "int"


@workflow.defn(name="async-effect")
class AsyncEffect:
    async def run(self, ctx: Context) -> Any:
        return await ctx.side_effect(_coroutine)


def test_an_async_side_effect_fails_the_run_and_is_not_left_unawaited() -> None:
    decision = conclude(AsyncEffect, HistoryWriter().events)

    assert isinstance(decision, Commands)
    assert decision.commands[0]["exception_type"] == "TypeError"


@workflow.defn(name="set-effect")
class SetEffect:
    async def run(self, ctx: Context) -> Any:
        return await ctx.side_effect(lambda: {1, 2})


def test_a_side_effect_without_a_payload_form_fails_the_task() -> None:
    with pytest.raises(PayloadError, match="unsupported_value_type"):
        conclude(SetEffect, HistoryWriter().events)


@workflow.defn(name="versioned")
class Versioned:
    async def run(self, ctx: Context) -> list[Any]:
        patched = await ctx.patched("fix")
        version = await ctx.get_version("shape", -1, 3)
        await ctx.deprecate_patch("fix")
        return [patched, version, await ctx.local_activity("first")]


def test_new_code_records_a_marker_per_change_and_goes_the_new_way() -> None:
    call = conclude(Versioned, HistoryWriter().events)

    assert isinstance(call, LocalCall)
    assert call.prefix == (
        {"type": "record_version_marker", "change_id": "fix", "version": 1, "min_supported": -1, "max_supported": 1},
        {"type": "record_version_marker", "change_id": "shape", "version": 3, "min_supported": -1, "max_supported": 3},
    )
    assert call.sequence == 3


def test_recorded_versions_are_used_again() -> None:
    history = HistoryWriter().marker(1, "fix", 1).marker(2, "shape", 2, high=2).call(3, "first", "x")

    assert result(conclude(Versioned, history.events)) == [True, 2, "x"]


def test_a_run_that_passed_before_the_change_goes_the_old_way_without_commands() -> None:
    assert result(conclude(Versioned, HistoryWriter().call(1, "first", "x").events)) == [False, -1, "x"]


def test_a_closed_history_never_gets_a_new_marker() -> None:
    @workflow.defn(name="only-patched")
    class OnlyPatched:
        async def run(self, ctx: Context) -> bool:
            return await ctx.patched("fix")

    decision = conclude(OnlyPatched, HistoryWriter().add("WorkflowCompleted").events)

    assert isinstance(decision, Commands)
    assert len(decision.commands) == 1
    assert result(decision) is False


@pytest.mark.parametrize(
    ("marker", "found"),
    [
        ({"change_id": "other", "version": 1, "min_supported": -1, "max_supported": 1}, "other"),
        ({"change_id": "fix", "version": 7, "min_supported": -1, "max_supported": 1}, "outside"),
        ({"change_id": "fix", "version": 2, "min_supported": -1, "max_supported": 2}, "version 2"),
        ({"change_id": "fix", "version": True, "min_supported": -1, "max_supported": 1}, "malformed"),
        ({"change_id": "fix", "version": 1}, "malformed"),
        ({"change_id": None, "version": 1, "min_supported": -1, "max_supported": 1}, "malformed"),
    ],
)
def test_a_marker_that_does_not_fit_the_call_is_nondeterminism(marker: dict[str, Any], found: str) -> None:
    history = HistoryWriter().add("VersionMarkerRecorded", sequence=1, **marker)

    assert found in refused(Versioned, history.events).found


def test_a_repeated_marker_with_another_version_is_nondeterminism() -> None:
    history = HistoryWriter().marker(1, "fix", 1).marker(2, "fix", -1).call(3, "first", 1)

    @workflow.defn(name="patched-once")
    class PatchedOnce:
        async def run(self, ctx: Context) -> Any:
            await ctx.patched("fix")
            return await ctx.local_activity("first")

    assert refused(PatchedOnce, history.events).found == "version -1"


def test_another_activity_type_is_nondeterminism_at_its_sequence() -> None:
    error = refused(OneCall, HistoryWriter().call(1, "other", 1).events)

    assert error.sequence == 1
    assert error.expected == "local activity 'first'"
    assert error.found == "local activity 'other' (ActivityScheduled, ActivityStarted, ActivityCompleted)"
    assert all(part in str(error) for part in (error.expected, error.found, "sequence 1", "'one-call'"))


def test_a_pending_step_is_compared_as_an_answered_one() -> None:
    assert "'other'" in refused(OneCall, HistoryWriter().scheduled(1, "other").events).found


def test_a_recorded_remote_activity_is_not_a_local_activity() -> None:
    history = HistoryWriter().add("ActivityScheduled", sequence=1, activity_type="first")

    error = refused(OneCall, history.events)

    assert error.expected == "local activity 'first'"
    assert "remote activity cannot replay as a local activity" in error.found


@pytest.mark.parametrize(
    ("event_type", "shape"),
    [
        ("TimerScheduled", "timer"),
        ("ChildWorkflowScheduled", "child workflow"),
        ("SideEffectRecorded", "side effect"),
        ("VersionMarkerRecorded", "version marker"),
        ("SearchAttributesUpserted", "search attributes upsert"),
        ("ServiceCallStarted", "service operation"),
    ],
)
def test_a_step_of_another_shape_is_nondeterminism(event_type: str, shape: str) -> None:
    error = refused(OneCall, HistoryWriter().add(event_type, sequence=1).events)

    assert error.found == f"{shape} ({event_type})"


def test_a_recorded_local_activity_where_code_draws_a_side_effect_is_nondeterminism() -> None:
    error = refused(Drawing, HistoryWriter().call(1, "first", 1).events, 7)

    assert (error.expected, error.sequence) == ("side effect", 1)
    assert "local activity" in error.found


def test_steps_that_remain_when_the_code_completes_are_nondeterminism() -> None:
    error = refused(OneCall, HistoryWriter().call(1, "first", 1).call(2, "second", 1).events)

    assert (error.sequence, error.expected) == (2, "the end of the workflow")
    assert "'second'" in error.found


def test_code_that_fails_before_its_last_recorded_step_fails_the_run_as_with_the_official_sdk() -> None:
    history = HistoryWriter().failed(1, "first", message="boom", exception_type="OSError").call(2, "second", 1)

    decision = conclude(OneCall, history.events)

    assert isinstance(decision, Commands)
    assert decision.commands[0]["exception_type"] == "OSError"


def test_a_step_recorded_after_an_unanswered_call_is_nondeterminism() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first").side_effect(2, 1)

    assert "side effect" in refused(OneCall, history.events).found


@pytest.mark.parametrize(
    ("recorded", "authored"),
    [
        ({"cancellation_policy": "wait_cancellation_completed"}, None),
        ({"activity": {"cancellation_policy": "wait_cancellation_completed"}}, "try_cancel"),
        ({}, "wait_cancellation_completed"),
        ({"cancellation_policy": "try_cancel", "activity": {"cancellation_policy": "abandon"}}, None),
        ({"cancellation_policy": {"odd": 1}}, None),
    ],
)
def test_a_changed_or_conflicting_cancellation_policy_is_nondeterminism(
    recorded: dict[str, Any], authored: str | None
) -> None:
    @workflow.defn(name="policy")
    class Policy:
        async def run(self, ctx: Context) -> Any:
            return await ctx.local_activity("first", cancellation_policy=authored)

    error = refused(Policy, HistoryWriter().scheduled(1, "first", **recorded).completed(1, "first", 1).events)

    assert "cancellation_policy" in f"{error.expected} {error.found}"


def test_an_absent_policy_and_try_cancel_are_the_same() -> None:
    history = HistoryWriter().scheduled(1, "first", cancellation_policy="try_cancel").completed(1, "first", "ok")

    assert result(conclude(OneCall, history.events)) == "ok"


@workflow.defn(name="two-calls")
class TwoCalls:
    async def run(self, ctx: Context) -> list[Any]:
        return [await ctx.local_activity("first"), await ctx.local_activity("second")]


def test_gaps_in_the_recorded_sequence_are_accepted_without_prepared_mode() -> None:
    history = HistoryWriter(prepared=False).call(3, "first", 1)

    call = conclude(TwoCalls, history.events)
    assert isinstance(call, LocalCall)
    assert call.sequence == 4

    assert result(conclude(TwoCalls, history.call(8, "second", 2).events)) == [1, 2]


def test_a_prepared_history_must_have_every_authored_sequence() -> None:
    error = refused(TwoCalls, HistoryWriter().call(1, "first", 1).call(3, "second", 2).events)

    assert (error.sequence, error.found[-13:]) == (2, "at sequence 3")


def test_a_prepared_task_holds_any_history_to_the_authored_sequence() -> None:
    history = HistoryWriter(prepared=False).call(3, "first", 1)

    assert "at sequence 3" in refused(TwoCalls, history.events, prepared=True).found


def test_a_skipped_repeated_marker_counts_as_a_position_in_prepared_mode() -> None:
    @workflow.defn(name="patched-then-call")
    class PatchedThenCall:
        async def run(self, ctx: Context) -> Any:
            await ctx.patched("fix")
            return await ctx.local_activity("first")

    history = HistoryWriter().marker(1, "fix", 1).marker(2, "fix", 1).call(3, "first", "ok")

    assert result(conclude(PatchedThenCall, history.events)) == "ok"


@workflow.defn(name="greedy")
class Greedy:
    async def run(self, ctx: Context) -> None:
        while True:
            await ctx.side_effect(lambda: 1)


def test_endless_commands_without_waiting_fail_the_task_instead_of_hanging() -> None:
    with pytest.raises(WorkflowCodeBroken, match="more than 1000 commands"):
        conclude(Greedy, HistoryWriter().events)


@workflow.defn(name="thousand")
class Thousand:
    async def run(self, ctx: Context, before: int) -> None:
        for _ in range(before):
            await ctx.side_effect(lambda: 1)
        await ctx.gather([ctx.sleep(1) for _ in range(1000)])


def test_a_group_as_large_as_a_completion_may_be_is_started() -> None:
    decision = conclude(Thousand, HistoryWriter().events, 0)

    assert isinstance(decision, Commands)
    assert len(decision.commands) == 1000
    with pytest.raises(WorkflowCodeBroken, match="more than 1000 commands"):
        conclude(Thousand, HistoryWriter().events, 1)


@workflow.defn(name="timing")
class Timing:
    async def run(self, ctx: Context) -> str:
        try:
            return str(ctx.now())
        except Exception:  # noqa: BLE001  # the code hides the refusal, and must not get away with it
            return "hidden"


@pytest.mark.parametrize("timestamp", [None, "yesterday", "2026-01-02T03:04:05"])
def test_asking_for_the_time_without_a_usable_start_is_nondeterminism_even_when_caught(timestamp: str | None) -> None:
    history = HistoryWriter(started=False).add("WorkflowStarted", timestamp=timestamp)

    assert refused(Timing, history.events).sequence == 0
    assert refused(Timing, []).sequence == 0


def test_the_time_is_the_start_payloads_timestamp_before_the_events() -> None:
    own = HistoryWriter(started=False).add("WorkflowStarted", timestamp="2025-01-01T00:00:00Z")

    assert result(conclude(Timing, own.events)) == "2025-01-01 00:00:00+00:00"
    assert result(conclude(Timing, HistoryWriter().events)) == "2026-01-02 03:04:05.678900+00:00"


def test_the_time_of_a_control_plane_history_is_read_as_well() -> None:
    events = [{"event_type": "WorkflowStarted", "payload": {}, "timestamp": "2026-01-02T03:04:05Z"}]

    assert result(conclude(Timing, events)) == "2026-01-02 03:04:05+00:00"


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
