"""Long histories to replay, each of the form a server records, and the workflow that replays it.

The workflows use generators, so that the same code runs under the official SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from proctor.core import codec

_STARTED_AT = "2026-01-02T03:04:05.678900Z"


class _Writer:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.add("StartAccepted", outcome="started_new")
        self.add("WorkflowStarted", workflow_type="bench")

    def add(self, event_type: str, **payload: Any) -> None:
        position = len(self.events) + 1
        self.events.append(
            {
                "id": f"event-{position:06}",
                "sequence": position,
                "event_type": event_type,
                "payload": payload,
                "recorded_at": _STARTED_AT,
            }
        )

    def activity(self, sequence: int, **more: Any) -> None:
        about = {"sequence": sequence, "activity_type": "work", "activity_execution_id": f"execution-{sequence}"} | more
        snapshot = {"id": f"execution-{sequence}", "type": "work", "status": "running", "arguments": _ARGUMENTS}
        self.add("ActivityScheduled", activity=snapshot, **about)
        self.add("ActivityStarted", attempt_number=1, activity=snapshot, **about)
        self.add("ActivityCompleted", result=_RESULT, payload_codec="avro", activity=snapshot, **about)


_ARGUMENTS = codec.encode([1, "two"])
_RESULT = codec.encode({"number": 7, "text": "what an activity gives back", "list": [1, 2, 3]})


def _activities(writer: _Writer, sequence: int) -> None:
    writer.activity(sequence)


def _local_activities(writer: _Writer, sequence: int) -> None:
    writer.activity(sequence, execution_mode="local", local_activity=True)


def _signals(writer: _Writer, sequence: int) -> None:
    wait = {"condition_wait_id": f"wait-{sequence}", "condition_key": "next", "sequence": sequence}
    writer.add("ConditionWaitOpened", **wait)
    writer.add("SignalReceived", signal_name="add", arguments=_ARGUMENTS, payload_codec="avro")
    writer.add("ConditionWaitSatisfied", **wait)


def _markers(writer: _Writer, sequence: int) -> None:
    writer.add("SideEffectRecorded", sequence=sequence, result=_RESULT)


SHAPES: dict[str, Callable[[_Writer, int], None]] = {
    "activities": _activities,
    "local_activities": _local_activities,
    "signals": _signals,
    "markers": _markers,
}
"""How one step of each kind of history is recorded."""


def build(shape: str, size: int) -> tuple[list[dict[str, Any]], int]:
    """Give a history of at least `size` events, and the number of its steps."""
    writer, steps = _Writer(), 0
    while len(writer.events) < size:
        steps += 1
        SHAPES[shape](writer, steps)
    return writer.events, steps


def define(workflow: Any, shape: str) -> Any:
    """Give the workflow class that replays `shape`, defined with the given `workflow` module."""

    @workflow.defn(name="bench")
    class Bench:
        def __init__(self) -> None:
            self.waiting = 0

        @workflow.signal("add")  # type: ignore[untyped-decorator]  # of either package
        def add(self, _number: int, _text: str) -> None:
            self.waiting += 1

        def run(self, ctx: Any, steps: int) -> Generator[Any, Any, None]:
            for _ in range(steps):
                if shape == "activities":
                    yield ctx.schedule_activity("work", [1])
                elif shape == "local_activities":
                    yield ctx.local_activity("work", [1])
                elif shape == "signals":
                    yield ctx.wait_condition(lambda: self.waiting > 0, key="next")
                    self.waiting -= 1
                else:
                    yield ctx.side_effect(lambda: 1)

    return Bench
