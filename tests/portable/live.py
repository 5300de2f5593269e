"""Workflows and activities that both workers run on one server: every kind of step, and an end that is always the same.

The first import below is the only line that names a package; `portable_files` changes it to run the file elsewhere.
Each class runs without help from outside, or says in `MOVES` what somebody does to it, and when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

from proctor import activity, workflow

Yields = Generator[Any, Any, Any]

MOVES: dict[str, list[tuple[str, int, str, list[Any]]]] = {
    "live.conditions": [("ConditionWaitOpened", 1, "signal:add", [2]), ("ConditionWaitOpened", 2, "signal:add", [3])],
    "live.early-signal": [("WorkflowStarted", 1, "signal:add", [1])],
    "live.told": [
        ("ConditionWaitOpened", 1, "update:add", [2]),
        ("ConditionWaitOpened", 2, "query:total", [10]),
        ("ConditionWaitOpened", 2, "update:add", [-1]),
        ("ConditionWaitOpened", 2, "update:refuse", ["no room"]),
        ("ConditionWaitOpened", 2, "query:nothing", []),
        ("UpdateCompleted", 2, "update:add", [3]),
        ("WorkflowCompleted", 1, "query:total", []),
    ],
    "live.large": [("ConditionWaitOpened", 1, "signal:add", ["told " * 900])],
    "live.cancelled-while-waiting": [("ConditionWaitOpened", 1, "cancel", [])],
    "live.cleans-up": [("ConditionWaitOpened", 1, "request-cancellation", [])],
    "live.cancelled-family": [("ChildRunStarted", 1, "request-cancellation", [])],
    "live.cancelled-at-a-handle": [("SelectionResolved", 1, "request-cancellation", [])],
    "live.cleans-up-locally": [("ActivityStarted", 1, "request-cancellation", [])],
}
"""By workflow: after the n-th event of a type, a signal, update or query with arguments is sent, or the run is asked to
cancel."""


@activity.defn(name="live.double")
def double(number: int) -> int:
    return 2 * number


@activity.defn(name="live.join")
def join(*parts: Any) -> str:
    return "-".join(map(str, parts))


@activity.defn(name="live.repeat")
def repeat(text: str, times: int) -> str:
    return text * times


@activity.defn(name="live.refuse")
def refuse(why: str) -> None:
    raise ValueError(why)


@activity.defn(name="live.flaky")
def flaky(value: str) -> str:
    if activity.context().info.attempt_number < 2:
        raise RuntimeError("not yet")
    return value


@activity.defn(name="live.block")
def block() -> None:
    threading.Event().wait()


@workflow.defn(name="live.chain")
class Chain:
    def run(self, ctx: Any, number: int) -> Yields:
        first = yield ctx.schedule_activity("live.double", [number])
        second = yield ctx.schedule_activity("live.double", [first])
        return (yield ctx.schedule_activity("live.join", [number, first, second]))


@workflow.defn(name="live.failures")
class Failures:
    def run(self, ctx: Any) -> Yields:
        policy = workflow.ActivityRetryPolicy(max_attempts=2, backoff_seconds=[0])
        seen = [(yield ctx.schedule_activity("live.flaky", ["at last"], retry_policy=policy))]
        never = workflow.ActivityRetryPolicy(
            max_attempts=3, backoff_seconds=[0], non_retryable_error_types=["ValueError"]
        )
        try:
            yield ctx.schedule_activity("live.refuse", ["no"], retry_policy=never)
        except workflow.ActivityFailed as exc:
            seen += [str(exc), exc.exception_type, exc.non_retryable]
        return seen


@workflow.defn(name="live.uncaught")
class Uncaught:
    def run(self, ctx: Any) -> Yields:
        yield ctx.schedule_activity("live.double", [1])
        yield ctx.schedule_activity("live.refuse", ["the end"])


@workflow.defn(name="live.raises")
class Raises:
    def run(self, ctx: Any) -> Yields:
        yield ctx.side_effect(lambda: 1)
        raise LookupError("nothing there")


@workflow.defn(name="live.timers")
class Timers:
    def run(self, ctx: Any) -> Yields:
        yield ctx.start_timer(1)
        doubled = yield ctx.schedule_activity("live.double", [4])
        yield ctx.sleep(0.4)
        return doubled


@workflow.defn(name="live.markers")
class Markers:
    def run(self, ctx: Any) -> Yields:
        drawn = yield ctx.side_effect(lambda: {"drawn": [1, 2.5, None, "ä"]})
        version = yield ctx.get_version("shape", 1, 3)
        patched = yield ctx.patched("fix")
        yield ctx.upsert_search_attributes({"stage": "late"})
        doubled = yield ctx.schedule_activity("live.double", [version])
        again = yield ctx.patched("fix")
        yield ctx.deprecate_patch("old fix")
        return [drawn, version, patched, doubled, again]


@workflow.defn(name="live.locals")
class Locals:
    def run(self, ctx: Any) -> Yields:
        first = yield ctx.local_activity("live.double", [3])
        policy = {"max_attempts": 2, "backoff_seconds": [0]}
        second = yield ctx.local_activity("live.flaky", ["late"], retry_policy=policy)
        try:
            yield ctx.local_activity("live.refuse", ["no"])
        except workflow.ActivityFailed as exc:
            third = [str(exc), exc.exception_type]
        queued = yield ctx.schedule_activity("live.double", [first])
        return [first, second, third, queued, (yield ctx.local_activity("live.join", [queued, "end"]))]


@workflow.defn(name="live.conditions")
class Conditions:
    def __init__(self) -> None:
        self.amount = 0

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        self.amount += amount

    def run(self, ctx: Any) -> Yields:
        first = yield ctx.wait_condition(lambda: self.amount >= 2, key="two")
        doubled = yield ctx.schedule_activity("live.double", [self.amount])
        second = yield ctx.wait_condition(lambda: self.amount >= 5, key="five")
        late = yield ctx.wait_condition(lambda: self.amount >= 99, key="never", timeout=1)
        return [first, doubled, second, late, self.amount]


@workflow.defn(name="live.early-signal")
class EarlySignal:
    def __init__(self) -> None:
        self.amount = 0

    @workflow.signal("add")
    def add(self, amount: int) -> None:
        self.amount += amount

    def run(self, ctx: Any) -> Yields:
        yield ctx.start_timer(1)
        there = yield ctx.wait_condition(lambda: self.amount >= 1, key="one")
        return [there, self.amount]


@workflow.defn(name="live.groups")
class Groups:
    def run(self, ctx: Any) -> Yields:
        nested = yield [
            ctx.schedule_activity("live.double", [1]),
            [ctx.schedule_activity("live.double", [2]), ctx.start_timer(1)],
            ctx.schedule_activity("live.join", ["a", "b"]),
        ]
        return [nested, (yield ctx.schedule_activity("live.double", [5]))]


@workflow.defn(name="live.failing-group")
class FailingGroup:
    def run(self, ctx: Any) -> Yields:
        try:
            yield [ctx.start_timer(1), ctx.schedule_activity("live.refuse", ["no"])]
        except workflow.ActivityFailed as exc:
            return [str(exc), exc.exception_type]
        return None


@workflow.defn(name="live.saga")
class Saga:
    def run(self, ctx: Any) -> Yields:
        saga = ctx.saga()

        def forward(saga: Any) -> Yields:
            reserved = yield ctx.schedule_activity("live.join", ["reserve", 1])
            saga.add_compensation("live.join", ["release", reserved])
            charged = yield ctx.schedule_activity("live.join", ["charge", 2])
            saga.add_compensation("live.join", ["refund", charged])
            return (yield ctx.schedule_activity("live.refuse", ["no stock"]))

        try:
            yield from saga.run(forward)
        except workflow.ActivityFailed as exc:
            return str(exc)
        return None


@workflow.defn(name="live.selections")
class Selections:
    def run(self, ctx: Any) -> Yields:
        first = yield ctx.select({"quick": ctx.schedule_activity("live.double", [4]), "late": ctx.start_timer(600)})
        yield first.handles["late"].cancel()
        try:
            yield first.handles["late"]
        except workflow.DurableOperationCancelled as exc:
            cancelled = type(exc).__name__
        second = yield ctx.select([ctx.schedule_activity("live.refuse", ["no"]), ctx.start_timer(600)])
        third = yield ctx.select({"soon": ctx.start_timer(1), "never": ctx.wait_condition(lambda: False, key="never")})
        return [first.key, first.value, cancelled, second.key, str(second.failure), third.key]


@workflow.defn(name="live.memo")
class Memo:
    def run(self, ctx: Any) -> Yields:
        yield ctx.upsert_memo({"text": "a", "raw": b"\xff", "nested": {"z": 1.0, "a": [None, True]}})
        doubled = yield ctx.schedule_activity("live.double", [1])
        yield ctx.upsert_memo({"text": None, "late": doubled})
        return doubled


@workflow.defn(name="live.countdown")
class Countdown:
    def run(self, ctx: Any, number: int, seen: list[int]) -> Yields:
        doubled = yield ctx.schedule_activity("live.double", [number])
        if number == 0:
            return [*seen, doubled]
        return ctx.continue_as_new(number - 1, [*seen, doubled])


@workflow.defn(name="live.parent")
class Parent:
    def run(self, ctx: Any) -> Yields:
        counted = yield ctx.start_child_workflow("live.countdown", [2, []], parent_close_policy="terminate")
        policy = workflow.ChildWorkflowRetryPolicy(max_attempts=2, backoff_seconds=[0])
        try:
            yield ctx.start_child_workflow("live.raises", [], retry_policy=policy, run_timeout_seconds=50)
        except workflow.ChildWorkflowFailed as exc:
            failed = [str(exc), exc.exception_class]
        return [counted, failed]


@workflow.defn(name="live.siblings")
class Siblings:
    def run(self, ctx: Any) -> Yields:
        return (
            yield [
                ctx.start_child_workflow("live.countdown", [1, []]),
                [ctx.start_child_workflow("live.countdown", [0, []]), ctx.start_timer(1)],
            ]
        )


@workflow.defn(name="live.cancelled-while-waiting")
class CancelledWhileWaiting:
    def run(self, ctx: Any) -> Yields:
        yield ctx.schedule_activity("live.double", [1])
        yield ctx.wait_condition(lambda: False, key="never")


@workflow.defn(name="live.told")
class Told:
    def __init__(self) -> None:
        self.amount = 0

    @workflow.update("add")
    def add(self, amount: int) -> dict[str, int]:
        self.amount += amount
        return {"amount": self.amount}

    @workflow.update_validator("add")
    def check(self, amount: int) -> None:
        if amount < 0:
            raise ValueError("below zero")

    @workflow.update("refuse")
    def refuse(self, why: str) -> None:
        raise LookupError(why)

    @workflow.query("total")
    def total(self, times: int = 1) -> list[int]:
        return [self.amount, self.amount * times]

    def run(self, ctx: Any) -> Yields:
        there = yield ctx.wait_condition(lambda: self.amount >= 5, key="five")
        return [there, (yield ctx.schedule_activity("live.double", [self.amount]))]


@workflow.defn(name="live.cleans-up")
class CleansUp:
    def run(self, ctx: Any) -> Yields:
        try:
            yield ctx.wait_condition(lambda: False, key="never")
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                yield ctx.schedule_activity("live.join", ["undo", 1])
                yield ctx.start_timer(1)
            raise


@workflow.defn(name="live.cleans-up-locally")
class CleansUpLocally:
    def run(self, ctx: Any) -> Yields:
        try:
            yield ctx.local_activity("live.block", [], cancellation_policy="wait_cancellation_completed")
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                yield ctx.local_activity("live.join", ["undo", 2])
            return "cleaned up"
        return "not cancelled"


@workflow.defn(name="live.large")
class Large:
    """Large payloads wherever there are payloads; what becomes of them is no business of a workflow."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @workflow.signal("add")
    def add(self, text: str) -> None:
        self.texts.append(text)

    def run(self, ctx: Any, text: str) -> Yields:
        effect = yield ctx.side_effect(lambda: text + "!")
        local = yield ctx.local_activity("live.repeat", [effect, 2])
        queued = yield ctx.schedule_activity("live.repeat", [local, 2])
        yield ctx.wait_condition(lambda: bool(self.texts), key="told")
        child = yield ctx.start_child_workflow("live.large-end", [queued, "small"])
        return [self.texts, child]


