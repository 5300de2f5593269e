"""Whatever a handler raises arrives as bounded plain facts, and is the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from handlers import raising
from proctor_supervisor import Failed, Supervisor, Task


async def _failure(supervisor: Supervisor, handler: Callable[..., Any], **fields: Any) -> Failed:
    with trio.fail_after(20):
        outcome = await supervisor.run(Task(handler=handler, **fields))
    assert isinstance(outcome, Failed), outcome
    return outcome


async def test_an_exception_that_raises_whatever_it_is_asked(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_evil)

    assert (failed.kind, failed.failure.type_name) == ("raised", "Evil")
    assert "its __str__ raised KeyboardInterrupt" in failed.failure.message
    assert "in raise_evil" in failed.failure.traceback
    assert not failed.failure.non_retryable


async def test_a_cause_that_raises_whatever_it_is_asked(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_from_evil)

    assert failed.failure.message == "outer"
    assert [cause["type_name"] for cause in failed.failure.causes] == ["Evil"]


async def test_a_cause_that_is_false_is_a_cause(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_from_empty)

    assert [cause["message"] for cause in failed.failure.causes] == ["inner"]
    assert "direct cause of the following exception" in failed.failure.traceback


async def test_half_a_character_is_spelled(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_half_a_character)

    assert failed.failure.message == "no file b\\udcffd"
    failed.failure.traceback.encode()


async def test_a_chain_of_twenty_thousand_is_cut(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_endless_chain)

    assert failed.failure.message == "19999"
    assert len(failed.failure.causes) == 8


async def test_a_ring_of_causes_ends(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_in_a_ring)

    assert [cause["message"] for cause in failed.failure.causes] == ["'right'"]


async def test_a_deep_group_is_bounded(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.raise_deep_group)

    assert failed.failure.type_name == "ExceptionGroup"
    assert "nested (31 sub-exceptions)" in failed.failure.message
    assert "KeyError" in failed.failure.traceback
    assert len(failed.failure.traceback) < 33_000


async def test_a_recursion_without_end_is_bounded(supervisor: Supervisor) -> None:
    failed = await _failure(supervisor, raising.recurse)

    assert failed.failure.type_name == "RecursionError"
    assert len(failed.failure.traceback) < 33_000


async def test_what_is_not_to_be_retried_says_so(supervisor: Supervisor) -> None:
    assert (await _failure(supervisor, raising.raise_non_retryable)).failure.non_retryable


async def test_a_long_name_is_cut(supervisor: Supervisor) -> None:
    assert len((await _failure(supervisor, raising.raise_long_name)).failure.type_name) == 255


@pytest.mark.parametrize(
    ("handler", "type_name", "text"),
    [(raising.give_interrupt, "KeyboardInterrupt", "while encoding"), (raising.give_text, "TypeError", "not bytes")],
)
async def test_a_codec_that_breaks_is_a_refused_result(
    supervisor: Supervisor, handler: Callable[..., Any], type_name: str, text: str
) -> None:
    failed = await _failure(supervisor, handler, codec="handlers.raising:RUDE")

    assert (failed.kind, failed.failure.type_name) == ("result_refused", type_name)
    assert text in failed.failure.message
