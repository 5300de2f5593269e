"""One workflow file, run by the official replayer and by ours over the same histories: the same commands everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.simulated_server import SimulatedServer
from portable_files import OFFICIAL, classes, conclude, definitions, load, plain
from proctor.core import codec
from proctor.core.replay import Boundary, Decision, WorkflowDefinition
from proctor.errors import NonDeterminismError

official = pytest.importorskip("durable_workflow", reason="the official SDK is a development dependency")

OURS = definitions(load("commands"))
THEIRS = {cls.__workflow_name__: cls for cls in classes(load("commands", OFFICIAL), "__workflow_name__")}
SIGNALS: dict[str, dict[str, Any]] = {"conditions": {"add": [1]}, "repeated-waits": {"add": [1]}, "cancellable": {}}
UPDATES: dict[str, dict[str, Any]] = {"conditions": {"note": ["n"]}}
STEPS = 14


def ours(definition: WorkflowDefinition, history: list[dict[str, Any]]) -> Any:
    try:
        return seen(conclude(definition, history, [], queue="queue", command_id="command-1"))
    except NonDeterminismError as exc:
        return "nondeterminism", exc.sequence


def seen(decision: Decision) -> Any:
    if isinstance(decision, Boundary):
        return [*map(portable, decision.prefix), boundary_fields(decision)]
    return [portable(command) for command in plain(decision)]


def boundary_fields(boundary: Boundary) -> dict[str, Any]:
    return {
        "type": "boundary",
        "sequence": boundary.sequence,
        "call_kind": boundary.call_kind,
        "sequence_span": boundary.span,
        "operation_sequence": boundary.operation_sequence,
        "operation_sequence_span": boundary.operation_span,
    }


def theirs(name: str, history: list[dict[str, Any]]) -> Any:
    try:
        outcome = official.workflow.replay(
            THEIRS[name],
            history,
            [],
            workflow_id="workflow-1",
            run_id="run-1",
            workflow_command_id="command-1",
            payload_codec="avro",
        )
    except official.NonDeterministicReplayError as exc:
        return "nondeterminism", exc.workflow_sequence
    commands: list[dict[str, Any]] = []
    for command in outcome.commands:
        if type(command).__name__ == "RecordLocalActivity":
            commands.append(
                {
                    "type": "record_local_activity",
                    "activity_type": command.activity_type,
                    "arguments": command.arguments,
                }
            )
        else:
            wire = command.to_server_command("queue")
            official.workflow._apply_parallel_group_metadata(command, wire)
            commands.append(portable(wire))
    intent = outcome.cancellation_delivery
    if intent is not None:
        fields = ("sequence", "call_kind", "sequence_span", "operation_sequence", "operation_sequence_span")
        commands.append({"type": "boundary"} | {field: getattr(intent, field) for field in fields})
    return commands


def portable(command: dict[str, Any]) -> dict[str, Any]:
    """Decode payloads, and leave out what names the package an exception class lives in."""
    readable = {
        key: codec.decode_value(value, None) if isinstance(value, dict) and set(value) == {"codec", "blob"} else value
        for key, value in command.items()
    }
    for key in ("result", "request_payload"):
        if isinstance(readable.get(key), str) and readable[key].startswith("wwHio"):
            readable[key] = codec.decode(readable[key])
    readable.pop("exception_class", None)
    if readable.get("exception_type") == "SagaCompensationFailed":
        readable |= {"message": "", "exception": readable["exception"] | {"message": ""}}  # each has its own words
    if str(readable.get("condition_key")).startswith("message-stream:"):
        readable.pop("condition_definition_fingerprint", None)  # of a predicate that belongs to the worker
    cleaned: dict[str, Any] = without_classes(readable)
    return cleaned


def without_classes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_classes(item) for key, item in value.items() if key != "class"}
    return value


def deliverable(command: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in command.items() if key not in ("type",) and value is not None}
    if fields["call_kind"] != "selection_handle":
        fields.pop("operation_sequence_span", None)
    return fields


def play(name: str, data: st.DataObject, *, cancel: bool) -> list[dict[str, Any]]:
    """Let a run happen, comparing both replayers at every task; give its history."""

    def choose(options: list[Any]) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]

    server = SimulatedServer(choose, reopens=choose([False, True]))
    server.start(name)
    for _ in range(STEPS):
        commands = ours(OURS[name], server.events)
        assert commands == theirs(name, server.events)
        if commands and commands[-1]["type"] == "boundary":
            boundary = commands.pop()
            if commands:
                server.complete([dict(command) for command in commands])
                continue
            server.deliver(deliverable(boundary))
            continue
        server.complete([dict(command) for command in commands])
        if server.closed:
            break
        if cancel and not server.requested and choose([False, True]):
            server.request_cancellation()
        elif name == "streams":
            server.message()
        else:
            server.advance(SIGNALS.get(name, {}), UPDATES.get(name, {}))
    return server.events


@pytest.mark.parametrize("name", sorted(OURS))
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_a_run_gets_the_same_commands_from_both_at_every_task(name: str, data: st.DataObject) -> None:
    history = play(name, data, cancel=name == "cancellable")
    cut = data.draw(st.integers(2, len(history)))

    assert ours(OURS[name], history[:cut]) == theirs(name, history[:cut])


def test_the_portable_workflows_are_enough_to_cover_the_api() -> None:
    assert len(OURS) >= 12
    assert set(OURS) == set(THEIRS)


def test_names_that_files_import_beside_the_modules_are_there_under_the_same_names() -> None:
    import proctor
    from proctor import workflow

    for name in sorted(proctor._WORKFLOW_NAMES):
        assert hasattr(official, name), name
        assert getattr(proctor, name) is getattr(workflow, name)