@workflow.defn(name="live.large-end")
class LargeEnd:
    def run(self, ctx: Any, text: str, small: str) -> Yields:
        if small:
            return ctx.continue_as_new(text + small, "")
        return (yield ctx.side_effect(lambda: text + "."))


@workflow.defn(name="live.local-groups")
class LocalGroups:
    def run(self, ctx: Any) -> Yields:
        seed = yield ctx.side_effect(lambda: 3)
        mixed = yield [
            ctx.local_activity("live.double", [seed]),
            [ctx.start_timer(1), ctx.local_activity("live.join", ["a", seed])],
            ctx.schedule_activity("live.double", [5]),
            ctx.start_child_workflow("live.countdown", [0, []]),
            ctx.local_activity("live.join", [], start_to_close_timeout=30, retry_policy={"max_attempts": 2}),
        ]
        alone = yield [ctx.local_activity("live.double", [21])]
        return [mixed, alone, (yield ctx.schedule_activity("live.double", [1]))]


@workflow.defn(name="live.failing-local-group")
class FailingLocalGroup:
    def run(self, ctx: Any) -> Yields:
        try:
            yield [
                ctx.start_timer(1),
                ctx.local_activity("live.refuse", ["no"]),
                ctx.local_activity("live.double", [1]),
            ]
        except workflow.ActivityFailed as exc:
            return [str(exc), exc.exception_type, (yield ctx.local_activity("live.double", [2]))]
        return None


