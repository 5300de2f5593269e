"""The handlers and the workflow of the fault tests; children import this, so it imports only what handlers may."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

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


@activity.defn(name="stumble")
def stumble(value: Any) -> Any:
    """Fail in the first attempt; then beat, work a moment, give the value back."""
    if activity.info().attempt_number == 1:
        raise OSError("the first attempt fails")
    return work(value)


@activity.defn(name="tell_and_work")
def tell_and_work(pipe: str) -> str:
    """Say who works, work for a while, give the path back."""
    Path(pipe).write_text(f"{os.getpid()}\n")
    time.sleep(1)
    return pipe


ACTIVITIES = [work, block, block_at_first, repeat, stumble, tell_and_work]


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


@workflow.defn(name="fragile")
class Fragile:
    """A local activity, behind code that breaks its workflow task once."""

    broken: ClassVar[set[str]] = set()

    async def run(self, ctx: Any, name: str, arguments: list[Any]) -> Any:
        if ctx.run_id not in self.broken:
            self.broken.add(ctx.run_id)
            raise SystemExit("as code that is broken does, until it is repaired")
        return await ctx.local_activity(name, arguments, start_to_close_timeout=30, retry_policy=RETRY)


@workflow.defn(name="asked")
class Asked:
    """Run a local activity if there is one, then wait to be told to finish; meanwhile be asked and changed."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.over = False

    @workflow.signal("finish")
    def finish(self) -> None:
        self.over = True

    @workflow.query("values")
    def told(self) -> list[Any]:
        return self.values

    @workflow.query("broken")
    def untold(self) -> None:
        raise ValueError("cannot tell")

    @workflow.update("put")
    def put(self, value: str) -> int:
        self.values.append(value)
        return len(self.values)

    @workflow.update_validator("put")
    def check(self, value: str) -> None:
        if not value:
            raise ValueError("there is nothing to put")

    async def run(self, ctx: Any, name: str, arguments: list[Any]) -> Any:
        if name:
            await ctx.local_activity(name, arguments, start_to_close_timeout=30, retry_policy=RETRY)
        await ctx.wait_condition(lambda: self.over, key="over")
        return self.values


WORKFLOWS = [Local, Group, Queued, Fragile, Asked]
