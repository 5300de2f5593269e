"""Replay of recorded histories: ours in tests/golden, and those of the reference corpus that fit sequential code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.small_workflows import Steps
from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, Decision, LocalCall, ReplayTask, replay
from proctor.core.replay.offline import task_of_history

Context = workflow.WorkflowContext
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json"))


@workflow.defn(name="golden.scan-all")
class ScanAll:
    async def run(self, ctx: Context, folder: str) -> dict[str, Any]:
        found = {}
        for name in await ctx.local_activity("golden.scan", [folder]):
            found[name] = await ctx.local_activity("golden.read", [name])
        return found


@workflow.defn(name="example.local-retry")
class LocalRetry:
    async def run(self, ctx: Context, name: str) -> dict[str, Any]:
        policy = {"max_attempts": 2, "backoff_seconds": [0]}
        return {"greeting": await ctx.local_activity("example.greet", [name], retry_policy=policy)}


WORKFLOWS = {
    workflow.definition_of(cls).name: workflow.definition_of(cls)
    for cls in (
        Steps,
        ScanAll,
        LocalRetry,
    )
}


def conclude(workflow_type: str, arguments: object, history: list[dict[str, Any]]) -> Decision:
    task = ReplayTask("workflow-1", "run-1", workflow_type, "avro", arguments, history)
    return replay(WORKFLOWS[workflow_type], task)


def observed(decision: Decision) -> dict[str, Any]:
    """Give the only command, its result decoded, or the facts of the open call."""
    if isinstance(decision, Commands):
        (command,) = decision.commands
        if "result" in command:
            return command | {"result": codec.decode_value(command["result"], None)}
        return command
    assert isinstance(decision, LocalCall)
    interrupted = decision.interrupted
    return {
        "local_call": {
            "sequence": decision.sequence,
            "activity_type": decision.activity_type,
            "arguments": decision.arguments,
            "interrupted": interrupted and [interrupted.activity_execution_id, interrupted.activity_attempt_id],
            "last_heartbeat": decision.last_heartbeat,
            "attempts_started": decision.attempts_started,
            "prefix_start": decision.prefix_start,
        }
    }


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_our_golden_history_still_leads_to_its_decision(path: Path) -> None:
    golden = json.loads(path.read_text())

    seen = observed(conclude(golden["workflow_type"], golden["arguments"], golden["history"]))

    assert {key: seen.get(key) for key in golden["expected"]} == golden["expected"]


def test_there_are_golden_histories() -> None:
    assert len(GOLDEN) >= 5


@pytest.fixture
def retry_example(shared_fixtures: Path) -> dict[str, Any]:
    example: dict[str, Any] = json.loads((shared_fixtures / "examples" / "local-activity-with-retry.json").read_text())
    return example


def test_reference_example_with_a_retry_completes(retry_example: dict[str, Any]) -> None:
    task = retry_example["workflow"]

    seen = observed(conclude(task["type"], codec.envelope(task["input"]), retry_example["history"]))

    assert seen == {"type": "complete_workflow", "result": {"greeting": "hello, Ada"}}


def test_each_prefix_of_the_reference_example_says_how_far_its_attempts_got(retry_example: dict[str, Any]) -> None:
    history = retry_example["history"]
    progress = []

    for length in range(2, 8):
        call = conclude("example.local-retry", codec.envelope(["Ada"]), history[:length])
        assert isinstance(call, LocalCall)
        progress.append((call.attempts_started, call.interrupted is not None, call.last_heartbeat))

    beat = {"phase": "greeting"}
    assert progress == [
        (0, False, None),
        (0, False, None),
        (1, True, None),
        (1, False, None),
        (2, True, None),
        (2, True, beat),
    ]


def test_a_saved_history_names_its_own_input_and_identity() -> None:
    started = {
        "workflow_instance_id": "scan-1",
        "workflow_run_id": "run-9",
        "input": codec.encode(["/data"]),
        "payload_codec": "avro",
    }
    history = [{"event_type": "WorkflowStarted", "payload": started}]

    task = task_of_history(history, workflow_type="golden.scan-all")

    assert (task.workflow_id, task.run_id) == ("scan-1", "run-9")
    call = replay(WORKFLOWS["golden.scan-all"], task)
    assert isinstance(call, LocalCall)
    assert call.arguments == ["/data"]
