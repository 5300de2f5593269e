"""The reference fixtures: every history of the corpus leads to the verdict its README states."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from portable_files import conclude, definitions, load, plain
from proctor.core import codec
from proctor.core.replay import Commands, ReplayTask, answer_query, replay, task_of_history
from proctor.errors import ExternalPayloadUnsupported, NonDeterminismError, PayloadError

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"
WORKFLOWS = definitions(load("reference"))
COMMAND_TYPES = {
    "complete_workflow": "CompleteWorkflow",
    "fail_workflow": "FailWorkflow",
    "schedule_activity": "ScheduleActivity",
    "start_timer": "StartTimer",
    "start_child_workflow": "StartChildWorkflow",
    "continue_as_new": "ContinueAsNew",
    "open_condition_wait": "WaitCondition",
    "record_side_effect": "RecordSideEffect",
    "record_local_activity": "RecordLocalActivity",
    "upsert_memo": "UpsertMemo",
    "upsert_search_attributes": "UpsertSearchAttributes",
    "record_version_marker": "RecordVersionMarker",
    "start_service_operation": "NexusServiceCall",
}


def cases(folder: str) -> list[Path]:
    found = sorted((FIXTURES / folder).glob("*.json"))
    return found or [FIXTURES / folder / "missing.json"]  # the fixture `shared_fixtures` then skips or fails


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_text())
    return body


def typed(commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"command_type": COMMAND_TYPES[command["type"]]} | command for command in commands]


def includes(observed: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(observed, dict) and all(
            key in observed and includes(observed[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(observed) == len(expected) and all(map(includes, observed, expected))
    return bool(observed == expected)


def observe(case: dict[str, Any]) -> dict[str, Any]:
    about = case["workflow"]
    definition = WORKFLOWS[about["type"]]
    history = case.get("history", [])
    identities = {"workflow_id": about.get("workflow_id", ""), "run_id": about.get("run_id", "")}
    if "query" in about:
        task = task_of_history(history, workflow_type=definition.name)
        query = about["query"]
        return {"query_result": answer_query(definition, task, query["name"], query.get("arguments"))}
    arguments = about.get("input")
    if arguments is None:
        started = task_of_history(history, workflow_type=definition.name)
        arguments = codec.decode_arguments(started.arguments, "avro")
    decision = conclude(definition, history, arguments, **identities)
    commands = typed(plain(decision))
    observation: dict[str, Any] = {"command_sequence": commands}
    if isinstance(decision, Commands):
        observation["message_stream_cursors"] = [
            {"stream_name": cursor.stream_name, "through_position": cursor.position} for cursor in decision.cursors
        ]
        observation["message_stream_waits"] = [
            {"stream_name": wait.stream_name, "after_position": wait.position} for wait in decision.stream_waits
        ]
    return observation | (commands[0] if len(commands) == 1 else {})


@pytest.mark.parametrize("path", cases("replay_regressions"), ids=lambda path: path.stem)
def test_a_replay_regression_keeps_its_verdict(shared_fixtures: Path, path: Path) -> None:
    case = read(path)
    expected = case["expected"]
    if "expected_replay_error" in case:
        told = case["expected_replay_error"]
        with pytest.raises(NonDeterminismError, match=told["message_contains"]) as refused:
            observe(case)
        assert refused.value.sequence == told["workflow_sequence"]
    elif "error" in expected:
        with pytest.raises(PayloadError, match=expected["error"]):
            observe(case)
    else:
        observed = observe(case)
        assert includes(observed, expected), observed
        assert includes(observed["command_sequence"], case.get("command_sequence", observed["command_sequence"]))


@pytest.mark.parametrize("path", cases("golden_history"), ids=lambda path: path.stem)
def test_a_golden_history_leads_to_its_command(shared_fixtures: Path, path: Path) -> None:
    for case in read(path)["cases"]:
        (command,) = typed(plain(conclude(WORKFLOWS[case["workflow_type"]], case["history"], case["start_input"])))

        expected = case["expected"]
        assert {key: command[key] for key in expected} == expected


@pytest.mark.parametrize("path", cases("examples"), ids=lambda path: path.stem)
def test_an_example_history_leads_to_its_commands_at_every_prefix(shared_fixtures: Path, path: Path) -> None:
    case = read(path)
    about, history = case["workflow"], case["history"]
    definition = WORKFLOWS[about["type"]]
    prefixes = {entry["history_prefix"]: entry["commands"] for entry in case.get("expected_by_prefix", [])}

    (command,) = typed(plain(conclude(definition, history, about["input"])))
    assert (command["command_type"], command["result"]) == tuple(case["expected"].values())
    for length, types in prefixes.items():
        seen = plain(conclude(definition, history[:length], about["input"]))
        assert [command["type"] for command in seen] == types


@pytest.mark.parametrize("path", cases("codec_regressions"), ids=lambda path: path.stem)
def test_a_codec_regression_keeps_its_verdict(shared_fixtures: Path, path: Path) -> None:
    case = read(path)
    wire = case["framing"]["wire_base64"]
    if case["failure_policy"]["operation"] == "round_trip":
        assert codec.encode(codec.decode(wire)) == wire
        return
    text = base64.b64decode(wire).decode()
    given: Any = json.loads(text) if case["framing"]["encoding"] == "utf8-json-envelope" else text
    with pytest.raises(PayloadError) as refused:
        codec.decode_value(given, case["protocol"]["codec"])
    error = case["failure_policy"]["error"]
    assert error in (refused.value.category, getattr(refused.value, "reason", None)) or isinstance(
        refused.value, ExternalPayloadUnsupported
    )


def test_a_saga_of_the_corpus_compensates_after_its_child_failed() -> None:
    history = [
        {"event_type": "ActivityCompleted", "payload": {"result": codec.encode("r-1")}},
        {"event_type": "ChildRunFailed", "payload": {"message": "card declined", "exception_class": "Declined"}},
    ]

    (command,) = plain(conclude(WORKFLOWS["golden.saga-compensation"], history, ["order-1"]))

    assert (command["activity_type"], command["arguments"]) == (
        "golden.release-inventory",
        ["order-1", "r-1", "card declined"],
    )


def test_a_golden_source_without_a_codec_is_rejected() -> None:
    definition = WORKFLOWS["golden.single-activity"]

    with pytest.raises(PayloadError, match="unsupported_payload_codec"):
        replay(definition, ReplayTask("w", "r", definition.name, None, codec.envelope(["Ada"]), []))
