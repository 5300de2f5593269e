"""Inline handlers live under a cancel scope: every stop reaches them, and the end waits for their clean-up."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import activity
from proctor.activity import ActivityDefinition
from proctor.core.attempt import ChildEnd, Raised, Returned, StopCause, WasStopped
from proctor.core.codec import decode, decode_bytes, encode_bytes
from proctor.core.jobs import Job, Limits
from proctor.inline import InlineHandlers
from running.scripted_children import ScriptedChildren, returns

FOREVER = 1e6


def job(name: str = "act", *arguments: Any, **limits: Any) -> Job:
    known = {"attempt": None, "total": None, "authority": FOREVER, "heartbeat_timeout": None, **limits}
    context = json.dumps({"activity_type": name, "attempt_number": 1}).encode()
    return Job(name, f"id-{name}", encode_bytes(list(arguments)), context, Limits(**known), 1000)


def handlers(**functions: Callable[..., Awaitable[Any]]) -> InlineHandlers:
    known = {name: ActivityDefinition(name, function, True) for name, function in functions.items()}
    blocking = ActivityDefinition("blocking", lambda: None, False)
    return InlineHandlers(ScriptedChildren(returns("child")), {**known, "blocking": blocking})


async def run(
    function: Callable[..., Awaitable[Any]], *arguments: Any, beats: list[bytes] | None = None, **limits: Any
) -> ChildEnd:
    children = handlers(act=function)
    return await children.run(
        job("act", *arguments, **limits), children.reins(), (beats if beats is not None else []).append
    )


async def test_a_result_comes_back_encoded_and_heartbeats_arrive(autojump_clock: MockClock) -> None:
    async def act(value: int) -> dict[str, int]:
        activity.heartbeat({"at": value})
        await trio.sleep(2)
        return {"twice": value * 2}

    beats: list[bytes] = []
    end = await run(act, 21, beats=beats)

    assert isinstance(end, Returned)
    assert decode(end.blob) == {"twice": 42}
    assert (end.facts.duration_ms, end.facts.heartbeats) == (2000, 1)
    assert decode_bytes(beats[0]) == {"at": 21}


@pytest.mark.parametrize(
    ("limits", "cause", "after"),
    [
        ({"attempt": 3.0}, StopCause.ATTEMPT_TIMEOUT, 3),
        ({"total": 2.0, "attempt": 3.0}, StopCause.TOTAL_TIMEOUT, 2),
        ({"authority": 4.0}, StopCause.AUTHORITY_LOST, 4),
        ({"heartbeat_timeout": 1}, StopCause.HEARTBEAT_TIMEOUT, 2.5),
    ],
)
async def test_every_limit_cancels_the_handler_at_its_instant(
    autojump_clock: MockClock, limits: dict[str, Any], cause: StopCause, after: float
) -> None:
    started = trio.current_time()
    absolute = {key: value + started if key != "heartbeat_timeout" else value for key, value in limits.items()}

    async def act() -> None:
        for _ in range(3):
            activity.heartbeat()
            await trio.sleep(0.75)
        await trio.sleep_forever()

    end = await run(act, **absolute)

    assert isinstance(end, WasStopped)
    assert end.cause is cause
    assert trio.current_time() - started == pytest.approx(after)


async def test_authority_can_be_extended_and_a_stop_be_asked_for(autojump_clock: MockClock) -> None:
    children = handlers(act=trio.sleep_forever)
    reins = children.reins()
    ends: list[ChildEnd] = []

    async def go() -> None:
        ends.append(await children.run(job("act", authority=trio.current_time() + 2), reins, lambda beat: None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go)
        await trio.sleep(1)
        reins.extend_authority(trio.current_time() + 10)
        await trio.sleep(5)
        assert ends == []
        reins.request_stop(StopCause.SHUTDOWN, "the worker stops")
    assert isinstance(ends[0], WasStopped)
    assert ends[0].cause is StopCause.SHUTDOWN


async def test_the_end_waits_for_the_clean_up_and_a_late_result_does_not_count(autojump_clock: MockClock) -> None:
    async def act() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(7)
            return "late"

    started = trio.current_time()
    end = await run(act, attempt=started + 1)

    assert isinstance(end, WasStopped)
    assert trio.current_time() - started == pytest.approx(8)


@pytest.mark.parametrize(
    ("error", "name", "final"),
    [(ValueError("no"), "ValueError", False), (activity.NonRetryableError("never"), "NonRetryableError", True)],
)
async def test_an_exception_is_a_failure_with_its_name(error: Exception, name: str, final: bool) -> None:
    async def act() -> None:
        raise error

    end = await run(act)

    assert isinstance(end, Raised)
    assert (end.exception_type, end.non_retryable) == (name, final)


@pytest.mark.parametrize("value", [{1, 2}, "x" * 5000])
async def test_a_result_that_cannot_be_recorded_is_a_final_failure(value: Any) -> None:
    async def act() -> Any:
        return value

    end = await run(act)

    assert isinstance(end, Raised)
    assert end.non_retryable


async def test_handlers_that_run_beside_each_other_see_each_their_own_attempt(autojump_clock: MockClock) -> None:
    seen: dict[str, str] = {}

    async def look() -> None:
        for _ in range(3):
            await trio.sleep(1)
            seen[activity._facts("test")["activity_type"]] = "seen"

    children = handlers(one=look, two=look)
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            nursery.start_soon(children.run, job(name), children.reins(), lambda beat: None)

    assert seen == {"one": "seen", "two": "seen"}
    with pytest.raises(activity.NoActivityContext):
        activity.heartbeat()


async def test_plain_handlers_are_left_to_the_children(autojump_clock: MockClock) -> None:
    children = handlers()

    end = await children.run(job("blocking"), children.reins(), lambda beat: None)

    assert isinstance(end, Returned)
    assert decode(end.blob) == "child"
