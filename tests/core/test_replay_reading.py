"""What recorded events say, and which of them no honest history holds: repeated, out of order, unreadable, foreign."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, Decision, ReplayTask, replay, task_of_history
from proctor.errors import ExternalPayloadUnsupported, HistoryError, NonDeterminismError, PayloadError

Yields = Generator[Any, Any, Any]
RESULT = codec.envelope(7)


@workflow.defn(name="reading")
class Reading:
    """Asks for one call of the kind its argument names; `ran` tells whether any code was executed."""

    ran = False

    def __init__(self) -> None:
        self.told: list[Any] = []

    @workflow.signal("tell")
    def tell(self, *told: Any) -> None:
        self.told += told

    @workflow.update("ask")
    def ask(self, *told: Any) -> None:
        self.told += told

    def run(self, ctx: Any, kind: str = "activity") -> Yields:
        type(self).ran = True
        try:
            if kind == "activity":
                got = yield ctx.schedule_activity("work", [])
            elif kind == "timer":
                got = yield ctx.sleep(5)
            elif kind == "child":
                got = yield ctx.start_child_workflow("child", parent_close_policy="terminate")
            elif kind == "wait":
                got = yield ctx.wait_condition(lambda: False, key="k")
            elif kind == "memo":
                got = yield ctx.upsert_memo({"a": 1})
            elif kind == "service":
                got = (yield ctx.call_nexus_service("e", "s", "o")).result
            elif kind == "acceptance":
                got = (yield ctx.start_nexus_operation("e", "s", "o")).result
            else:
                got = yield ctx.side_effect(lambda: 7)
        except workflow.ActivityFailed as exc:
            got = {name: value for name, value in vars(exc).items() if value is not None}
        return [got, *self.told]


def conclude(history: list[Any], kind: str = "activity") -> Decision:
    Reading.ran = False
    task = ReplayTask("workflow-1", "run-1", "reading", "avro", codec.envelope([kind]), history)
    return replay(workflow.definition_of(Reading), task)


def result(history: list[Any], kind: str = "activity") -> Any:
    decision = conclude(history, kind)
    assert isinstance(decision, Commands)
    (command,) = decision.commands
    return codec.decode_value(command["result"], None)


def events(*entries: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Give events with a gapless envelope, so that nothing but their meaning can be at fault."""
    writer = HistoryWriter(started=False)
    for event_type, payload in entries:
        writer.add(event_type, **payload)
    return writer.events


SCHEDULED = ("ActivityScheduled", {"sequence": 1, "activity_type": "work"})
COMPLETED = ("ActivityCompleted", {"sequence": 1, "activity_type": "work", "result": RESULT, "payload_codec": "avro"})
MEMO = ("MemoUpserted", {"sequence": 1, "entries": codec.envelope({"a": 1}), "merged": codec.envelope({"a": 1})})
OPENED = ("ConditionWaitOpened", {"sequence": 1, "condition_wait_id": "w", "condition_key": "k"})
SATISFIED = ("ConditionWaitSatisfied", {"sequence": 1, "condition_wait_id": "w", "condition_key": "k"})
TIMER = {"sequence": 1, "timer_id": "t", "delay_seconds": 5}
CHILD = {"sequence": 1, "child_workflow_type": "child", "parent_close_policy": "terminate"}
ASKED = {"sequence": 1, "endpoint_name": "e", "service_name": "s", "operation_name": "o"}
ANSWERED = ("ServiceCallCompleted", ASKED | {"response_payload": RESULT})
STARTED = ("WorkflowStarted", {"workflow_type": "reading"})


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("effect", [("SideEffectRecorded", {"sequence": 1, "result": codec.encode(7)})] * 2),
        ("effect", [("SearchAttributesUpserted", {"sequence": 1, "attributes": {"a": "b"}})] * 2),
        ("wait", [OPENED, OPENED]),
        ("wait", [SATISFIED, OPENED]),
        ("timer", [("TimerFired", TIMER), ("TimerScheduled", TIMER)]),
        ("child", [("ChildRunCompleted", CHILD | {"result": RESULT}), ("ChildWorkflowScheduled", CHILD)]),
        ("service", [ANSWERED, ANSWERED]),
        ("service", [ANSWERED, ("ServiceCallStarted", ASKED)]),
        ("activity", [SCHEDULED, STARTED]),
        ("wait", [OPENED, STARTED]),
        ("activity", [("ActivityScheduled", SCHEDULED[1] | {"cancellation_scope_id": "scope-1"})]),
        ("activity", [("ActivityScheduled", SCHEDULED[1] | {"activity": {"cancellation_scope_id": "scope-1"}})]),
    ],
)
def test_a_repeated_or_misplaced_event_is_refused_at_its_place(kind: str, entries: list[Any]) -> None:
    with pytest.raises(HistoryError) as caught:
        conclude(events(*entries), kind)

    assert caught.value.position == len(entries) - 1
    assert not Reading.ran