@workflow.defn(name="live.cancelled-family")
class CancelledFamily:
    def run(self, ctx: Any) -> Yields:
        try:
            yield ctx.start_child_workflow("live.waits-for-ever", [], cancellation_policy="wait_cancellation_completed")
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                yield ctx.schedule_activity("live.join", ["parent", 1])
            raise


@workflow.defn(name="live.cancelled-at-a-handle")
class CancelledAtAHandle:
    def run(self, ctx: Any) -> Yields:
        first = yield ctx.select({"quick": ctx.schedule_activity("live.double", [4]), "late": ctx.start_timer(600)})
        try:
            yield first.handles["late"]
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                yield ctx.schedule_activity("live.join", ["handle", 1])
            raise


@workflow.defn(name="live.waits-for-ever")
class WaitsForEver:
    def run(self, ctx: Any) -> Yields:
        try:
            yield ctx.wait_condition(lambda: False, key="never")
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                yield ctx.schedule_activity("live.join", ["child", 1])
            raise


@workflow.defn(name="live.leaves-a-child")
class LeavesAChild:
    def run(self, ctx: Any) -> Yields:
        child = ctx.start_child_workflow("live.waits-for-ever", [], parent_close_policy="request_cancellation")
        winner = yield ctx.select({"child": child, "time": ctx.start_timer(1)})
        return winner.key


SUPERVISED = (
    "live.locals",
    "live.markers",
    "live.cleans-up",
    "live.cleans-up-locally",
    "live.cancelled-family",
    "live.cancelled-at-a-handle",
    "live.leaves-a-child",
)
"""What is run with protocol 1.20's cooperative cancellation and prepared local activities."""

GROUPS = ("live.local-groups", "live.failing-local-group")
"""Lists with prepared local activities."""

ONLY_SUPERVISED = (frozenset((*SUPERVISED, *GROUPS)) | {"live.waits-for-ever"}) - {"live.locals", "live.markers"}

WORKFLOWS: list[type[Any]] = [
    value for value in list(globals().values()) if isinstance(value, type) and value.__module__ == __name__
]
ACTIVITIES: list[Callable[..., Any]] = [double, join, repeat, refuse, flaky, block]

ARGUMENTS: dict[str, list[Any]] = {
    "live.chain": [3],
    "live.countdown": [1, [9]],
    "live.large": ["large " * 800],
    "live.large-end": ["large " * 800, "small"],
}
"""What a workflow is started with; nothing where it is not named."""
