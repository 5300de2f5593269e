"""The authoring API: definitions, checked options, and the deterministic context."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, ReplayTask, replay
from proctor.core.replay.authoring.commands import Command
from proctor.errors import UsageError

Context = workflow.WorkflowContext


def test_a_definition_holds_the_trimmed_name_and_the_class() -> None:
    @workflow.defn(name=" scan ")
    class Scan:
        async def run(self, ctx: Context) -> None: ...

    assert workflow.definition_of(Scan) == workflow.WorkflowDefinition("scan", Scan)


@pytest.mark.parametrize("name", ["", "  ", None, 5])
def test_a_workflow_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="name"):
        workflow.defn(name=name)


def test_a_class_without_run_is_refused() -> None:
    with pytest.raises(UsageError, match="no method `run"):

        @workflow.defn(name="x")
        class NoRun:
            pass


def test_an_async_generator_is_refused_with_the_two_ways_to_write_it() -> None:
    with pytest.raises(UsageError, match="await the ctx calls, or write `def run`"):

        @workflow.defn(name="x")
        class Mixed:
            async def run(self, ctx: Context) -> AsyncGenerator[int, None]:
                yield 1


def test_a_function_is_no_workflow() -> None:
    def run() -> None: ...

    with pytest.raises(UsageError, match="marks a class"):
        workflow.defn(name="x")(run)  # type: ignore[type-var]


def test_a_subclass_needs_its_own_definition() -> None:
    @workflow.defn(name="base")
    class Base:
        def run(self, ctx: Context) -> None: ...

    class Derived(Base):
        pass

    with pytest.raises(UsageError, match="Derived is no workflow"):
        workflow.definition_of(Derived)


def context(run_id: str = "run-1") -> Context:
    return Context(workflow_id="workflow-1", run_id=run_id, workflow_type="x", started_at=None, is_live=lambda: True)


@pytest.mark.parametrize(
    "options",
    [
        {"activity_type": " "},
        {"start_to_close_timeout": 0},
        {"schedule_to_close_timeout": -1},
        {"heartbeat_timeout": 0},
        {"start_to_close_timeout": 31, "schedule_to_close_timeout": 30},
        {"start_to_close_timeout": 5, "heartbeat_timeout": 6},
        {"retry_policy": {"max_attempts": 0}},
        {"retry_policy": {"attempts": 1}},
        {"cancellation_policy": "abandon"},
        {"cancellation_policy": workflow.CancellationPolicy.ABANDON},
        {"cancellation_policy": "sometimes"},
    ],
)
def test_a_local_activity_option_out_of_range_is_a_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        context().local_activity(**({"activity_type": "crunch"} | options))


@pytest.mark.parametrize(
    "options",
    [
        {"activity_type": None},
        {"arguments": "abc"},
        {"arguments": {"a": 1}},
        {"start_to_close_timeout": True},
        {"schedule_to_close_timeout": 1.0},
        {"heartbeat_timeout": "5"},
        {"retry_policy": [3]},
        {"retry_policy": workflow.ActivityRetryPolicy()},
        {"schedule_to_start_timeout": 5},
        {"queue": "q"},
    ],
)
def test_a_local_activity_option_of_a_wrong_type_or_name_is_a_type_error(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"\w"):
        context().local_activity(**({"activity_type": "crunch"} | options))


def test_a_policy_object_and_its_mapping_mean_the_same() -> None:
    wire = {"max_attempts": 3, "backoff_seconds": [1, 2], "non_retryable_error_types": ["KeyError"]}

    by_mapping = context().local_activity("crunch", retry_policy=wire)
    by_object = context().local_activity("crunch", retry_policy=workflow.RetryPolicy(3, [1, 2], ["KeyError"]))

    assert by_mapping.retry_policy == by_object.retry_policy


def test_arguments_are_taken_at_the_call() -> None:
    arguments = [1]
    command = context().local_activity("crunch", arguments)

    arguments.append(2)

    assert command.arguments == [1]


@pytest.mark.parametrize("call", ["local_activity", "side_effect", "get_version", "patched", "deprecate_patch"])
def test_each_call_gives_a_command_that_refuses_to_be_a_truth_value(call: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"get_version": ("fix", 1, 2), "side_effect": (lambda: 1,)}
    command = getattr(context(), call)(*arguments.get(call, ("name",)))

    assert isinstance(command, Command)
    with pytest.raises(TypeError, match="await"):
        bool(command)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("", 1, 2), ValueError), (("x", 2, 1), ValueError), (("x", True, 2), TypeError), ((None, 1, 2), TypeError)],
)
def test_a_version_request_is_checked(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        context().get_version(*arguments)


def test_a_side_effect_takes_a_function() -> None:
    with pytest.raises(TypeError, match="takes a function"):
        context().side_effect(5)  # type: ignore[arg-type]


CALLS = [
    "schedule_activity",
    "local_activity",
    "start_timer",
    "sleep",
    "wait_condition",
    "side_effect",
    "start_child_workflow",
    "get_version",
    "patched",
    "deprecate_patch",
    "upsert_search_attributes",
    "upsert_memo",
    "continue_as_new",
    "select",
    "saga",
    "message_stream",
    "append_workflow_stream",
    "close_workflow_stream",
    "error_workflow_stream",
    "now",
    "random",
    "uuid4",
    "uuid7",
    "throw_if_cancellation_requested",
    "cancellation_shield",
]


@pytest.mark.parametrize("call", CALLS)
def test_each_call_takes_what_the_official_one_takes_under_the_same_names(call: str) -> None:
    official = pytest.importorskip("durable_workflow", reason="the official SDK is a development dependency")
    theirs = inspect.signature(getattr(official.workflow.WorkflowContext, call)).parameters
    ours = inspect.signature(getattr(Context, call)).parameters

    assert [(name, parameter.kind) for name, parameter in ours.items()] == [
        (name, parameter.kind) for name, parameter in theirs.items()
    ]
    for name, parameter in theirs.items():
        if parameter.default is not inspect.Parameter.empty:
            assert ours[name].default == parameter.default


@workflow.defn(name="identities")
class Identities:
    def run(self, ctx: Context) -> list[Any]:
        return [str(ctx.uuid4()), str(ctx.uuid7()), str(ctx.uuid7()), ctx.random().random(), str(ctx.now())]


def test_identities_and_randomness_are_those_of_the_reference_for_the_same_run() -> None:
    task = ReplayTask("workflow-1", "run-1", "identities", "avro", None, HistoryWriter().events)

    decision = replay(workflow.definition_of(Identities), task)

    assert isinstance(decision, Commands)
    assert codec.decode_value(decision.commands[0]["result"], None) == [
        "61149e89-8a80-4e8d-b9e3-6238e7431f0f",
        "019b7ca9-8f2e-7000-bafb-707204e69401",
        "019b7ca9-8f2e-7001-a9fe-1ee1ea676c9a",
        0.930394102662873,
        "2026-01-02 03:04:05.678900+00:00",
    ]


@given(st.text())
def test_two_replays_of_one_run_draw_the_same_values(run_id: str) -> None:
    first, second = context(run_id), context(run_id)

    drawn = [first.uuid4() for _ in range(3)], [second.uuid4() for _ in range(3)]

    assert drawn[0] == drawn[1]
    assert {value.version for value in drawn[0]} == {4}
    assert {value.variant for value in drawn[0]} == {uuid.RFC_4122}
    assert first.random().random() == second.random().random()


def test_two_runs_draw_different_values() -> None:
    assert context("run-1").uuid4() != context("run-2").uuid4()


@workflow.defn(name="logging")
class Logging:
    async def run(self, ctx: Context) -> None:
        ctx.logger.warning("before")
        await ctx.local_activity("first")
        ctx.logger.warning("between")
        await ctx.local_activity("second")
        ctx.logger.warning("after %s", "both")


def logged(history: HistoryWriter, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "proctor.workflow"):
        replay(
            workflow.definition_of(Logging),
            ReplayTask("workflow-1", "run-1", "logging", "avro", None, history.events),
        )
    return [record.getMessage() for record in caplog.records]


def test_the_logger_is_silent_for_code_that_ran_before(caplog: pytest.LogCaptureFixture) -> None:
    history = HistoryWriter()

    assert logged(history, caplog) == ["before"]
    assert logged(history.scheduled(1, "first").started(1, "first").rescheduled(1, "first"), caplog) == []
    assert logged(history.started(1, "first", attempt=2).completed(1, "first", 1), caplog) == ["between"]
    assert logged(history.call(2, "second", 2), caplog) == ["after both"]


@workflow.defn(name="logging-cleanup")
class LoggingCleanup:
    async def run(self, ctx: Context) -> None:
        try:
            await ctx.local_activity("first")
        finally:
            ctx.logger.warning("cleanup of code that is only suspended")


def test_the_logger_is_silent_while_suspended_code_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    task = ReplayTask("workflow-1", "run-1", "logging-cleanup", "avro", None, HistoryWriter().events)

    replay(workflow.definition_of(LoggingCleanup), task)

    assert caplog.records == []


def test_log_records_name_the_run(caplog: pytest.LogCaptureFixture) -> None:
    logged(HistoryWriter(), caplog)

    (record,) = caplog.records
    assert (record.__dict__["workflow_id"], record.__dict__["run_id"]) == ("workflow-1", "run-1")
    assert record.__dict__["workflow_type"] == "logging"


@pytest.mark.parametrize("module", ["proctor.workflow", "proctor.core.replay", "proctor.core.retry"])
def test_workflow_files_load_no_trio_and_no_worker(module: str) -> None:
    program = (
        f"import sys, {module}; "
        "print(sorted({'trio', 'anyio', 'httpx2', 'structlog', 'msgspec', 'proctor.worker'} & sys.modules.keys()))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_public_names_are_these() -> None:
    assert set(workflow.__all__) == {
        "ActivityFailed",
        "ActivityRetryPolicy",
        "CancellationContext",
        "CancellationPolicy",
        "ChildWorkflowCancelled",
        "ChildWorkflowFailed",
        "ChildWorkflowRetryPolicy",
        "ChildWorkflowTerminated",
        "ContinueAsNew",
        "DurableOperationCancelled",
        "DurableOperationHandle",
        "MessageStreamMessage",
        "NexusOperationFailed",
        "NexusOperationResult",
        "ParentClosePolicy",
        "RetryPolicy",
        "Saga",
        "SagaCompensationFailed",
        "SelectionResult",
        "UpdateRejected",
        "WorkflowCancelled",
        "WorkflowContext",
        "WorkflowDefinition",
        "WorkflowStreamAppendItem",
        "definition_of",
        "defn",
        "query",
        "signal",
        "update",
        "update_validator",
    }
    assert all(hasattr(workflow, name) for name in workflow.__all__)


def test_exceptions_that_reach_histories_carry_their_public_path() -> None:
    for cls in (workflow.ActivityFailed, workflow.WorkflowCancelled):
        assert getattr(sys.modules[cls.__module__], cls.__qualname__) is cls
        assert cls.__module__ == "proctor.workflow"
