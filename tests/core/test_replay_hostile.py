"""Hostile histories and hostile workflow code: every outcome is typed, nothing hangs, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import HistoryWriter
from core.small_workflows import Steps
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Boundary, Commands, Decision, LocalCall, ReplayTask, Unworkable, replay
from proctor.errors import HistoryError, NonDeterminismError, PayloadError, WorkflowCodeBroken

Context = workflow.WorkflowContext
Yields = Generator[Any, Any, Any]


def conclude(cls: type[Any], history: Any) -> Decision:
    definition = workflow.definition_of(cls)
    return replay(definition, ReplayTask("workflow-1", "run-1", definition.name, "avro", None, history))


def failed_with(cls: type[Any], history: Any) -> dict[str, Any]:
    decision = conclude(cls, history)
    assert isinstance(decision, Commands)
    (command,) = decision.commands
    assert command["type"] == "fail_workflow"
    return command


def refused(history: Any) -> HistoryError:
    with pytest.raises(HistoryError) as caught:
        conclude(Steps, history)
    return caught.value


@pytest.mark.parametrize("event", [None, "x", [], {"payload": {}}, {"event_type": ""}, {"event_type": 5}])
def test_an_event_without_a_type_is_refused_with_its_position(event: object) -> None:
    assert refused([*HistoryWriter().events, event]).position == 2


@pytest.mark.parametrize("history", [None, {"events": []}, 5])
def test_what_is_no_list_is_no_history(history: object) -> None:
    assert refused(history).position is None


def test_a_history_cut_in_the_middle_or_at_its_head_is_refused() -> None:
    events = HistoryWriter().side_effect(1, 5).call(2, "first", 1).events

    assert "cut" in str(refused(events[1:]))
    assert refused(events[:3] + events[4:]).position == 3


def test_a_repeated_page_of_history_is_refused() -> None:
    events = HistoryWriter().side_effect(1, 5).call(2, "first", 1).events
    without_ids = [{key: value for key, value in event.items() if key != "id"} for event in events]

    assert "repeats the id" in str(refused(events + events))
    assert "repeated" in str(refused(without_ids + without_ids))


def test_events_out_of_order_are_refused() -> None:
    events = HistoryWriter().side_effect(1, 5).call(2, "first", 1).events
    events[3], events[4] = events[4], events[3]

    assert refused(events).position == 3


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "-1", "²", "9" * 30, [1], 10**400])
def test_a_sequence_that_is_no_positive_number_is_refused(value: object) -> None:
    assert refused([{"event_type": "SideEffectRecorded", "payload": {"sequence": value}}]).position == 0
    assert refused([{"event_type": "Other", "sequence": value}]).position == 0


def test_a_second_start_is_refused() -> None:
    assert "second time" in str(refused(HistoryWriter().add("WorkflowStarted").events))


def test_two_different_ends_of_one_activity_are_refused() -> None:
    history = HistoryWriter().side_effect(1, 5).call(2, "first", 1).failed(2, "first", message="x")

    assert "follows the end of sequence 2" in str(refused(history.events))


def test_an_attempt_after_the_end_of_its_activity_is_refused() -> None:
    history = HistoryWriter().side_effect(1, 5).call(2, "first", 1).started(2, "first", attempt=2)

    assert "follows the end" in str(refused(history.events))


def test_one_sequence_for_two_kinds_of_step_is_refused() -> None:
    assert "already" in str(refused(HistoryWriter().scheduled(1, "first").side_effect(1, 5).events))
    assert "also a side effect" in str(refused(HistoryWriter().side_effect(1, 5).scheduled(1, "first").events))


def test_an_exact_repetition_of_a_recorded_end_is_dropped() -> None:
    events = HistoryWriter().side_effect(1, 5).call(2, "first", 1).events
    for event in events:
        del event["id"], event["sequence"]

    call = conclude(Steps, [*events, events[-1]])

    assert isinstance(call, LocalCall)
    assert call.activity_type == "second"
    assert "already a side effect" in str(refused([*events[:3], events[2], *events[3:]]))


def test_an_interrupted_attempt_without_identity_is_refused() -> None:
    history = HistoryWriter().side_effect(1, 5)
    history.add("ActivityStarted", sequence=2, activity_type="first", execution_mode="local")

    assert "activity_attempt_id" in str(refused(history.events))


def test_cancellation_scopes_are_refused_and_not_ignored() -> None:
    assert "scopes" in str(refused(HistoryWriter().add("CancellationScopeOpened", sequence=1).events))


def test_a_malformed_or_repeated_delivery_is_refused() -> None:
    delivery = {"sequence": 1, "call_kind": "local_activity"}
    history = HistoryWriter().add(
        "CooperativeCancellationRequested", workflow_command_id="Q", cleanup_deadline_at="2026-01-02T03:14:05Z"
    )
    history.add("CooperativeCancellationDelivered", **delivery)

    assert "second time" in str(refused(history.add("CooperativeCancellationDelivered", **delivery).events))
    unrequested = HistoryWriter().add("CooperativeCancellationDelivered", **delivery)
    assert "nobody requested" in str(refused(unrequested.events))
    assert "without sequence" in str(refused(HistoryWriter().add("CooperativeCancellationDelivered").events))


def test_unknown_event_types_are_ignored() -> None:
    history = HistoryWriter().add("SignalReceived", signal_name="x").add("RepairRequested").side_effect(1, 5)

    assert isinstance(conclude(Steps, history.events), LocalCall)


TYPED = (HistoryError, NonDeterminismError, PayloadError)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def survives(history: list[Any]) -> str:
    """Replay and say how it ended; anything but a decision or a typed refusal is an error of the test."""
    try:
        decision = conclude(Steps, history)
    except TYPED as exc:
        return type(exc).__name__
    assert isinstance(decision, (Commands, LocalCall, Boundary, Unworkable))
    return "decision"


def valid_history(golden: Path) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = json.loads(golden.read_text())["history"]
    return history


GOLDEN = Path(__file__).parents[1] / "golden" / "prepared-retry-timeout-and-patch.json"


def test_the_history_that_is_mutated_below_is_valid() -> None:
    decision = conclude(Steps, valid_history(GOLDEN))

    assert isinstance(decision, Commands)
    assert decision.commands[0]["type"] == "complete_workflow"


def test_every_prefix_of_a_valid_history_gives_a_decision() -> None:
    history = valid_history(GOLDEN)

    for length in range(2, len(history) + 1):
        assert survives(history[:length]) == "decision"


@given(st.data())
def test_a_mutated_history_gives_a_decision_or_a_typed_refusal(data: st.DataObject) -> None:
    history = valid_history(GOLDEN)
    for _ in range(data.draw(st.integers(1, 4))):
        mutate(history, data)

    survives(history[: data.draw(st.integers(0, len(history)))])


def mutate(history: list[dict[str, Any]], data: st.DataObject) -> None:
    here = st.integers(0, len(history) - 1)
    event = history[data.draw(here)]
    target = data.draw(st.sampled_from([event, event.get("payload")]))
    match data.draw(st.sampled_from(["value", "remove", "new", "drop", "repeat", "swap", "rename", "unnumber"])):
        case "value" if isinstance(target, dict) and target:
            target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
        case "remove" if isinstance(target, dict) and target:
            del target[data.draw(st.sampled_from(sorted(target)))]
        case "new" if isinstance(target, dict):
            target[data.draw(st.sampled_from(sorted(FIELDS)))] = data.draw(JSON)
        case "drop" if len(history) > 1:
            history.remove(event)
        case "repeat":
            history.insert(data.draw(here), json.loads(json.dumps(event)))
        case "swap":
            first, second = data.draw(here), data.draw(here)
            history[first], history[second] = history[second], history[first]
        case "rename":
            event["event_type"] = data.draw(st.sampled_from(EVENT_TYPES))
        case "unnumber":
            for other in history:
                other.pop("sequence", None)
                other.pop("id", None)


FIELDS = {
    "sequence",
    "workflow_sequence",
    "payload_codec",
    "result",
    "timestamp",
    "cancellation_policy",
    "local_outcome",
}
FIELDS |= {"activity", "exception", "version", "call_kind", "sequence_span", "execution_mode", "type", "progress"}
EVENT_TYPES = [
    "WorkflowStarted",
    "WorkflowCompleted",
    "ActivityScheduled",
    "ActivityStarted",
    "ActivityRetryScheduled",
    "ActivityHeartbeatRecorded",
    "ActivityCompleted",
    "ActivityFailed",
    "ActivityTimedOut",
    "ActivityCancelled",
    "SideEffectRecorded",
    "VersionMarkerRecorded",
    "TimerScheduled",
    "CooperativeCancellationRequested",
    "CooperativeCancellationDelivered",
    "CancellationScopeOpened",
    "Unheard",
]


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("field", ["sequence", "payload_codec", "cancellation_policy", "activity_type", "result"])
def test_deeply_nested_fields_are_refused_or_ignored_without_recursion(field: str) -> None:
    history = HistoryWriter().side_effect(1, 5).call(2, "first", 1)
    history.events[-1]["payload"][field] = deep(100_000)

    assert survives(history.events) in {"decision", "HistoryError", "PayloadError", "NonDeterminismError"}


def test_two_deeply_nested_ends_are_compared_without_recursion() -> None:
    history = HistoryWriter().side_effect(1, 5)
    history.failed(2, "first", details=deep(50_000)).failed(2, "first", details=deep(50_000))

    assert survives(history.events) == "HistoryError"


@workflow.defn(name="foreign")
class Foreign:
    async def run(self, ctx: Context) -> None:
        await asyncio.sleep(0)


@workflow.defn(name="foreign-yield")
class ForeignYield:
    def run(self, ctx: Context) -> Yields:
        while True:  # never ends by itself, whatever it is answered
            yield 5


@pytest.mark.parametrize("cls", [Foreign, ForeignYield])
def test_awaiting_what_is_no_command_fails_the_run_with_a_type_error(cls: type[Any]) -> None:
    command = failed_with(cls, HistoryWriter().events)

    assert command["exception_type"] == "TypeError"
    assert command["message"].startswith("workflow yielded unsupported command")


@workflow.defn(name="forgetful")
class Forgetful:
    async def run(self, ctx: Context) -> str:
        ctx.local_activity("first")
        return "done"


def test_a_command_that_was_never_awaited_fails_the_run_and_names_it() -> None:
    command = failed_with(Forgetful, HistoryWriter().events)

    assert command["exception_type"] == "TypeError"
    assert "local activity 'first'" in command["message"]


@workflow.defn(name="truthy")
class Truthy:
    async def run(self, ctx: Context) -> str:
        return "new" if ctx.patched("fix") else "old"


def test_using_a_command_as_a_truth_value_fails_the_run() -> None:
    assert "await" in failed_with(Truthy, HistoryWriter().events)["message"]


@workflow.defn(name="leaving")
class Leaving:
    code: BaseException = SystemExit(3)

    async def run(self, ctx: Context) -> None:
        raise self.code


@pytest.mark.parametrize("code", [SystemExit(3), GeneratorExit(), asyncio.CancelledError(), MemoryError()])
def test_an_exception_that_must_not_decide_the_run_fails_the_task(code: BaseException) -> None:
    cls = workflow.defn(name="leaving")(type("Leaving", (Leaving,), {"code": code}))

    with pytest.raises(WorkflowCodeBroken) as broken:
        conclude(cls, HistoryWriter().events)

    assert broken.value.__cause__ is code


def test_a_keyboard_interrupt_is_the_user_and_passes_through() -> None:
    cls = workflow.defn(name="leaving")(type("Leaving", (Leaving,), {"code": KeyboardInterrupt()}))

    with pytest.raises(KeyboardInterrupt):
        conclude(cls, HistoryWriter().events)


@workflow.defn(name="exiting-effect")
class ExitingEffect:
    async def run(self, ctx: Context) -> None:
        await ctx.side_effect(lambda: sys.exit(1))


def test_a_side_effect_that_leaves_the_interpreter_fails_the_task() -> None:
    with pytest.raises(WorkflowCodeBroken, match="SystemExit"):
        conclude(ExitingEffect, HistoryWriter().events)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_a_class_that_cannot_be_made_fails_the_task(error: BaseException) -> None:
    @workflow.defn(name="unmade")
    class Unmade:
        def __init__(self) -> None:
            raise error

        def run(self, ctx: Context) -> None: ...

    with pytest.raises(WorkflowCodeBroken) as broken:
        conclude(Unmade, HistoryWriter().events)

    assert broken.value.__cause__ is error


@workflow.defn(name="cleaning")
class Cleaning:
    log: list[str] = []  # noqa: RUF012  # looked at by the test

    async def run(self, ctx: Context) -> None:
        try:
            await ctx.local_activity("first")
        finally:
            self.log.append("cleanup")
            await ctx.local_activity("release")
            self.log.append("unreachable while the first call is open")


def test_suspended_code_is_closed_and_commands_of_its_cleanup_are_dropped() -> None:
    Cleaning.log.clear()

    call = conclude(Cleaning, HistoryWriter().events)

    assert isinstance(call, LocalCall)
    assert call.activity_type == "first"
    assert Cleaning.log == ["cleanup"]
    gc.collect()  # a coroutine that is still open would report itself here


@workflow.defn(name="raising-cleanup")
class RaisingCleanup:
    def run(self, ctx: Context) -> Yields:
        try:
            yield ctx.local_activity("first")
        finally:
            raise SystemExit("cleanup")


def test_an_exception_of_the_cleanup_does_not_change_the_decision() -> None:
    assert isinstance(conclude(RaisingCleanup, HistoryWriter().events), LocalCall)


@workflow.defn(name="unstoppable")
class Unstoppable:
    rounds = 0
    limit = 1_000

    def run(self, ctx: Context) -> Yields:
        while type(self).rounds < self.limit:
            try:
                yield ctx.local_activity("first")
            except BaseException:  # noqa: BLE001  # what no workflow may do
                type(self).rounds += 1


def test_code_that_swallows_its_own_end_fails_the_task_instead_of_hanging() -> None:
    Unstoppable.rounds = 0

    with pytest.raises(WorkflowCodeBroken, match="cannot be stopped"):
        conclude(Unstoppable, HistoryWriter().events)

    assert Unstoppable.rounds < Unstoppable.limit
    Unstoppable.rounds = Unstoppable.limit  # let the generator end when it is collected
    gc.collect()


def _endless() -> list[Any]:
    members: list[Any] = []
    members.append(members)
    return members


@workflow.defn(name="endless")
class Endless:
    def run(self, ctx: Context, how: str) -> Yields:
        if how == "group":
            yield _endless()
        if how == "selection":
            yield ctx.select({"a": _endless()})
        yield ctx.side_effect(lambda: 1)
        return _endless()


@pytest.mark.parametrize("how", ["group", "selection"])
def test_lists_without_an_end_fail_the_run_with_the_bound(how: str) -> None:
    definition = workflow.definition_of(Endless)
    arguments = codec.envelope([how])

    decision = replay(definition, ReplayTask("w", "r", "endless", "avro", arguments, HistoryWriter().events))

    assert isinstance(decision, Commands)
    assert decision.commands[0]["exception_type"] == "ValueError"
    assert "nested at most" in decision.commands[0]["message"]


def test_a_result_without_an_end_fails_the_task() -> None:
    task = ReplayTask("w", "r", "endless", "avro", codec.envelope(["return"]), HistoryWriter().events)

    with pytest.raises(PayloadError, match="nesting_too_deep"):
        replay(workflow.definition_of(Endless), task)


@workflow.defn(name="async-predicate")
class AsyncPredicate:
    async def run(self, ctx: Context) -> bool:
        async def ready() -> bool:
            return False

        return await ctx.wait_condition(ready)


def test_an_async_predicate_is_refused_and_not_taken_for_true() -> None:
    assert "is a plain function" in failed_with(AsyncPredicate, HistoryWriter().events)["message"]
