"""One workflow per subject of the authoring API, in the style of the official SDK.

The first imports below are the only lines that name a package; `portable_files` changes them to run the file elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from proctor import workflow

Yields = Generator[Any, Any, Any]


@workflow.defn(name="activities")
class Activities:
    def run(self, ctx: Any, count: int = 2) -> Yields:
        seen: list[Any] = []
        for number in range(count):
            try:
                seen.append(
                    (
                        yield ctx.schedule_activity(
                            "work",
                            [number, seen[-1:]],
                            queue="elsewhere" if number else None,
                            retry_policy=workflow.ActivityRetryPolicy(max_attempts=3, non_retryable_error_types=["K"]),
                            start_to_close_timeout=10,
                            schedule_to_start_timeout=20,
                            schedule_to_close_timeout=60,
                            heartbeat_timeout=5,
                            cancellation_policy="wait_cancellation_completed",
                        )
                    )
                )
            except workflow.ActivityFailed as exc:
                seen.append([str(exc), exc.exception_type, exc.failure_category, exc.non_retryable, exc.step_sequence])
        return seen


@workflow.defn(name="uncaught")
class Uncaught:
    def run(self, ctx: Any) -> Yields:
        yield ctx.schedule_activity("work", [])
        raise ValueError("the end")


@workflow.defn(name="timers")
class Timers:
    def run(self, ctx: Any) -> Yields:
        yield ctx.start_timer(0)
        yield ctx.sleep(1.2)
        yield ctx.sleep(-3)
        return [str(ctx.uuid4()), ctx.random().randint(0, 1000), str(ctx.now()), str(ctx.uuid7())]


@workflow.defn(name="children")
class Children:
    def run(self, ctx: Any) -> Yields:
        seen: list[Any] = []
        for policy in (None, "terminate"):
            try:
                seen.append(
                    (
                        yield ctx.start_child_workflow(
                            "child",
                            [policy],
                            task_queue="children",
                            parent_close_policy=policy,
                            cancellation_policy=None if policy is None else "try_cancel",
                            retry_policy=workflow.ChildWorkflowRetryPolicy(max_attempts=2),
                            execution_timeout_seconds=60,
                            run_timeout_seconds=30,
                        )
                    )
                )
            except workflow.ChildWorkflowFailed as exc:
                seen.append([str(exc), exc.exception_class, exc.failure_kind, type(exc).__name__])
        return seen


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

    @note.validator
    def check_note(self, text: str) -> None:
        if not text:
            raise ValueError("a note says something")

    @workflow.query("state")
    def state(self, *more: Any) -> list[Any]:
        return [self.amount, self.notes, *more]

    def run(self, ctx: Any) -> Yields:
        first = yield ctx.wait_condition(lambda: self.amount >= 2, key="two", timeout=30)
        worked = yield ctx.schedule_activity("work", [self.amount])
        second = yield ctx.wait_condition(lambda: self.amount >= 4 or len(self.notes) > 2)
        third = yield ctx.wait_condition(lambda: self.amount >= 0, key="true already")
        yield ctx.sleep(1)
        fourth = yield ctx.wait_condition(lambda: self.amount >= 6, timeout=2.5)
        return [first, worked, second, third, fourth, self.amount, self.notes]


@workflow.defn(name="repeated-waits")
class RepeatedWaits:
    def __init__(self) -> None:
        self.items: list[Any] = []

    @workflow.signal("add")
    def add(self, item: int) -> None:
        self.items.append(item)

    def run(self, ctx: Any) -> Yields:
        seen: list[Any] = []
        for _ in range(3):
            yield ctx.wait_condition(lambda: bool(self.items), key="items")
            seen.append((yield ctx.schedule_activity("work", [self.items.pop(0)])))
        return seen


@workflow.defn(name="markers")
class Markers:
    def run(self, ctx: Any) -> Yields:
        drawn = yield ctx.side_effect(lambda: 5)
        version = yield ctx.get_version("shape", 1, 3)
        patched = yield ctx.patched("fix")
        yield ctx.upsert_memo({"b": 1, "a": {"z": 7.0, "y": None}})
        result = yield ctx.schedule_activity("work", [drawn, version, patched])
        again = yield ctx.patched("fix")
        yield ctx.deprecate_patch("old fix")
        yield ctx.upsert_search_attributes({"stage": "late", "gone": None})
        with contextlib.suppress(ZeroDivisionError):
            yield ctx.side_effect(lambda: 1 // 0)
        return [drawn, version, patched, again, result]


@workflow.defn(name="continuing")
class Continuing:
    def run(self, ctx: Any, left: int = 2, returned: bool = True) -> Yields:
        yield ctx.schedule_activity("work", [left])
        yield ctx.side_effect(lambda: left)
        if returned:
            return ctx.continue_as_new(left - 1, returned, workflow_type="continued", task_queue="next")
        yield ctx.continue_as_new(left - 1)


@workflow.defn(name="groups")
class Groups:
    def run(self, ctx: Any) -> Yields:
        nothing = yield []
        try:
            nested = yield [
                ctx.schedule_activity("a", [1]),
                [ctx.start_child_workflow("child"), [ctx.start_timer(2), ctx.schedule_activity("b", [])]],
                ctx.schedule_activity("c", []),
            ]
        except (workflow.ActivityFailed, workflow.ChildWorkflowFailed) as exc:
            nested = str(exc)
        same = yield [ctx.sleep(1), ctx.sleep(2)]
        after = yield ctx.schedule_activity("work", [nested])
        return [nothing, nested, same, after]


@workflow.defn(name="selections")
class Selections:
    def run(self, ctx: Any) -> Yields:
        first = yield ctx.select(
            {
                "work": ctx.schedule_activity("a", []),
                "time": ctx.sleep(5),
                "both": [ctx.schedule_activity("b", []), ctx.start_child_workflow("child", [])],
            }
        )
        seen = [first.key, first.index, first.kind, first.identity, first.value, str(first.failure), first.succeeded]
        rest = first.remaining()
        if "time" in rest:
            yield rest["time"].cancel()
        worked = yield ctx.schedule_activity("between", [])
        for key in sorted(rest):
            try:
                seen.append([key, (yield rest[key])])
            except workflow.DurableOperationCancelled as exc:
                seen.append([key, str(exc.member_key), exc.operation_kind])
            except (workflow.ActivityFailed, workflow.ChildWorkflowFailed) as exc:
                seen.append([key, str(exc)])
        second = yield ctx.select([ctx.sleep(1), ctx.schedule_activity("c", [])])
        return [*seen, worked, second.key]


@workflow.defn(name="locals")
class Locals:
    def run(self, ctx: Any) -> Yields:
        drawn = yield ctx.side_effect(lambda: "drawn")
        try:
            first = yield ctx.local_activity("here", [drawn], start_to_close_timeout=5)
        except workflow.ActivityFailed as exc:
            first = [str(exc), exc.exception_type]
        queued = yield ctx.schedule_activity("there", [first])
        return [queued, (yield ctx.local_activity("here", [queued]))]


@workflow.defn(name="sagas")
class Sagas:
    def run(self, ctx: Any) -> Yields:
        saga = ctx.saga()

        def forward(saga: Any) -> Yields:
            reserved = yield ctx.schedule_activity("reserve", [])
            saga.add_compensation("release", [reserved])
            charged = yield ctx.schedule_activity("charge", [])
            saga.add_compensation("refund", [charged])
            return (yield ctx.schedule_activity("ship", [charged]))

        return (yield from saga.run(forward))


@workflow.defn(name="services")
class Services:
    def run(self, ctx: Any) -> Yields:
        try:
            done = yield ctx.call_nexus_service("billing", "invoices", "create", [{"n": 1}], business_key="k")
            result = [done.result, done.status, done.service_call_id]
        except workflow.NexusOperationFailed as exc:
            result = [str(exc), exc.status]
        started = yield ctx.start_nexus_operation("billing", "invoices", "send")
        return [result, started.service_call_id]


@workflow.defn(name="streams")
class Streams:
    def run(self, ctx: Any) -> Yields:
        orders = ctx.message_stream("orders")
        seen: list[Any] = []
        while len(seen) < 3:
            batch = yield from orders.receive(2)
            seen += [[message.message_id, message.position, message.arguments] for message in batch]
            yield ctx.append_workflow_stream(
                "out", [workflow.WorkflowStreamAppendItem({"n": len(seen)}, item_type="count")], max_pending_items=5
            )
        last = yield from orders.receive_one()
        yield ctx.close_workflow_stream("out", retention_seconds=60)
        yield ctx.error_workflow_stream("other", "broken")
        return [*seen, last.position]


@workflow.defn(name="cancellable")
class Cancellable:
    def __init__(self) -> None:
        self.go = False

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        self.go = self.go or amount > 2

    def run(self, ctx: Any) -> Yields:
        seen: list[Any] = []
        try:
            seen.append((yield ctx.schedule_activity("a", [])))
            with ctx.cancellation_shield():
                yield ctx.sleep(1)
            yield ctx.side_effect(lambda: 1)
            seen.append((yield [ctx.schedule_activity("b", []), ctx.sleep(3)]))
            seen.append((yield ctx.wait_condition(lambda: self.go, key="go", timeout=9)))
            first = yield ctx.select({"x": ctx.sleep(4), "y": ctx.start_child_workflow("child")})
            seen.append(first.key)
            seen.append((yield next(iter(first.remaining().values()))))
        except (workflow.ActivityFailed, workflow.ChildWorkflowFailed) as exc:
            return [*seen, str(exc)]
        except workflow.WorkflowCancelled as exc:
            context = ctx.cancellation_context
            seen.append([exc.request_id, ctx.is_cancellation_requested, context is None])
            with ctx.cancellation_shield():
                seen.append((yield ctx.schedule_activity("undo", [])))
                yield ctx.sleep(2)
                if context is not None:
                    seen.append([context.reason, context.remaining()])
        return seen
