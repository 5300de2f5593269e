"""Side effects: drawn once, found again in history, recorded in front of what comes next."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from core.concluding import conclude, result
from core.histories import HistoryWriter
from core.small_workflows import Drawing
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, LocalCall
from proctor.errors import PayloadError

Context = workflow.WorkflowContext


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