def test_a_repeated_memo_upsert_is_nondeterminism_as_the_reference_says() -> None:
    with pytest.raises(NonDeterminismError) as caught:
        conclude(events(MEMO, MEMO), "memo")

    assert caught.value.sequence == 1


def test_the_root_scope_and_an_answer_behind_an_acceptance_are_no_fault() -> None:
    scheduled = ("ActivityScheduled", SCHEDULED[1] | {"cancellation_scope_id": "root"})
    accepted = ("ServiceCallStarted", ASKED | {"wait_for": "accepted", "response_payload": RESULT})

    assert result(events(scheduled, COMPLETED)) == [7]
    assert result(events(accepted, ANSWERED), "acceptance") == [7]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("activity", SCHEDULED[1], {"cancellation_policy": "wait_cancellation_completed"}),
        ("activity", SCHEDULED[1] | {"cancellation_policy": None}, {}),
        ("child", CHILD, {"cancellation_policy": "try_cancel"}),
    ],
)
def test_a_policy_that_comes_up_later_contradicts_the_default_before_it(
    kind: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    opening, end = {
        "activity": ("ActivityScheduled", "ActivityCompleted"),
        "child": ("ChildWorkflowScheduled", "ChildRunCompleted"),
    }[kind]

    with pytest.raises(NonDeterminismError, match="policy_history") as caught:
        conclude(events((opening, first), (end, first | second | {"result": RESULT})), kind)

    assert caught.value.sequence == 1


BROKEN = [
    ({"result": {"codec": "json", "blob": "1"}}, "unsupported_payload_codec"),
    ({"result": "!!", "payload_codec": "avro"}, "invalid_payload_framing"),
    ({"result": RESULT, "payload_codec": None}, "unsupported_payload_codec"),
    ({"result": {"codec": "avro", "external_payload": {}}}, "kept outside|stored outside"),
]


@pytest.mark.parametrize(("payload", "message"), BROKEN)
def test_an_unreadable_result_anywhere_fails_the_task_before_any_code_runs(
    payload: dict[str, Any], message: str
) -> None:
    behind = ("ActivityCompleted", {"sequence": 9, "activity_type": "later"} | payload)

    with pytest.raises(PayloadError, match=message) as caught:
        conclude(events(SCHEDULED, COMPLETED, behind))

    assert "event 2" in str(caught.value)
    assert str(caught.value).startswith(caught.value.category)
    assert isinstance(caught.value, ExternalPayloadUnsupported) == ("external_payload" in str(payload))
    assert not Reading.ran


def test_an_unreadable_signal_keeps_the_kind_of_its_fault_and_names_its_place() -> None:
    outside = {"signal_name": "tell", "arguments": {"codec": "avro", "external_payload": {}}}
    unnamed = {"signal_name": "tell", "arguments": RESULT, "payload_codec": None}

    with pytest.raises(ExternalPayloadUnsupported, match="signal 'tell', event 0"):
        conclude(events(("SignalReceived", outside)))
    with pytest.raises(PayloadError, match=r"unsupported_payload_codec: .*signal 'tell', event 0"):
        conclude(events(("SignalReceived", unnamed)))


def test_an_unreadable_message_of_a_stream_fails_the_task_and_is_not_lost() -> None:
    body = {
        "schema": "durable-workflow.v2.message-stream.message",
        "stream_name": "orders",
        "message_id": "m-1",
        "position": 1,
        "payload_envelope": {"codec": "avro", "blob": "!!"},
    }
    signal = {"signal_name": "__durable_workflow_message_stream", "arguments": codec.envelope([body])}

    with pytest.raises(PayloadError, match="invalid_payload_framing: message 'm-1' of stream 'orders'"):
        conclude(events(("SignalReceived", signal), SCHEDULED, COMPLETED))


def test_an_update_has_its_arguments_in_one_place_and_a_signal_in_three() -> None:
    value = {"value": codec.envelope(["v"]), "arguments": codec.envelope(["a"])}
    entries = [("UpdateApplied", {"update_name": "ask"} | value), ("SignalReceived", {"signal_name": "tell"} | value)]

    assert result(events(*entries, SCHEDULED, COMPLETED)) == [7, "a", "v"]


@pytest.mark.parametrize(("arguments", "told"), [(None, []), (codec.envelope(None), [None]), (codec.envelope(5), [5])])
def test_a_null_that_was_sent_with_a_signal_is_an_argument_and_nothing_is_none(arguments: object, told: Any) -> None:
    signal = ("SignalReceived", {"signal_name": "tell", "arguments": arguments})

    assert result(events(signal, SCHEDULED, COMPLETED)) == [7, *told]


def test_a_number_may_be_spelled_in_digits_and_a_null_type_be_named_by_the_other_key() -> None:
    history = events(
        ("ActivityScheduled", SCHEDULED[1] | {"sequence": "1"}), ("ActivityCompleted", COMPLETED[1] | {"sequence": "1"})
    )
    for event in history:
        event["type"] = event.pop("event_type")
        event["event_type"] = None

    assert result(history) == [7]


def test_code_sees_of_a_failure_what_its_one_event_says_and_no_more() -> None:
    exception = {"type": "Sad", "message": "no", "trace": "t", "diagnostics": "x", "runtime_diagnostics": {"a": 1}}
    failed = ("ActivityFailed", {"workflow_sequence": 1, "exception": exception})

    (seen,) = result(events(SCHEDULED, failed))

    assert seen == {
        "exception_type": "Sad",
        "non_retryable": False,
        "exception_payload": {"type": "Sad", "message": "no", "runtime_diagnostics": {"a": 1}},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (codec.envelope(["timer"]), ["timer"]),
        (codec.encode(["timer"]), ["timer"]),
        (["timer"], ["timer"]),
        ({"a": 1}, [{"a": 1}]),
        (5, [5]),
        (None, []),
    ],
)
def test_the_recorded_start_input_is_a_payload_or_plain_json(given: object, expected: list[Any]) -> None:
    task = task_of_history(events(("WorkflowStarted", {"input": given})), workflow_type="reading")

    assert codec.decode_arguments(task.arguments, "avro") == expected


