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


ALL = [One, Chain, Queued]
