"""The cost of a replay grows with its history and no faster, for the shapes of history that are no plain sequence."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Boundary, Commands, ReplayTask, replay

Yields = Generator[Any, Any, Any]
RESULT = codec.envelope({"number": 7})
SMALL, TIMES = 500, 6
QUADRATIC = TIMES * TIMES * 0.6
"""What grows with the square of the history costs 36 times as much; linear cost is 6 times, and machines are noisy."""


def entry(kind: str, base: int, size: int, index: int, **more: Any) -> dict[str, Any]:
    return {
        "parallel_group_id": f"{kind}:{base}:{size}",
        "parallel_group_kind": more.pop("of", "activity"),
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
    } | more


def member(*path: dict[str, Any]) -> dict[str, Any]:
    return {**path[-1], "parallel_group_path": list(path)}


def group(writer: HistoryWriter, base: int, size: int) -> None:
    for event_type in ("ActivityScheduled", "ActivityCompleted"):
        for index in range(size):
            place = member(entry("parallel-activities", base, size, index))
            writer.add(event_type, sequence=base + index, activity_type="work", result=RESULT, **place)


def groups(writer: HistoryWriter, count: int) -> None:
    for number in range(count // 2):
        group(writer, 1 + 2 * number, 2)


def one_group(writer: HistoryWriter, count: int) -> None:
    for base in range(1, count, 500):
        group(writer, base, 500)


def selections(writer: HistoryWriter, count: int) -> None:
    for base in range(1, 2 * count, 2):
        places = [
            member(
                entry(
                    "select-calls",
                    base,
                    2,
                    index,
                    of="mixed",
                    parallel_group_mode="select",
                    selection_member_key=index,
                    selection_member_index=index,
                    selection_member_base_sequence=base + index,
                    selection_member_size=1,
                    selection_member_kind=kind,
                )
            )
            for index, kind in enumerate(("activity", "timer"))
        ]
        work = {"sequence": base, "activity_type": "work", "activity_execution_id": f"a-{base}"} | places[0]
        writer.add("ActivityScheduled", **work)
        writer.add("TimerScheduled", sequence=base + 1, timer_id=f"t-{base}", delay_seconds=5, **places[1])
        writer.add("ActivityCompleted", result=RESULT, **work)
        told = {"selection_group_id": f"select-calls:{base}:2", "member_size": 1}
        writer.add(
            "SelectionResolved",
            selection_group_base_sequence=base,
            selection_group_size=2,
            member_key=0,
            member_index=0,
            member_base_sequence=base,
            operation_kind="activity",
            operation_identity=f"a-{base}",
            outcome="completed",
            resolution_event_id=writer.events[-1]["id"],
            resolution_event_type="ActivityCompleted",
            **told,
        )
        writer.add(
            "SelectionOperationCancelled",
            member_key=1,
            member_index=1,
            member_base_sequence=base + 1,
            operation_kind="timer",
            operation_identity=f"t-{base}",
            **told,
        )


def requested(writer: HistoryWriter, count: int) -> None:
    selections(writer, count)
    writer.add(
        "CooperativeCancellationRequested",
        workflow_command_id="Q",
        workflow_run_id="run-1",
        cleanup_deadline_at="2026-01-02T03:14:05Z",
    )


def signals(writer: HistoryWriter, count: int) -> None:
    writer.add("ActivityScheduled", sequence=1, activity_type="work")
    for _ in range(count):
        writer.add("SignalReceived", signal_name="tell", arguments=RESULT)
    writer.add("ActivityCompleted", sequence=1, activity_type="work", result=RESULT)


def messages(writer: HistoryWriter, count: int) -> None:
    for position in range(1, count + 1):
        body = {
            "schema": "durable-workflow.v2.message-stream.message",
            "stream_name": "orders",
            "message_id": f"m-{position}",
            "position": position,
            "payload_envelope": codec.envelope([position]),
        }
        writer.add("SignalReceived", signal_name="__durable_workflow_message_stream", arguments=codec.envelope([body]))
    writer.side_effect(1, 1)


def waits(writer: HistoryWriter, count: int) -> None:
    for number in range(count):
        wait = {"sequence": number + 1, "condition_wait_id": f"w-{number}", "condition_key": "told"}
        writer.add("ConditionWaitOpened", **wait)
        writer.add("SignalReceived", signal_name="tell", arguments=RESULT)
        writer.add("ConditionWaitSatisfied", **wait)


def versions(writer: HistoryWriter, count: int) -> None:
    for number in range(count):
        writer.marker(2 * number + 1, f"change-{number}", 1)
        writer.marker(2 * number + 2, f"change-{number}", 1)


@workflow.defn(name="costly")
class Costly:
    def __init__(self) -> None:
        self.told = 0

    @workflow.signal("tell")
    def tell(self, _told: Any) -> None:
        self.told += 1

    def run(self, ctx: Any, shape: str, count: int) -> Yields:
        work = [ctx.schedule_activity("work") for _ in range(500)]
        if shape == "groups":
            for _ in range(count // 2):
                yield work[:2]
        elif shape == "one_group":
            for _ in range(0, count, 500):
                yield work
        elif shape in ("selections", "requested"):
            for _ in range(count):
                chosen = yield ctx.select([work[0], ctx.sleep(5)])
                yield chosen.handles[1].cancel()
            if shape == "requested":
                yield ctx.sleep(1)
        elif shape == "signals":
            yield work[0]
            yield ctx.wait_condition(lambda: self.told >= count)
        elif shape == "messages":
            yield ctx.side_effect(lambda: 1)
            orders = ctx.message_stream("orders")
            for _ in range(count):
                yield from orders.receive_one()
        elif shape == "waits":
            yield ctx.wait_condition(lambda: self.told >= count, key="told")
        else:
            for number in range(count):
                yield ctx.patched(f"change-{number}")


def cost(shape: Callable[[HistoryWriter, int], None], count: int) -> float:
    writer = HistoryWriter()
    shape(writer, count)
    arguments = codec.envelope([shape.__name__, count])
    task = ReplayTask("workflow-1", "run-1", "costly", "avro", arguments, writer.events)
    seconds = []
    for _ in range(3):
        gc.collect()
        before = time.process_time()
        decision = replay(workflow.definition_of(Costly), task)
        seconds.append(time.process_time() - before)
    if shape is requested:
        assert isinstance(decision, Boundary)
    else:
        assert isinstance(decision, Commands)
        assert [command["type"] for command in decision.commands] == ["complete_workflow"]
    return min(seconds)


@pytest.mark.parametrize(
    "shape",
    [groups, one_group, selections, requested, signals, messages, waits, versions],
    ids=lambda shape: str(shape.__name__),
)
def test_six_times_the_history_costs_nowhere_near_its_square(shape: Callable[[HistoryWriter, int], None]) -> None:
    assert cost(shape, SMALL * TIMES) < QUADRATIC * cost(shape, SMALL)