def test_a_start_event_that_names_no_codec_at_all_is_refused_offline() -> None:
    with pytest.raises(PayloadError, match="unsupported_payload_codec"):
        task_of_history(events(("WorkflowStarted", {"payload_codec": None})), workflow_type="reading")


_SIGNAL_WAIT: list[tuple[str, dict[str, Any]]] = [
    ("SignalWaitOpened", {"sequence": 1, "signal_name": "go", "signal_wait_id": "w", "timeout_seconds": 5}),
    (
        "TimerScheduled",
        {
            "sequence": 1,
            "timer_id": "t",
            "delay_seconds": 5,
            "timer_kind": "signal_timeout",
            "signal_name": "go",
            "signal_wait_id": "w",
        },
    ),
    ("SignalReceived", {"signal_name": "go", "signal_wait_id": "w", "signal_id": "s"}),
    ("SignalApplied", {"sequence": 1, "signal_name": "go", "signal_wait_id": "w", "signal_id": "s", "value": RESULT}),
]


@pytest.mark.parametrize("length", range(1, len(_SIGNAL_WAIT) + 1))
@pytest.mark.parametrize("kind", ["activity", "timer", "child", "wait", "memo", "nothing"])
def test_a_wait_for_a_signal_by_name_is_recorded_by_no_code_of_ours(kind: str, length: int) -> None:
    with pytest.raises(NonDeterminismError, match="signal wait 'go' of a worker in another language") as raised:
        conclude(events(*_SIGNAL_WAIT[:length]), kind)
    assert raised.value.sequence == 1


def test_that_a_signal_was_applied_without_a_wait_of_its_own_says_nothing() -> None:
    applied = ("SignalApplied", {"signal_name": "tell", "signal_id": "s", "value": RESULT})
    completed = ("ActivityCompleted", {"sequence": 1, "activity_type": "work", "result": RESULT})
    assert result(events(("SignalReceived", {"signal_name": "tell"}), applied, completed)) == [7]
