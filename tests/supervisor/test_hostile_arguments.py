"""Odd arguments are refused by name where they are given; the odd but meaningful ones mean what they say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from handlers import awkward, blocking, hostile
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Deadlines,
    Failed,
    Limits,
    Stopped,
    StopPolicy,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    TaskRefused,
    open_supervisor,
)

DAY = 86400.0


@pytest.mark.parametrize("seconds", [60 * DAY, 1e12, 1e300, math.inf])
@pytest.mark.parametrize("deadline", ["attempt", "total", "authority"])
async def test_a_deadline_may_be_as_far_as_anybody_likes(supervisor: Supervisor, deadline: str, seconds: float) -> None:
    zygote = supervisor.pid
    task = Task(handler=blocking.pid, deadlines=Deadlines(**{deadline: trio.current_time() + seconds}))
    with trio.fail_after(10):
        assert isinstance(await supervisor.run(task), Completed)

    assert supervisor.pid == zygote, "the supervisor process broke on it"


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [
        ("attempt", StopReason.ATTEMPT_TIMEOUT),
        ("total", StopReason.TOTAL_TIMEOUT),
        ("authority", StopReason.AUTHORITY_LOST),
    ],
)
@pytest.mark.parametrize("seconds", [-math.inf, -1e300, -1.0, 0.0, 1e-12])
async def test_a_deadline_that_has_passed_stops_before_anything_runs(
    supervisor: Supervisor, deadline: str, reason: StopReason, seconds: float
) -> None:
    task = Task(handler=blocking.sleep, payload=b"[[600],{}]")
    task = Task(
        handler=task.handler, payload=task.payload, deadlines=Deadlines(**{deadline: trio.current_time() + seconds})
    )
    with trio.fail_after(10):
        outcome = await supervisor.run(task)

    assert isinstance(outcome, Stopped)
    assert (outcome.reason, outcome.heartbeats) == (reason, 0)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 0.01])
async def test_a_heartbeat_timeout_may_be_tiny(supervisor: Supervisor, seconds: float) -> None:
    task = Task(handler=blocking.sleep, payload=b"[[600],{}]", deadlines=Deadlines(heartbeat_timeout=seconds))
    with trio.fail_after(10):
        outcome = await supervisor.run(task)

    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.HEARTBEAT_TIMEOUT


async def test_graces_may_be_huge_and_still_end_with_the_handler(supervisor: Supervisor) -> None:
    control = AttemptControl()
    task = Task(handler=blocking.answer_notice_with_result, stop=StopPolicy(notice_grace=1e12, kill_budget=1e12))
    with trio.fail_after(10):
        outcome = await supervisor.run(
            task, control=control, on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED)
        )

    assert isinstance(outcome, Completed)


async def test_the_detail_of_a_stop_may_be_of_any_length(supervisor: Supervisor) -> None:
    control = AttemptControl()
    with trio.fail_after(10):
        outcome = await supervisor.run(
            Task.call(hostile.swallow_everything),
            control=control,
            on_heartbeat=lambda _beat: control.request_stop(StopReason.CANCELLED, "ü" * 1_000_000),
        )

    assert isinstance(outcome, Stopped)
    assert outcome.proof.detail == "ü" * 1000


def test_a_reason_that_is_none_is_refused_where_it_is_given() -> None:
    with pytest.raises(ValueError, match="'bored' is not a valid StopReason"):
        AttemptControl().request_stop("bored")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, "soon", None, True])
def test_authority_ends_at_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match="until must be a number of seconds"):
        AttemptControl().extend_authority(value)


@pytest.mark.parametrize("name", ["attempt", "total", "authority", "heartbeat_timeout"])
@pytest.mark.parametrize("value", [math.nan, "soon", True, b"1", 10**400, -(10**400)])
def test_a_deadline_is_a_number(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Deadlines.{name} must be (a number of|at most \d+) seconds"):
        Deadlines(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("children", 0), ("children", True), ("children", 1.5), ("isolation", "none"), ("attempts_per_child", 0),
        ("reuse_growth_bytes", -1), ("standby", -1), ("standby", None), ("max_payload_bytes", 0),
        ("max_payload_bytes", 1 << 63), ("output_limit", -1), ("start_timeout", 0), ("start_timeout", math.nan),
        ("start_timeout", 10**400),
        ("preload", "handlers.blocking"), ("preload", [3]), ("withhold", "SECRET"), ("stop", 5), ("limits", None),
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"SupervisorOptions.{name}"):
        SupervisorOptions(**{name: value})


def test_a_limit_beyond_what_the_kernel_can_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="open_files must be a whole number"):
        Limits(open_files=1 << 70)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("payload", "[[],{}]"), ("payload", None), ("codec", b"x"), ("context", "x"), ("attempt_id", None),
        ("attempt_id", "a\udcff"), ("handler", "handlers.\udcff:x"), ("codec", "a:\0"), ("descendants", "maybe"),
        ("deadlines", None), ("limits", {"open_files": 9}), ("stop", 5),
    ],
)  # fmt: skip
async def test_a_task_that_cannot_be_sent_is_refused_before_it_takes_a_child(
    supervisor: Supervisor, name: str, value: Any
) -> None:
    task = Task(**{"handler": blocking.pid, name: value})
    with pytest.raises(TaskRefused, match=f"Task.{name}"):
        await supervisor.run(task)

    assert supervisor.running == 0


@pytest.mark.parametrize("name", ["handler", "codec", "attempt_id"])
async def test_a_name_without_measure_is_refused(supervisor: Supervisor, name: str) -> None:
    fields: dict[str, Any] = {"handler": blocking.pid, name: "a:b" * 10_000}
    with pytest.raises(TaskRefused, match="at most"):
        await supervisor.run(Task(**fields))


@pytest.mark.parametrize("name", ["control", "on_heartbeat", "on_output"])
async def test_what_cannot_steer_or_be_called_is_refused_before_it_takes_a_child(
    supervisor: Supervisor, name: str
) -> None:
    with pytest.raises(TaskRefused, match=name):
        await supervisor.run(Task(handler=blocking.pid), **{name: 5})  # type: ignore[arg-type]

    assert supervisor.running == 0


async def test_one_control_steers_one_attempt_at_a_time(supervisor: Supervisor) -> None:
    """A stop would reach the other attempt, and this one would never end."""
    control = AttemptControl()

    def run_another(_beat: object) -> None:
        nursery.start_soon(refused)

    async def refused() -> None:
        with pytest.raises(TaskRefused, match="steers another attempt"):
            await supervisor.run(Task(handler=blocking.pid), control=control)
        control.request_stop(StopReason.CANCELLED)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            outcome = await supervisor.run(Task.call(blocking.sleep, 600), control=control, on_heartbeat=run_another)

    assert isinstance(outcome, Stopped)
    again = AttemptControl()
    for _ in range(2):  # one after the other is no conflict
        assert isinstance(await supervisor.run(Task(handler=blocking.pid), control=again), Completed)


async def test_what_is_no_task_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(TaskRefused, match="not a str"):
        await supervisor.run("handlers.blocking:pid")  # type: ignore[arg-type]


async def test_options_that_are_none_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="SupervisorOptions"):
        async with open_supervisor({"children": 2}):  # type: ignore[arg-type]
            pytest.fail("it opened")


@pytest.mark.parametrize("seconds", [1e300, 10**400])
def test_a_grace_has_a_measure(seconds: float) -> None:
    with pytest.raises(ValueError, match="kill_budget must be at most"):
        StopPolicy(kill_budget=seconds)


async def test_a_callable_with_odd_attributes_runs(supervisor: Supervisor) -> None:
    outcome = await supervisor.run(Task(handler=awkward.AnswersForAnything()))

    assert isinstance(outcome, Completed), outcome
    assert outcome.result == b'"called"'


async def test_a_failure_arrives_whole_where_payloads_are_bounded_to_less() -> None:
    async with open_supervisor(SupervisorOptions(children=1, max_payload_bytes=100)) as supervisor:
        outcome = await supervisor.run(Task(handler="handlers.raising:raise_non_retryable"))

    assert isinstance(outcome, Failed)
    assert outcome.kind == "raised"
    assert outcome.failure.non_retryable
