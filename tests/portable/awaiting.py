"""The workflows of `commands`, written with ``await``: the same calls, so the same histories."""

from __future__ import annotations

from typing import Any

from proctor import workflow

Context = workflow.WorkflowContext


@workflow.defn(name="activities")
class Activities:
    async def run(self, ctx: Context, count: int = 2) -> list[Any]:
        seen: list[Any] = []
        for number in range(count):
            try:
                seen.append(await self.work(ctx, number, seen[-1:]))
            except workflow.ActivityFailed as exc:
                seen.append([str(exc), exc.exception_type, exc.failure_category, exc.non_retryable, exc.step_sequence])
        return seen

    async def work(self, ctx: Context, number: int, before: list[Any]) -> Any:
        return await ctx.schedule_activity(
            "work",
            [number, before],
            queue="elsewhere" if number else None,
            retry_policy=workflow.ActivityRetryPolicy(max_attempts=3, non_retryable_error_types=["K"]),
            start_to_close_timeout=10,
            schedule_to_start_timeout=20,
            schedule_to_close_timeout=60,
            heartbeat_timeout=5,
            cancellation_policy=workflow.CancellationPolicy.WAIT_CANCELLATION_COMPLETED,
        )


@workflow.defn(name="conditions")
class Conditions:
    def __init__(self) -> None:
        self.amount = 0
        self.notes: list[Any] = []

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        self.amount += amount

    @workflow.update("note")
    def note(self, text: str) -> int:
        self.notes.append([text, self.amount])
        return len(self.notes)

    async def run(self, ctx: Context) -> list[Any]:
        first = await ctx.wait_condition(lambda: self.amount >= 2, key="two", timeout=30)
        worked = await ctx.schedule_activity("work", [self.amount])
        second = await ctx.wait_condition(lambda: self.amount >= 4 or len(self.notes) > 2)
        third = await ctx.wait_condition(lambda: self.amount >= 0, key="true already")
        await ctx.sleep(1)
        fourth = await ctx.wait_condition(lambda: self.amount >= 6, timeout=2.5)
        return [first, worked, second, third, fourth, self.amount, self.notes]


@workflow.defn(name="continuing")
class Continuing:
    async def run(self, ctx: Context, left: int = 2, returned: bool = True) -> Any:
        await ctx.schedule_activity("work", [left])
        await ctx.side_effect(lambda: left)
        if returned:
            return ctx.continue_as_new(left - 1, returned, workflow_type="continued", task_queue="next")
        return await ctx.continue_as_new(left - 1)


@workflow.defn(name="groups")
class Groups:
    async def run(self, ctx: Context) -> list[Any]:
        nothing = await ctx.gather([])
        nested: Any
        try:
            nested = await ctx.gather(
                [
                    ctx.schedule_activity("a", [1]),
                    [ctx.start_child_workflow("child"), (ctx.start_timer(2), ctx.schedule_activity("b"))],
                    ctx.schedule_activity("c"),
                ]
            )
        except (workflow.ActivityFailed, workflow.ChildWorkflowFailed) as exc:
            nested = str(exc)
        same = await ctx.gather([ctx.sleep(1), ctx.sleep(2)])
        return [nothing, nested, same, await ctx.schedule_activity("work", [nested])]


@workflow.defn(name="selections")
class Selections:
    async def run(self, ctx: Context) -> list[Any]:
        first = await ctx.select(
            {
                "work": ctx.schedule_activity("a"),
                "time": ctx.sleep(5),
                "both": [ctx.schedule_activity("b"), ctx.start_child_workflow("child")],
            }
        )
        seen = [first.key, first.index, first.kind, first.identity, first.value, str(first.failure), first.succeeded]
        rest = first.remaining()
        if "time" in rest:
            await rest["time"].cancel()
        worked = await ctx.schedule_activity("between")
        for key in sorted(rest, key=str):
            try:
                seen.append([key, await rest[key]])
            except workflow.DurableOperationCancelled as exc:
                seen.append([key, str(exc.member_key), exc.operation_kind])
            except (workflow.ActivityFailed, workflow.ChildWorkflowFailed) as exc:
                seen.append([key, str(exc)])
        second = await ctx.select([ctx.sleep(1), ctx.schedule_activity("c")])
        return [*seen, worked, second.key]


@workflow.defn(name="sagas")
class Sagas:
    async def run(self, ctx: Context) -> Any:
        async def forward(saga: workflow.Saga) -> Any:
            reserved = await ctx.schedule_activity("reserve")
            saga.add_compensation("release", [reserved])
            charged = await ctx.schedule_activity("charge")
            saga.add_compensation("refund", [charged])
            return await ctx.schedule_activity("ship", [charged])

        return await ctx.saga().run(forward)


@workflow.defn(name="streams")
class Streams:
    async def run(self, ctx: Context) -> list[Any]:
        orders = ctx.message_stream("orders")
        seen: list[Any] = []
        while len(seen) < 3:
            batch = await orders.receive(2)
            seen += [[message.message_id, message.position, message.arguments] for message in batch]
            item = workflow.WorkflowStreamAppendItem({"n": len(seen)}, item_type="count")
            await ctx.append_workflow_stream("out", [item], max_pending_items=5)
        last = await orders.receive_one()
        await ctx.close_workflow_stream("out", retention_seconds=60)
        await ctx.error_workflow_stream("other", "broken")
        return [*seen, last.position]


@workflow.defn(name="cancellable")
class Cancellable:
    def __init__(self) -> None:
        self.go = False

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        self.go = self.go or amount > 2

    async def run(self, ctx: Context) -> list[Any]:
        seen: list[Any] = []
        try:
            seen.append(await ctx.schedule_activity("a"))
            with ctx.cancellation_shield():
                await ctx.sleep(1)
            await ctx.side_effect(lambda: 1)
            seen.append(await ctx.gather([ctx.schedule_activity("b"), ctx.sleep(3)]))
            seen.append(await ctx.wait_condition(lambda: self.go, key="go", timeout=9))
            first = await ctx.select({"x": ctx.sleep(4), "y": ctx.start_child_workflow("child")})
            seen.append(first.key)
            seen.append(await next(iter(first.remaining().values())))
        except (workflow.ActivityFailed, workflow.ChildWorkflowFailed) as exc:
            return [*seen, str(exc)]
        except workflow.WorkflowCancelled as exc:
            context = ctx.cancellation_context
            seen.append([exc.request_id, ctx.is_cancellation_requested, context is None])
            with ctx.cancellation_shield():
                seen.append(await ctx.schedule_activity("undo"))
                await ctx.sleep(2)
                if context is not None:
                    seen.append([context.reason, context.remaining()])
        return seen
