"""Replay of sequential workflows: what is concluded from code and history, in every style of writing it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from core.concluding import conclude
from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, Decision, Interrupted, LocalCall
from proctor.errors import EntryArgumentsMismatch, NonDeterminismError, PayloadError

Yields = Generator[Any, Any, Any]


def waits_for(decision: Decision) -> LocalCall:
    assert isinstance(decision, LocalCall)
    return decision


def commands(decision: Decision) -> list[dict[str, Any]]:
    assert isinstance(decision, Commands)
    return list(decision.commands)


def result(decision: Decision) -> Any:
    (command,) = commands(decision)
    assert command["type"] == "complete_workflow"
    return codec.decode_value(command["result"], None)


def failure(decision: Decision) -> dict[str, Any]:
    (command,) = commands(decision)
    assert command["type"] == "fail_workflow"
    return command


@workflow.defn(name="awaiting")
class Awaiting:
    async def run(self, ctx: workflow.WorkflowContext, name: str) -> list[Any]:
        first = await ctx.local_activity("first", [name])
        return [first, await self._second(ctx, first)]

    async def _second(self, ctx: workflow.WorkflowContext, value: Any) -> Any:
        return await ctx.local_activity("second", [value])


@workflow.defn(name="yielding")
class Yielding:
    def run(self, ctx: workflow.WorkflowContext, name: str) -> Yields:
        first = yield ctx.local_activity("first", [name])
        second = yield from self._second(ctx, first)
        return [first, second]

    def _second(self, ctx: workflow.WorkflowContext, value: Any) -> Yields:
        return (yield ctx.local_activity("second", [value]))


@workflow.defn(name="plain")
class Plain:
    def run(self, ctx: workflow.WorkflowContext, *numbers: int) -> int:
        return sum(numbers)


BOTH = pytest.mark.parametrize("cls", [Awaiting, Yielding])


@BOTH
def test_a_new_run_asks_for_its_first_local_activity(cls: type[Any]) -> None:
    call = waits_for(conclude(cls, HistoryWriter().events, "Ada"))

    assert (call.sequence, call.activity_type, call.arguments) == (1, "first", ["Ada"])
    assert (call.prefix, call.prefix_start) == ((), 1)
    assert (call.interrupted, call.last_heartbeat, call.attempts_started) == (None, None, 0)


@BOTH
def test_each_recorded_outcome_leads_to_the_next_call_and_at_last_to_the_result(cls: type[Any]) -> None:
    after_one = HistoryWriter().call(1, "first", {"n": 1})
    call = waits_for(conclude(cls, after_one.events, "Ada"))
    assert (call.sequence, call.activity_type, call.arguments) == (2, "second", [{"n": 1}])

    after_two = after_one.call(2, "second", "done")
    assert result(conclude(cls, after_two.events, "Ada")) == [{"n": 1}, "done"]


def test_a_plain_function_completes_at_once() -> None:
    assert result(conclude(Plain, HistoryWriter().events, 1, 2, 3)) == 6


def test_a_completed_run_replays_to_the_command_that_completed_it() -> None:
    history = (
        HistoryWriter().call(1, "first", 1).call(2, "second", 2).add("WorkflowCompleted", output=codec.encode([1, 2]))
    )

    assert result(conclude(Awaiting, history.events, "Ada")) == [1, 2]


@workflow.defn(name="everything")
class WithOptions:
    async def run(self, ctx: workflow.WorkflowContext) -> Any:
        return await ctx.local_activity(
            " crunch ",
            ["a", {"b": [1, 2.5, None]}],
            retry_policy=workflow.RetryPolicy(max_attempts=3, backoff_seconds=[1, 2]),
            start_to_close_timeout=30,
            schedule_to_close_timeout=120,
            heartbeat_timeout=5,
            cancellation_policy=workflow.CancellationPolicy.WAIT_CANCELLATION_COMPLETED,
        )


def test_the_descriptor_holds_exactly_what_prepare_takes() -> None:
    call = waits_for(conclude(WithOptions, HistoryWriter().events))

    assert call.descriptor == {
        "type": "record_local_activity",
        "activity_type": "crunch",
        "execution_mode": "local",
        "arguments": codec.envelope(["a", {"b": [1, 2.5, None]}]),
        "payload_codec": "avro",
        "retry_policy": {"max_attempts": 3, "backoff_seconds": [1, 2], "non_retryable_error_types": []},
        "start_to_close_timeout": 30,
        "schedule_to_close_timeout": 120,
        "heartbeat_timeout": 5,
        "cancellation_policy": "wait_cancellation_completed",
    }
    assert type(call.descriptor["cancellation_policy"]) is str
    assert (call.start_to_close_timeout, call.schedule_to_close_timeout, call.heartbeat_timeout) == (30, 120, 5)


def test_options_that_were_not_given_have_no_key_in_the_descriptor() -> None:
    call = waits_for(conclude(Awaiting, HistoryWriter().events, "Ada"))

    assert set(call.descriptor) == {"type", "activity_type", "execution_mode", "arguments", "payload_codec"}


def test_the_descriptor_has_the_same_bytes_in_every_replay_of_a_retried_call() -> None:
    policy = {"cancellation_policy": "wait_cancellation_completed"}
    history = HistoryWriter().scheduled(1, "crunch", **policy).started(1, "crunch").rescheduled(1, "crunch")

    first = waits_for(conclude(WithOptions, HistoryWriter().events))
    again = waits_for(conclude(WithOptions, history.events))

    assert repr(again.descriptor) == repr(first.descriptor)
    assert again.sequence == first.sequence


def test_a_started_attempt_without_an_end_is_interrupted() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first", attempt=1)

    call = waits_for(conclude(Awaiting, history.events, "Ada"))

    assert call.interrupted == Interrupted("execution-1", "attempt-1-1")
    assert call.attempts_started == 1


def test_a_rescheduled_attempt_is_not_interrupted_and_keeps_its_last_heartbeat() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first")
    history.heartbeat(1, "first", {"offset": 1}).heartbeat(1, "first", {"offset": 2}).rescheduled(1, "first")

    call = waits_for(conclude(Awaiting, history.events, "Ada"))

    assert (call.interrupted, call.last_heartbeat, call.attempts_started) == (None, {"offset": 2}, 1)


def test_the_attempt_after_a_retry_can_be_interrupted_too() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first").rescheduled(1, "first", "cold_replay")
    history.started(1, "first", attempt=2)

    call = waits_for(conclude(Awaiting, history.events, "Ada"))

    assert call.interrupted == Interrupted("execution-1", "attempt-1-2")
    assert call.attempts_started == 2


def test_attempts_are_counted_by_their_number_where_it_is_higher() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first", attempt=5)

    assert waits_for(conclude(Awaiting, history.events, "Ada")).attempts_started == 5


def test_a_scheduled_call_that_never_started_is_prepared_again() -> None:
    call = waits_for(conclude(Awaiting, HistoryWriter().scheduled(1, "first").events, "Ada"))

    assert (call.sequence, call.interrupted, call.attempts_started) == (1, None, 0)


@workflow.defn(name="catching")
class Catching:
    async def run(self, ctx: workflow.WorkflowContext) -> dict[str, Any]:
        try:
            await ctx.local_activity("risky")
        except workflow.ActivityFailed as exc:
            cleaned = await ctx.local_activity("clean", [exc.exception_type, exc.failure_category])
            return {"message": str(exc), "cleaned": cleaned, "sequence": exc.step_sequence}
        return {}


def test_code_that_catches_a_failed_activity_goes_on_with_the_next_call() -> None:
    history = HistoryWriter().scheduled(1, "risky").started(1, "risky")
    history.failed(1, "risky", message="no disk", exception_type="OSError", failure_category="activity")

    call = waits_for(conclude(Catching, history.events))
    assert (call.sequence, call.activity_type, call.arguments) == (2, "clean", ["OSError", "activity"])

    history.call(2, "clean", True)
    assert result(conclude(Catching, history.events)) == {"message": "no disk", "cleaned": True, "sequence": 1}


@pytest.mark.parametrize("category", [None, "timeout"])
def test_a_timed_out_activity_fails_with_the_category_that_history_has(category: str | None) -> None:
    history = HistoryWriter().scheduled(1, "risky").started(1, "risky")
    history.timed_out(1, "risky", timeout_kind="start_to_close", failure_category=category)

    assert waits_for(conclude(Catching, history.events)).arguments == [None, category]


def test_a_cancelled_activity_fails_without_a_category_unless_history_has_one() -> None:
    history = HistoryWriter().add("ActivityCancelled", sequence=1, activity_type="risky", local_activity=True)

    assert waits_for(conclude(Catching, history.events)).arguments == [None, None]


@workflow.defn(name="inspecting")
class Inspecting:
    async def run(self, ctx: workflow.WorkflowContext) -> Any:
        try:
            await ctx.local_activity("risky")
        except workflow.ActivityFailed as exc:
            return {"text": str(exc)} | vars(exc)


def test_a_caught_failure_has_every_official_attribute_of_the_recorded_one() -> None:
    exception = {"type": "ValueError", "class": "b.ValueError", "message": "x", "details": {"a": 1}, "trace": ["no"]}
    recorded = {
        "activity_attempt_id": "A",
        "failure_id": "F",
        "failure_category": "application",
        "exception_type": "ValueError",
        "exception_class": "b.ValueError",
        "non_retryable": True,
        "code": 3,
    }
    history = HistoryWriter().failed(1, "risky", exception=exception, **recorded)

    assert result(conclude(Inspecting, history.events)) == recorded | {
        "text": "x",
        "activity_type": "risky",
        "step_sequence": 1,
        "activity_execution_id": "execution-1",
        "exception_payload": {"type": "ValueError", "message": "x", "details": {"a": 1}},
        "activity": None,
    }


def test_an_uncaught_activity_failure_fails_the_run_in_the_name_of_the_activity() -> None:
    history = HistoryWriter().failed(
        1, "first", message="boom", exception_type="ValueError", exception_class="b.ValueError", activity_attempt_id="A"
    )

    assert failure(conclude(Awaiting, history.events, "Ada")) == {
        "type": "fail_workflow",
        "message": "boom",
        "exception_type": "ValueError",
        "exception_class": "b.ValueError",
        "exception": {
            "type": "ValueError",
            "class": "b.ValueError",
            "message": "boom",
            "activity_type": "first",
            "activity_attempt_id": "A",
        },
        "failed_step_sequence": 1,
        "failed_activity_execution_id": "execution-1",
    }


@workflow.defn(name="chaining")
class Chaining:
    async def run(self, ctx: workflow.WorkflowContext, *, linked: bool = True) -> None:
        try:
            await ctx.local_activity("risky")
        except workflow.ActivityFailed as exc:
            raise RuntimeError("outer") from exc


def test_an_exception_chained_from_an_activity_failure_names_the_activity_but_no_failed_step() -> None:
    command = failure(conclude(Chaining, HistoryWriter().timed_out(1, "risky", message="late").events))

    assert (command["message"], command["exception_type"]) == ("outer", "ActivityFailed")
    assert command["exception_class"] == "proctor.workflow.ActivityFailed"
    assert "failed_step_sequence" not in command


class _Blank(Exception):
    def __str__(self) -> str:
        return "  "


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Final(Exception):
    non_retryable = True


@workflow.defn(name="raising")
class Raising:
    exception: BaseException = ValueError("wrong order id")

    async def run(self, ctx: workflow.WorkflowContext) -> None:
        raise self.exception


def raising(exception: BaseException) -> type[Any]:
    return workflow.defn(name="raising")(type("Raising", (Raising,), {"exception": exception}))


def test_an_uncaught_exception_fails_the_run_with_its_class_and_text() -> None:
    assert failure(conclude(Raising, HistoryWriter().events)) == {
        "type": "fail_workflow",
        "message": "wrong order id",
        "exception_type": "ValueError",
        "exception_class": "builtins.ValueError",
    }


@pytest.mark.parametrize("exception", [_Blank(), _Mute(), KeyError()])
def test_a_failure_without_text_is_reported_under_its_class_name(exception: Exception) -> None:
    assert failure(conclude(raising(exception), HistoryWriter().events))["message"] == type(exception).__name__


def test_only_an_exception_that_says_so_fails_the_run_as_non_retryable() -> None:
    assert failure(conclude(raising(_Final("x")), HistoryWriter().events))["non_retryable"] is True
    assert "non_retryable" not in failure(conclude(raising(ValueError("x")), HistoryWriter().events))


def test_exceptions_that_cause_each_other_are_reported_and_do_not_hang() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first

    assert failure(conclude(raising(first), HistoryWriter().events))["exception_type"] == "ValueError"


def test_a_failure_text_is_valid_unicode_and_bounded() -> None:
    message = failure(conclude(raising(ValueError("\ud800" + "ä" * 100_000)), HistoryWriter().events))["message"]

    assert message.startswith("\\ud800ää")
    assert message.endswith("[truncated by the worker]")
    assert len(message.encode()) <= 62 * 1024


def test_workflow_cancelled_fails_the_run_under_that_name() -> None:
    command = failure(conclude(raising(workflow.WorkflowCancelled()), HistoryWriter().events))

    told = (command["exception_type"], command["message"])
    assert told == ("WorkflowCancelled", "workflow cancellation was requested")


@pytest.mark.parametrize("arguments", [[], ["Ada", "Lovelace"]])
def test_arguments_that_run_does_not_take_fail_the_task_and_not_the_run(arguments: list[str]) -> None:
    with pytest.raises(EntryArgumentsMismatch) as refused:
        conclude(Awaiting, HistoryWriter().events, *arguments)

    assert refused.value.reason == "workflow_entry_arguments_mismatch"
    assert str(len(arguments)) in str(refused.value)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (None, 0),
        (codec.envelope([]), 0),
        (codec.envelope([4, 5]), 9),
        (codec.envelope(7), 7),
        (codec.encode([1, 2]), 3),
    ],
)
def test_the_start_input_may_be_missing_an_envelope_or_a_bare_blob(field: object, expected: int) -> None:
    assert result(conclude(Plain, HistoryWriter().events, arguments=field)) == expected


@pytest.mark.parametrize("named", [None, "", "AVRO", "json"])
def test_a_task_without_the_avro_codec_is_not_executed(named: str | None) -> None:
    with pytest.raises(PayloadError) as refused:
        conclude(Plain, HistoryWriter().events, payload_codec=named, arguments=None)

    assert refused.value.category == "unsupported_payload_codec"


def test_an_event_that_names_another_codec_is_refused_before_the_code_runs() -> None:
    history = HistoryWriter(started=False).add("WorkflowStarted", payload_codec="json")

    with pytest.raises(PayloadError, match="unsupported_payload_codec"):
        conclude(raising(AssertionError("ran")), history.events)


def test_an_unreadable_recorded_result_fails_the_task() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first")
    history.add("ActivityCompleted", sequence=1, activity_type="first", local_activity=True, result="!!!!")

    with pytest.raises(PayloadError, match="invalid_payload_framing"):
        conclude(Awaiting, history.events, "Ada")


@workflow.defn(name="returning")
class Returning:
    value: object = None

    def run(self, ctx: workflow.WorkflowContext) -> object:
        return self.value


@pytest.mark.parametrize("value", [{1, 2}, "\ud800", [object()], (1, 2)])
def test_a_result_without_a_payload_form_fails_the_task(value: object) -> None:
    cls = workflow.defn(name="returning")(type("Returning", (Returning,), {"value": value}))

    with pytest.raises(PayloadError):
        conclude(cls, HistoryWriter().events)


@workflow.defn(name="sending")
class Sending:
    async def run(self, ctx: workflow.WorkflowContext) -> None:
        await ctx.local_activity("crunch", [object()])


def test_arguments_without_a_payload_form_fail_the_task() -> None:
    with pytest.raises(PayloadError, match="unsupported_value_type"):
        conclude(Sending, HistoryWriter().events)


@pytest.mark.parametrize(
    "named", [{"activity_name": "first"}, {"activity": {"type": "first"}}, {"activity": {"activity_name": "first"}}, {}]
)
def test_bare_events_without_numbers_are_matched_by_their_order(named: dict[str, Any]) -> None:
    history: list[dict[str, Any]] = []
    for result_field in ({"result": codec.encode(1)}, {"output": codec.envelope(2)}):
        for event_type in ("ActivityScheduled", "ActivityCompleted"):
            payload = {"local_activity": True} | (result_field if event_type == "ActivityCompleted" else {})
            history.append({"type": event_type, "payload": payload})
    history[0]["payload"] |= named

    assert result(conclude(Awaiting, history, "Ada")) == [1, 2]


def test_a_name_found_anywhere_in_bare_events_is_compared() -> None:
    payload = {"local_activity": True, "activity": {"name": "other"}, "result": codec.encode(1)}

    with pytest.raises(NonDeterminismError, match="'other'"):
        conclude(Awaiting, [{"event_type": "ActivityCompleted", "payload": payload}], "Ada")


def test_a_heartbeat_without_details_keeps_the_last_details() -> None:
    history = HistoryWriter().scheduled(1, "first").started(1, "first").heartbeat(1, "first", {"offset": 1})
    history.add("ActivityHeartbeatRecorded", sequence=1, progress={})

    assert waits_for(conclude(Awaiting, history.events, "Ada")).last_heartbeat == {"offset": 1}


def test_a_result_whose_codec_is_recorded_as_null_is_refused() -> None:
    history = HistoryWriter().add(
        "ActivityCompleted",
        sequence=1,
        activity_type="first",
        local_activity=True,
        result=codec.encode(1),
        payload_codec=None,
    )

    with pytest.raises(PayloadError, match="unsupported_payload_codec"):
        conclude(Awaiting, history.events, "Ada")
