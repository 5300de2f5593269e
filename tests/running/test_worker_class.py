"""The public Worker and Client: what they refuse, in words for the person who reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from proctor import activity, workflow
from proctor.client import Client
from proctor.errors import NegotiationRefused, StopUnconfirmed, UsageError
from proctor.worker import Worker, _single
from proctor_supervisor import StopUnconfirmed as SupervisorStopUnconfirmed

CLIENT = Client("http://server:1")


@workflow.defn(name="wf")
class Flow:
    async def run(self, ctx: Any) -> None: ...


@workflow.defn(name="wf")
class SameName:
    async def run(self, ctx: Any) -> None: ...


@activity.defn(name="act")
def act() -> None: ...


@activity.defn(name="act")
def other() -> None: ...


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"profile": "supervised,ordinary"}, "'supervised', 'ordinary'"),
        ({"task_queue": " "}, "task_queue"),
        ({"task_queue": "q" * 256}, "255"),
        ({"worker_id": " "}, "worker_id"),
        ({"build_id": "\udc80" * 200}, "build_id"),
        ({"workflows": []}, "at least one workflow"),
        ({"workflows": [Flow, SameName]}, "'wf'"),
        ({"workflows": [object]}, "workflow"),
        ({"activities": [act, other]}, "'act'"),
        ({"activities": [len]}, "activity"),
        ({"poll_timeout": 61}, "poll_timeout"),
        ({"drain_grace": -1}, "drain_grace"),
        ({"drain_grace": float("inf")}, "drain_grace"),
    ],
)
def test_a_worker_that_cannot_run_as_asked_says_why(options: dict[str, Any], told: str) -> None:
    defaults: dict[str, Any] = {"task_queue": "q", "workflows": [Flow]}

    with pytest.raises(UsageError, match=told):
        Worker(CLIENT, **{**defaults, **options})


def test_workers_make_ids_of_their_own() -> None:
    first, second = (Worker(CLIENT, task_queue="q", workflows=[Flow]) for _ in range(2))

    assert first.worker_id != second.worker_id
    assert 0 < len(first.worker_id.encode()) <= 255


def test_the_token_variable_is_kept_from_every_child() -> None:
    worker = Worker(CLIENT, task_queue="q", workflows=[Flow])

    assert "DURABLE_WORKFLOW_AUTH_TOKEN" in worker._supervisor.withhold


async def test_a_worker_runs_once(free_port: Callable[[], int]) -> None:
    worker = Worker(Client(f"http://127.0.0.1:{free_port()}"), task_queue="q", workflows=[Flow])
    with pytest.raises(Exception, match="no usable answer"):
        await worker.run()

    with pytest.raises(UsageError, match="runs once"):
        await worker.run()


async def test_a_cancelled_worker_that_cannot_reach_its_server_ends_at_once(free_port: Callable[[], int]) -> None:
    worker = Worker(Client(f"http://127.0.0.1:{free_port()}"), task_queue="q", workflows=[Flow])

    with trio.fail_after(10), trio.move_on_after(0.01) as scope:
        await worker.run()

    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([ValueError("x"), StopUnconfirmed("y")], StopUnconfirmed),
        ([NegotiationRefused("x"), SupervisorStopUnconfirmed("y", pid=1)], StopUnconfirmed),
        ([ValueError("x"), NegotiationRefused("y")], NegotiationRefused),
        ([ValueError("x")], ValueError),
    ],
)
def test_one_exception_leaves_the_worker_and_an_unproven_stop_is_never_hidden(
    errors: list[Exception], expected: type[Exception]
) -> None:
    group = ExceptionGroup("outer", [ExceptionGroup("inner", errors)])

    assert type(_single(group)) is expected


def test_two_unknown_errors_stay_together() -> None:
    assert _single(ExceptionGroup("outer", [ValueError("x"), KeyError("y")])) is None


async def test_a_client_is_used_open() -> None:
    with pytest.raises(UsageError, match="async with"):
        await CLIENT.describe("wf")


async def test_a_client_is_opened_once() -> None:
    async with Client("http://server:1") as client:
        with pytest.raises(UsageError, match="already open"):
            await client.__aenter__()


def test_a_client_does_not_show_its_tokens() -> None:
    client = Client("http://server:1", token="t0ken", worker_token="w0rker", control_token="c0ntrol")

    assert not any(token in repr(client) + repr(vars(client)) for token in ("t0ken", "w0rker", "c0ntrol"))
