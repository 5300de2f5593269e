"""Code against history: markers that are found again, and every contradiction with its place."""

from __future__ import annotations

from typing import Any

import pytest

from core.concluding import conclude, refused, result
from core.histories import HistoryWriter
from core.small_workflows import Drawing, OneCall, TwoCalls
from proctor import workflow
from proctor.core.replay import Commands, LocalCall
from proctor.errors import WorkflowCodeBroken

Context = workflow.WorkflowContext


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
