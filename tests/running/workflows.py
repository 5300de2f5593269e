"""Workflows of the integration tests."""

from __future__ import annotations

from typing import Any

from proctor import workflow

OPTIONS: dict[str, Any] = {"start_to_close_timeout": 30}


@workflow.defn(name="one")
class One:
    """Run one activity with the options that the start gave."""

    async def run(self, ctx: Any, name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        return await ctx.local_activity(name, arguments, **{**OPTIONS, **options})


@workflow.defn(name="chain")
class Chain:
    """A side effect, then two local activities, the second fed by the first."""

    async def run(self, ctx: Any) -> Any:
        seed = await ctx.side_effect(lambda: "seed")
        first = await ctx.local_activity("echo", [seed], start_to_close_timeout=10)
        return await ctx.local_activity("echo", [[first, "two"]], start_to_close_timeout=10)


@workflow.defn(name="queued")
class Queued:
    """Run one activity through its queue, with the options that the start gave."""

    async def run(self, ctx: Any, name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        return await ctx.schedule_activity(name, arguments, **{**OPTIONS, **options})


@workflow.defn(name="counting")
class Counting:
    """Add up what comes until told to finish, and tell when asked."""

    def __init__(self) -> None:
        self.total = 0
        self.over = False

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        """Add an amount."""
        self.total += amount

    @workflow.signal("finish")
    def finish(self) -> None:
        """Let the run end."""
        self.over = True

    @workflow.query("total")
    def told(self, times: int = 1) -> dict[str, Any]:
        """Tell the total."""
        return {"total": self.total * times}

    @workflow.query("broken")
    def broken(self) -> None:
        """Fail."""
        raise ValueError("cannot tell")

    async def run(self, ctx: Any, seconds: float = 0) -> int:
        """Block in a child first, if asked to."""
        if seconds:
            await ctx.local_activity("nap", [seconds], **OPTIONS)
        await ctx.wait_condition(lambda: self.over, key="over")
        return self.total


ALL = [One, Chain, Queued, Counting]
