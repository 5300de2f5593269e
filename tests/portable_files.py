"""Runs one workflow file under Proctor or under the official SDK: only the package in its imports is changed."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from proctor import workflow
from proctor.core import codec
from proctor.core.replay import Commands, Decision, LocalCall, ReplayTask, WorkflowDefinition, replay

_FOLDER = Path(__file__).parent / "portable"
OURS, OFFICIAL = "proctor", "durable_workflow"


def text_of(name: str, package: str) -> str:
    """Give the text of ``portable/<name>.py`` with its imports taken from `package`."""
    text = (_FOLDER / f"{name}.py").read_text()
    assert f"from {OURS} import" in text
    return text.replace(f"from {OURS} import", f"from {package} import")


def load(name: str, package: str = OURS) -> types.ModuleType:
    """Load ``portable/<name>.py`` with its imports taken from `package`."""
    text = text_of(name, package)
    module = types.ModuleType(f"portable_{name}")
    sys.modules[module.__name__] = module  # dataclasses and fingerprints look themselves up by name
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


def definitions(module: types.ModuleType) -> dict[str, WorkflowDefinition]:
    """Give Proctor's definitions of a module by wire name."""
    found = (workflow.definition_of(cls) for cls in classes(module, "__proctor_workflow__"))
    return {definition.name: definition for definition in found}


def classes(module: types.ModuleType, mark: str) -> list[type[Any]]:
    """Give the workflow classes of a module."""
    return [cls for cls in vars(module).values() if isinstance(cls, type) and mark in vars(cls)]


def conclude(
    definition: WorkflowDefinition, history: list[dict[str, Any]], arguments: object = None, **more: Any
) -> Decision:
    """Replay offline; `arguments` is the list of start arguments."""
    field = None if arguments is None else codec.envelope(arguments)
    given = {"workflow_id": "workflow-1", "run_id": "run-1"} | more
    task = ReplayTask(workflow_type=definition.name, payload_codec="avro", arguments=field, history=history, **given)
    return replay(definition, task)


def plain(decision: Decision) -> list[dict[str, Any]]:
    """Give the commands of a decision with every payload decoded; an open local call counts as its record."""
    if isinstance(decision, LocalCall):
        local = {
            "type": "record_local_activity",
            "activity_type": decision.activity_type,
            "arguments": decision.arguments,
        }
        return [*map(_decoded, decision.prefix), local]
    assert isinstance(decision, Commands), decision
    return [_decoded(command) for command in decision.commands]


def _decoded(command: dict[str, Any]) -> dict[str, Any]:
    readable = dict(command)
    for key, value in command.items():
        if isinstance(value, dict) and set(value) == {"codec", "blob"}:
            readable[key] = codec.decode_value(value, None)
    if command["type"] == "record_side_effect":
        readable["result"] = codec.decode(command["result"])
    if "request_payload" in command:
        readable["request_payload"] = codec.decode(command["request_payload"])
    return readable
