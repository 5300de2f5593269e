"""The handlers and the workflow of the fault tests; children import this, so it imports only what handlers may."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from proctor import activity, workflow

RETRY: dict[str, Any] = {"max_attempts": 8, "backoff_seconds": [0], "non_retryable_error_types": []}


@activity.defn(name="work")
def work(value: Any) -> Any:
    """Beat, work a moment, give the value back."""
    activity.heartbeat({"at": 1})
    time.sleep(0.05)
    return value


@activity.defn(name="block")
def block(pipe: str) -> None:
    """Say who blocks, beat, then never look at a stop again."""
    activity.heartbeat({"at": 1})
    Path(pipe).write_text(f"{os.getpid()}\n")
    while True:
        time.sleep(3600)


@activity.defn(name="block_at_first")
def block_at_first(pipe: str) -> int:
    """Block in the first attempt; the second says its number."""
    if activity.info().attempt_number == 1:
        block(pipe)
    return activity.info().attempt_number


@activity.defn(name="repeat")
def repeat(text: str) -> str:
    """Make a text twice as long."""
    return text * 2


@activity.defn(name="tell_and_work")
def tell_and_work(pipe: str) -> str:
    """Say who works, work for a while, give the path back."""
    Path(pipe).write_text(f"{os.getpid()}\n")
    time.sleep(1)
    return pipe


ACTIVITIES = [work, block, block_at_first, repeat, tell_and_work]


@workflow.defn(name="local")
class Local:
    """A checkpointed value and one local activity."""

    async def run(self, ctx: Any, name: str, arguments: list[Any]) -> Any:
        await ctx.side_effect(lambda: "seed")
        return await ctx.local_activity(
            name, arguments, start_to_close_timeout=30, heartbeat_timeout=20, retry_policy=RETRY
        )


@workflow.defn(name="group")
class Group:
    """A checkpointed value and a list: the local activity, a timer, the local activity again."""

    async def run(self, ctx: Any, name: str, arguments: list[Any]) -> Any:
        await ctx.side_effect(lambda: "seed")
        options: dict[str, Any] = {"start_to_close_timeout": 30, "heartbeat_timeout": 20, "retry_policy": RETRY}
        first, (_, second) = await ctx.gather(
            [
                ctx.local_activity(name, arguments, **options),
                [ctx.start_timer(0), ctx.local_activity(name, arguments, **options)],
            ]
        )
        assert first == second
        return first


@workflow.defn(name="queued")
class Queued:
    """One queued activity."""

    async def run(self, ctx: Any, name: str, arguments: list[Any]) -> Any:
        return await ctx.schedule_activity(
            name, arguments, start_to_close_timeout=30, heartbeat_timeout=20, retry_policy=RETRY
        )


WORKFLOWS = [Local, Group, Queued]
