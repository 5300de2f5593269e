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

    @workflow.update("set")
    def put(self, amount: int) -> list[int]:
        """Set the total, give what it was and what it is."""
        before, self.total = self.total, amount
        return [before, amount]

    @workflow.update_validator("set")
    def check(self, amount: int) -> None:
        """Refuse what would be negative."""
        if amount < 0:
            raise ValueError("below zero")

    @workflow.update("refuse")
    def refuse(self, why: str) -> None:
        """Fail."""
        raise LookupError(why)

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


@workflow.defn(name="large")
class Large:
    """Pass a large text through everything that carries payloads, and wait for another one."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.given = ""

    @workflow.signal("add")
    def add(self, text: str) -> None:
        self.texts.append(text)

    @workflow.query("repeated")
    def repeated(self, text: str) -> list[str]:
        return [self.given, text]

    async def run(self, ctx: Any, text: str) -> Any:
        self.given = text
        effect = await ctx.side_effect(lambda: f"{text}!")
        local = await ctx.local_activity("echo", [effect], start_to_close_timeout=30)
        queued = await ctx.schedule_activity("echo", [local], start_to_close_timeout=30)
        await ctx.wait_condition(lambda: bool(self.texts), key="added")
        return [queued, self.texts[0]]


@workflow.defn(name="swollen")
class Swollen:
    """End with a text of the given length."""

    async def run(self, ctx: Any, length: int) -> Any:
        return "x" * length


ALL = [One, Chain, Queued, Counting, Large, Swollen]
