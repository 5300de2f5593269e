"""The same generator-style programs and histories, replayed here and by the published SDK, conclude the same."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import HistoryWriter
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, LocalCall, ReplayTask, replay
from proctor.errors import NonDeterminismError

official = pytest.importorskip("durable_workflow", reason="the official SDK is a development dependency")


@dataclass(frozen=True)
class Step:
    """One authored call; `outcome` is what history says of it, `caught` whether the code goes on after a failure."""

    kind: str
    name: str = "a"
    outcome: str = "completed"
    caught: bool = True


def program(steps: list[Step], failure: type[BaseException]) -> Any:
    def run(self: Any, ctx: Any) -> Generator[Any, Any, Any]:
        seen: list[Any] = []
        for step in steps:
            if step.kind == "local":
                try:
                    seen.append((yield ctx.local_activity(step.name, [len(seen)])))
                except failure as exc:
                    if not step.caught:
                        raise
                    seen.append([str(exc), exc.__dict__["exception_type"], exc.__dict__["step_sequence"]])
            elif step.kind == "effect":
                seen.append((yield ctx.side_effect(lambda: "drawn")))
            else:
                seen.append((yield ctx.patched(step.name)))
        return [*seen, str(ctx.uuid4())]

    return run


@dataclass
class Recording:
    """What an honest server records while a program runs."""

    writer: HistoryWriter = field(default_factory=lambda: HistoryWriter(prepared=False))
    position: int = 1
    decided: set[str] = field(default_factory=set)

    def record(self, step: Step) -> None:
        if step.kind == "patch":
            if step.name in self.decided:
                return
            self.decided.add(step.name)
            self.writer.marker(self.position, step.name, 1)
        elif step.kind == "effect":
            self.writer.side_effect(self.position, "recorded")
        else:
            self._local(step)
        self.position += 1

    def _local(self, step: Step) -> None:
        self.writer.scheduled(self.position, step.name).started(self.position, step.name)
        if step.outcome == "completed":
            self.writer.completed(self.position, step.name, {"n": self.position})
        elif step.outcome == "failed":
            self.writer.failed(self.position, step.name, message="no", exception_type="OSError")
        else:
            self.writer.timed_out(self.position, step.name, message="late")


def record(steps: list[Step]) -> list[dict[str, Any]]:
    recording = Recording()
    for step in steps:
        recording.record(step)
        if step.kind == "local" and step.outcome != "completed" and not step.caught:
            break
    return recording.writer.events


def ours(steps: list[Step], history: list[dict[str, Any]]) -> Any:
    cls = workflow.defn(name="p")(type("P", (), {"run": program(steps, workflow.ActivityFailed)}))
    task = ReplayTask("workflow-1", "run-1", "p", "avro", codec.envelope([]), history)
    try:
        decision = replay(workflow.definition_of(cls), task)
    except NonDeterminismError as exc:
        return "nondeterminism", exc.sequence
    if isinstance(decision, Commands):
        return [_portable(command) for command in decision.commands]
    assert isinstance(decision, LocalCall)
    call = ("record_local_activity", decision.activity_type, decision.arguments)
    return [*(_portable(command) for command in decision.prefix), call]


def theirs(steps: list[Step], history: list[dict[str, Any]]) -> Any:
    cls = official.workflow.defn(name="p")(type("P", (), {"run": program(steps, official.ActivityFailed)}))
    replayer = official.workflow.Replayer(workflows=[cls])
    try:
        outcome = replayer.replay(history, start_input=[], workflow_type="p", run_id="run-1", payload_codec="avro")
    except official.NonDeterministicReplayError as exc:
        return "nondeterminism", exc.workflow_sequence
    seen: list[Any] = []
    for command in outcome.commands:
        if type(command).__name__ == "RecordLocalActivity":
            seen.append(("record_local_activity", command.activity_type, list(command.arguments)))
        else:
            seen.append(_portable(command.to_server_command("queue")))
    return seen


def _portable(command: dict[str, Any]) -> dict[str, Any]:
    """Leave out what names the package an exception class lives in."""
    exception = {key: value for key, value in command.get("exception", {}).items() if key != "class"}
    return {key: value for key, value in command.items() if key != "exception_class"} | {"exception": exception}


LOCALS = st.builds(
    Step, st.just("local"), st.sampled_from("ab"), st.sampled_from(["completed", "failed", "timed out"]), st.booleans()
)
STEPS = st.lists(LOCALS | st.builds(Step, st.sampled_from(["effect", "patch"]), st.sampled_from("xy")), max_size=5)


@given(STEPS, st.data())
def test_every_prefix_of_an_honest_history_leads_to_the_same_commands(steps: list[Step], data: st.DataObject) -> None:
    history = record(steps)
    cut = history[: data.draw(st.integers(2, len(history)))]

    assert ours(steps, cut) == theirs(steps, cut)


@given(STEPS, STEPS)
def test_changed_code_is_accepted_or_refused_at_the_same_sequence(recorded: list[Step], deployed: list[Step]) -> None:
    history = record(recorded)

    assert ours(deployed, history) == theirs(deployed, history)
