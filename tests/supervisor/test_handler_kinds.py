"""Every kind of callable is a handler, and what ordinary programs use works inside one."""

from __future__ import annotations

import functools
import json
import operator
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import coroutines, libraries
from proctor_supervisor import Completed, Outcome, Supervisor, SupervisorOptions, Task, open_supervisor

TESTS = Path(__file__).resolve().parents[1]
SQUARES = [0, 1, 4, 9, 16]


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result)


@pytest.fixture(params=["fresh", "reuse"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Supervisor]:
    options = SupervisorOptions(children=1, isolation=request.param, preload=["handlers.libraries"])
    async with open_supervisor(options) as opened:
        yield opened


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ("handlers.libraries:Callable_.static", 14),
        (libraries.Callable_.of_the_class, "Callable_ 7"),
        (libraries.Callable_.static, 14),
        (libraries.Callable_(3), 10),
        (libraries.AsyncCallable(), 8),
        (libraries.make_closure(5), 12),
        (lambda value: [value], [7]),
        (functools.partial(operator.mul, 6), 42),
        (functools.partial(functools.partial(operator.sub, 1)), -6),
        (functools.partial(coroutines.add_async, right=2), 9),
        (str, "7"),
        (abs, 7),
        ("builtins:bin", "0b111"),
    ],
    ids=lambda value: str(getattr(value, "__qualname__", type(value).__name__)),
)
async def test_each_kind_of_callable_runs(
    supervisor: Supervisor, handler: str | Callable[..., Any], expected: Any
) -> None:
    assert _value(await supervisor.run(Task.call(handler, 7))) == expected


def test_callables_of_the_main_program_run() -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "handlers" / "main_program.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["21", "42", "9", "21", "Failed OwnError 7"]


@pytest.mark.parametrize(
    ("handler", "arguments", "expected"),
    [
        (libraries.multiprocessing_pool, ("fork",), SQUARES),
        (libraries.multiprocessing_pool, ("spawn",), SQUARES),
        (libraries.process_pool_executor, (), SQUARES),
        (libraries.thread_pool_executor, (), SQUARES),
        (libraries.asyncio_run, (), SQUARES),
        (libraries.trio_run, (), SQUARES),
        (libraries.own_signal_handler, (), ["SIGUSR1", "SIGALRM"]),
        (libraries.ask, (), "nobody there"),
        (libraries.pipeline, (), [3, "out\n", "err\n"]),
        (libraries.fork_and_wait, (), 7),
        (libraries.in_the_main_thread, (), True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_ordinary_programs_use_works(
    either: Supervisor, handler: Callable[..., Any], arguments: tuple[Any, ...], expected: Any
) -> None:
    for _ in range(2):  # also in a child that has done it before
        with trio.fail_after(30):
            assert _value(await either.run(Task.call(handler, *arguments))) == expected


async def test_logging_is_captured(either: Supervisor) -> None:
    outcome = await either.run(Task.call(libraries.log))

    assert isinstance(outcome, Completed)
    assert outcome.output.stderr == "by the last resort\n"
    assert outcome.output.stdout == "INFO by a handler of its own\n"


@pytest.mark.parametrize(
    "handler",
    [
        libraries.leave_blocking_exit_hook,
        libraries.leave_blocking_finalizer,
        libraries.leave_busy_threads,
        libraries.leave_executor,
    ],
    ids=lambda handler: handler.__name__,
)
async def test_nothing_left_behind_delays_the_result(either: Supervisor, handler: Callable[..., Any]) -> None:
    with trio.fail_after(10):
        outcome = await either.run(Task.call(handler))

    assert _value(outcome) == "returned"
    assert outcome.descendants == ()
