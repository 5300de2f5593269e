"""The workflows of the reference fixtures, written from their descriptions in the style of the official SDK.

The first import below is the only line that names a package; `portable_files` changes it to run the file elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from proctor import workflow

Yields = Generator[Any, Any, Any]


def _never() -> Any:
    raise AssertionError("a recorded side effect is not drawn again")


@workflow.defn(name="tests.replay.local-activity-cold-result")
class LocalColdResult:
    def run(self, ctx: Any) -> Yields:
        return (yield ctx.local_activity("golden.local", []))


@workflow.defn(name="tests.replay.prepared-local-cold-results")
class PreparedColdResults:
    def run(self, ctx: Any) -> Yields:
        first = yield ctx.local_activity("prepared.first", [])
        return [first, (yield ctx.local_activity("prepared.second", []))]


@workflow.defn(name="tests.replay.recorded-side-effect")
class RecordedSideEffect:
    def run(self, ctx: Any) -> Yields:
        return (yield ctx.side_effect(_never))


@workflow.defn(name="tests.replay.paged-recorded-side-effects")
class TwoRecordedSideEffects:
    def run(self, ctx: Any) -> Yields:
        first = yield ctx.side_effect(_never)
        return first + (yield ctx.side_effect(_never))


@workflow.defn(name="tests.replay.pending-operation")
class PendingOperation:
    def __init__(self) -> None:
        self.amount = 0
        self.released = False

    @workflow.signal("increment")
    def increment(self, amount: int) -> None:
        self.amount += amount

    @workflow.signal("release")
    def release(self) -> None:
        self.released = True

    @workflow.query("total")
    def total(self) -> int:
        return self.amount

    def run(self, ctx: Any, kind: str) -> Yields:
        first = yield ctx.schedule_activity("echo", ["sample"])
        if kind == "timer":
            yield ctx.sleep(120)
        elif kind == "activity":
            yield ctx.schedule_activity("work", [first])
        else:
            yield ctx.start_child_workflow("child", [first])
        yield ctx.wait_condition(lambda: self.released, key="release")
        return self.amount


@workflow.defn(name="tests.patch.repeated")
class RepeatedPatch:
    def run(self, ctx: Any, repeat: bool = True) -> Yields:
        first = yield ctx.patched("same")
        second = (yield ctx.patched("same")) if repeat else first
        return [first, second, (yield ctx.schedule_activity("old", []))]


@workflow.defn(name="tests.patch.cancellation")
class CancelledPatch:
    def run(self, ctx: Any) -> Yields:
        decisions = [(yield ctx.patched("same")), (yield ctx.patched("same"))]
        try:
            yield ctx.schedule_activity("old", [])
        except workflow.WorkflowCancelled:
            return [decisions, "cancelled"]
        return "not cancelled"


@workflow.defn(name="tests.replay.post-condition-receivers")
class PostConditionReceivers:
    def __init__(self) -> None:
        self.gate_open = False
        self.note: Any = None
        self.finished = False

    @workflow.signal("open-gate")
    def open_gate(self) -> None:
        self.gate_open = True

    @workflow.update("set-note")
    def set_note(self, note: str) -> str:
        self.note = note
        return note

    @workflow.signal("finish")
    def finish(self) -> None:
        self.finished = True

    def run(self, ctx: Any) -> Yields:
        yield ctx.wait_condition(lambda: self.gate_open, key="gate")
        result = yield ctx.schedule_activity("after-condition", [])
        yield ctx.wait_condition(lambda: self.note is not None and self.finished, key="post-activity-receivers")
        return {"activity_result": result, "note": self.note, "finished": self.finished}


@workflow.defn(name="golden.single-activity")
class SingleActivity:
    def run(self, ctx: Any, name: str) -> Yields:
        return (yield ctx.schedule_activity("golden.greet", [name]))


@workflow.defn(name="golden.signal-wait")
class SignalWait:
    def __init__(self) -> None:
        self.approved_by: Any = None

    @workflow.signal("approve")
    def approve(self, approved_by: str) -> None:
        self.approved_by = approved_by

    def run(self, ctx: Any) -> Yields:
        approved = yield ctx.wait_condition(lambda: self.approved_by is not None, key="approval", timeout=30)
        if not approved:
            return "timed-out"
        result = yield ctx.schedule_activity("golden.notify", [self.approved_by])
        return {"approved_by": self.approved_by, "activity_result": result}


@workflow.defn(name="golden.timeout-wait")
class TimeoutWait:
    def run(self, ctx: Any) -> Yields:
        satisfied = yield ctx.wait_condition(lambda: False, key="approval", timeout=5)
        return "satisfied" if satisfied else "timed-out"


@workflow.defn(name="golden.version-marker")
class VersionMarker:
    def run(self, ctx: Any) -> Yields:
        version = yield ctx.get_version("golden-version", 1, 2)
        path = "golden.version-new-path" if version >= 2 else "golden.version-old-path"
        return (yield ctx.schedule_activity(path, []))


@workflow.defn(name="golden.saga-compensation")
class SagaCompensation:
    def run(self, ctx: Any, order_id: str) -> Yields:
        reservation = yield ctx.schedule_activity("golden.reserve-inventory", [order_id])
        try:
            charge = yield ctx.start_child_workflow("golden.charge-customer", [order_id, reservation])
        except workflow.ChildWorkflowFailed as error:
            return (yield ctx.schedule_activity("golden.release-inventory", [order_id, reservation, str(error)]))
        return {"reservation_id": reservation, "charge_id": charge}


@workflow.defn(name="tests.replay.yielded-continue-after-metadata")
class YieldedContinue:
    def run(self, ctx: Any) -> Yields:
        yield ctx.upsert_search_attributes({"stage": "continued"})
        yield ctx.upsert_memo({"added": "from-upsert", "overwritten": "after"})
        yield ctx.continue_as_new("successor")


@workflow.defn(name="tests.replay.workflow-memo-author")
class MemoAuthor:
    def run(self, ctx: Any) -> Yields:
        yield ctx.upsert_memo(
            {
                "binary": b"same",
                "double": 7.0,
                "invalid_binary": b"\xff\x00",
                "long": 7,
                "nested": {"beta": 2, "alpha": 1},
                "text": "same",
            }
        )
        return "memo-replayed"


@workflow.defn(name="tests.replay.selection-await-marker")
class SelectionAwaitMarker:
    def run(self, ctx: Any) -> Yields:
        winner = yield ctx.select(
            {"slow": ctx.schedule_activity("slow-activity", []), "fast": ctx.schedule_activity("fast-activity", [])}
        )
        return [winner.key, winner.value]


@workflow.defn(name="tests.replay.parallel-metadata-producer")
class ParallelMetadata:
    def run(self, ctx: Any) -> Yields:
        yield [
            ctx.schedule_activity("golden.activity-one", []),
            ctx.start_child_workflow("golden.child", []),
            ctx.start_timer(1),
        ]


@workflow.defn(name="tests.replay.parallel-result-binding")
class ParallelResultBinding:
    def run(self, ctx: Any) -> Yields:
        results = yield [ctx.schedule_activity("position-first", []), ctx.schedule_activity("position-second", [])]
        return {"results": results}


@workflow.defn(name="tests.replay.update-signal-condition-timer")
class UpdateSignalConditionTimer:
    def __init__(self) -> None:
        self.message: Any = None
        self.marker: Any = None
        self.result: Any = None

    @workflow.update("set_message")
    def set_message(self, message: str) -> dict[str, Any]:
        self.message = message
        return {"message": message}

    @workflow.signal("condition_ready")
    def condition_ready(self, marker: str) -> None:
        self.marker = marker

    @workflow.signal("finish")
    def finish(self, result: Any) -> None:
        self.result = result

    def _both(self) -> bool:
        return self.message is not None and self.marker is not None

    def run(self, ctx: Any) -> Yields:
        yield ctx.sleep(1)
        successful = yield ctx.schedule_activity("successful", [{"attempt": 1}])
        failure_type = None
        try:
            yield ctx.schedule_activity("non-retryable-failure", [])
        except workflow.ActivityFailed as exc:
            failure_type = exc.exception_type
        completed = yield ctx.wait_condition(self._both, key="update-and-signal", timeout=1)
        yield ctx.wait_condition(self._both, key="accepted-receivers")
        after = yield ctx.schedule_activity("after-condition", [self.message, self.marker])
        yield ctx.wait_condition(lambda: self.result is not None, key="finish", timeout=30)
        return {
            "status": "completed",
            "successful": successful,
            "failure_type": failure_type,
            "message": self.message,
            "signal_marker": self.marker,
            "condition_completed": completed,
            "after_condition": after,
            "result": self.result,
        }


@workflow.defn(name="tests.replay.message-stream-consumer")
class MessageStreamConsumer:
    def run(self, ctx: Any) -> Yields:
        messages = yield from ctx.message_stream("orders").receive(2)
        return [
            {"message_id": message.message_id, "position": message.position, "arguments": message.arguments}
            for message in messages
        ]


@workflow.defn(name="tests.replay.workflow-stream-author")
class WorkflowStreamAuthor:
    def run(self, ctx: Any) -> Yields:
        yield ctx.append_workflow_stream("output", [workflow.WorkflowStreamAppendItem({"message": "once"})])
        yield ctx.close_workflow_stream("output")
        return "done"


@workflow.defn(name="example.local-retry")
class LocalRetry:
    def run(self, ctx: Any, name: str) -> Yields:
        greeting = yield ctx.local_activity(
            "example.greet", [name], retry_policy={"max_attempts": 2, "backoff_seconds": [0]}
        )
        return {"greeting": greeting}


@workflow.defn(name="example.remote-timer-signal")
class RemoteTimerSignal:
    def __init__(self) -> None:
        self.approved_by: Any = None

    @workflow.signal("approve")
    def approve(self, approved_by: str) -> None:
        self.approved_by = approved_by

    def run(self, ctx: Any, order: str) -> Yields:
        reservation = yield ctx.schedule_activity("example.reserve", [order])
        yield ctx.sleep(5)
        in_time = yield ctx.wait_condition(lambda: self.approved_by is not None, key="approval", timeout=60)
        return {"reservation": reservation, "approved_by": self.approved_by, "in_time": in_time}
