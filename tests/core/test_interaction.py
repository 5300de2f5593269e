"""Queries, updates and validators: asked about the state that history leads to, and changing nothing by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import (
    Commands,
    QueryFailed,
    ReplayTask,
    UpdateRejected,
    answer_query,
    answer_update,
    replay,
    validate_update,
)
from proctor.errors import NonDeterminismError, ProctorError, UsageError

Context = workflow.WorkflowContext


@workflow.defn(name="basket")
class Basket:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.closed: list[str] = []

    @workflow.signal("add")
    def add(self, item: str) -> None:
        self.items.append(item)

    @workflow.update("remove")
    def remove(self, item: str) -> int:
        self.items.remove(item)
        return len(self.items)

    @remove.validator
    def check_remove(self, item: str) -> bool | None:
        if not item:
            raise ValueError("which one?")
        return item in self.items or None if item != "never" else False

    @workflow.update("odd")
    def odd(self) -> Any:
        return {1, 2}

    @workflow.query("items")
    def listed(self, *more: str) -> list[str]:
        return [*self.items, *more]

    @workflow.query("later")
    async def later(self) -> int:
        return len(self.items)

    @workflow.query("waiting")
    async def waiting(self) -> int:
        await self.context.sleep(1)
        return 0

    @workflow.query("formless")
    def formless(self) -> Any:
        return {1}

    @workflow.query("broken")
    def broken(self) -> None:
        raise KeyError("no such thing")

    async def run(self, ctx: Context, limit: int = 2) -> list[str]:
        self.context = ctx
        try:
            await ctx.wait_condition(lambda: len(self.items) >= limit, key="full")
        finally:
            self.closed.append("cleanup of suspended code")
        if limit == 1:
            raise ValueError("one is not enough")
        return self.items


DEFINITION = workflow.definition_of(Basket)


def task(history: HistoryWriter, *arguments: Any) -> ReplayTask:
    return ReplayTask("workflow-1", "run-1", "basket", "avro", codec.envelope(list(arguments)), history.events)


def signalled(*items: str) -> HistoryWriter:
    history = HistoryWriter().add("ConditionWaitOpened", condition_wait_id="w", condition_key="full", sequence=1)
    for item in items:
        history.add("SignalReceived", signal_name="add", arguments=codec.envelope([item]))
    return history


def test_a_query_sees_what_the_signals_of_history_left() -> None:
    assert answer_query(DEFINITION, task(signalled("a")), "items") == ["a"]
    assert answer_query(DEFINITION, task(signalled("a")), "items", ["and", "more"]) == ["a", "and", "more"]
    assert answer_query(DEFINITION, task(signalled("a", "b"), 3), "later") == 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("absent", "it has broken, formless"),
        ("broken", "no such thing"),
        ("waiting", "answer at once"),
    ],
)
def test_a_query_without_an_answer_says_why(name: str, told: str) -> None:
    with pytest.raises(QueryFailed, match=told):
        answer_query(DEFINITION, task(signalled("a")), name)


def test_a_query_with_wrong_arguments_or_about_a_failed_run_has_no_answer() -> None:
    with pytest.raises(QueryFailed, match="positional argument"):
        answer_query(DEFINITION, task(signalled("a")), "broken", [1])
    with pytest.raises(QueryFailed, match="one is not enough"):
        answer_query(DEFINITION, task(signalled("a"), 1), "items")
    with pytest.raises(QueryFailed, match="unsupported_value_type"):
        answer_query(DEFINITION, task(signalled("a")), "formless")
    with pytest.raises(QueryFailed, match="does not match its history"):
        answer_query(DEFINITION, task(signalled("a").side_effect(2, 1)), "items")


def test_suspended_code_is_closed_only_after_its_state_was_looked_at() -> None:
    class Looked(Basket):
        @workflow.query("closed")
        def cleaned(self) -> list[str]:
            return self.closed

    definition = workflow.definition_of(workflow.defn(name="basket")(Looked))

    assert answer_query(definition, task(signalled("a")), "closed") == []


def accepted(history: HistoryWriter, name: str | None, *arguments: Any) -> HistoryWriter:
    return history.add("UpdateAccepted", update_id="u", update_name=name, arguments=codec.envelope(list(arguments)))


def test_an_accepted_update_is_completed_with_the_value_of_its_handler() -> None:
    (command,) = answer_update(DEFINITION, task(accepted(signalled("a"), "remove", "a")), "u").commands

    assert command == {"type": "complete_update", "update_id": "u", "result": codec.envelope(0)}


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "told"),
    [
        ("remove", ["z"], "ValueError", "update handler failed: "),
        ("remove", [], "TypeError", "update handler failed: "),
        ("odd", [], "UnsupportedValueError", "update handler failed: unsupported_value_type"),
        ("absent", [], "UnknownUpdate", "unknown update 'absent'"),
        (None, [], "InvalidUpdate", "has no name"),
    ],
)
def test_an_update_that_cannot_be_done_fails_and_says_why(
    name: str | None, arguments: list[Any], kind: str, told: str
) -> None:
    (command,) = answer_update(DEFINITION, task(accepted(signalled("a"), name, *arguments)), "u").commands

    assert (command["type"], command["exception_type"]) == ("fail_update", kind)
    assert told in command["message"]


def test_an_update_that_history_does_not_hold_is_not_found() -> None:
    (command,) = answer_update(DEFINITION, task(signalled("a")), "u").commands

    assert command["exception_type"] == "UpdateNotFound"


def test_an_update_of_a_run_that_fails_or_contradicts_its_history() -> None:
    (command,) = answer_update(DEFINITION, task(accepted(signalled("a"), "remove", "a"), 1), "u").commands
    assert command["message"] == "workflow replay failed before update: one is not enough"
    with pytest.raises(NonDeterminismError):
        answer_update(DEFINITION, task(accepted(signalled("a").side_effect(2, 1), "remove", "a")), "u")


def test_a_validator_accepts_or_rejects_and_the_state_stays() -> None:
    validate_update(DEFINITION, task(signalled("a")), "remove", ["a"])
    with pytest.raises(UpdateRejected, match="which one") as rejected:
        validate_update(DEFINITION, task(signalled("a")), "remove", [""])
    assert rejected.value.exception_type == "ValueError"
    with pytest.raises(UpdateRejected, match="returned False"):
        validate_update(DEFINITION, task(signalled("a")), "remove", ["never"])
    with pytest.raises(ProctorError, match="no validator for update 'odd'"):
        validate_update(DEFINITION, task(signalled("a")), "odd", [])


def test_an_applied_update_that_the_workflow_does_not_have_fails_the_run() -> None:
    history = HistoryWriter().add("UpdateApplied", update_name="absent", arguments=codec.envelope([]))

    decision = replay(DEFINITION, task(history))

    assert isinstance(decision, Commands)
    assert decision.commands[0]["exception_type"] == "TypeError"


@pytest.mark.parametrize("kind", ["signal", "query", "update"])
def test_two_handlers_under_one_name_are_refused(kind: str) -> None:
    mark = getattr(workflow, kind)
    body = {"one": mark("x")(lambda self: 1), "two": mark("x")(lambda self: 2), "run": lambda self, ctx: 1}

    with pytest.raises(UsageError, match="two handlers"):
        workflow.defn(name="w")(type("W", (), body))


async def _async(self: Any) -> None: ...


def test_handlers_that_cannot_be_called_at_once_are_refused() -> None:
    for kind in ("signal", "update"):
        body = {"one": getattr(workflow, kind)("x")(_async), "run": lambda self, ctx: 1}
        with pytest.raises(UsageError, match="plain function"):
            workflow.defn(name="w")(type("W", (), body))


@pytest.mark.parametrize("name", ["", "  ", None, "__durable_workflow_message_stream"])
def test_a_blank_or_reserved_name_of_a_signal_is_refused(name: Any) -> None:
    with pytest.raises(UsageError):
        workflow.signal(name)(lambda self: None)


def test_a_validator_of_no_update_is_refused() -> None:
    body = {"one": workflow.update_validator("x")(lambda self: 1), "run": lambda self, ctx: 1}

    with pytest.raises(UsageError, match="does not have"):
        workflow.defn(name="w")(type("W", (), body))
