"""Workflow code that several tests replay."""

from __future__ import annotations

from typing import Any

from proctor import workflow

Context = workflow.WorkflowContext


@workflow.defn(name="one-call")
class OneCall:
    async def run(self, ctx: Context) -> Any:
        return await ctx.local_activity("first")


@workflow.defn(name="two-bare-calls")
class TwoCalls:
    async def run(self, ctx: Context) -> list[Any]:
        return [await ctx.local_activity("first"), await ctx.local_activity("second")]


@workflow.defn(name="drawing")
class Drawing:
    async def run(self, ctx: Context, drawn: int) -> list[Any]:
        value = await ctx.side_effect(lambda: drawn)
        again = await ctx.side_effect(lambda: [drawn])
        return [value, again, await ctx.local_activity("first", [value])]


@workflow.defn(name="two-calls")
class Steps:
    async def run(self, ctx: Context) -> list[Any]:
        drawn = await ctx.side_effect(lambda: 5)
        try:
            first = await ctx.local_activity("first", [drawn])
        except workflow.ActivityFailed as exc:
            first = str(exc)
        return [str(ctx.now()), await ctx.patched("fix"), first, await ctx.local_activity("second")]
