"""``proctor replay``: a saved history against the workflow code of a module, without a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from proctor import workflow
from proctor.cli.failures import NONDETERMINISM
from proctor.cli.loading import load
from proctor.cli.options import json_option
from proctor.core.replay import Commands, Decision, LocalCall, WorkflowDefinition
from proctor.core.replay.authoring import wire_form
from proctor.core.replay.offline import task_of_document, verify
from proctor.errors import EntryArgumentsMismatch, NonDeterminismError, UsageError

_GZIP = b"\x1f\x8b"


@click.command()
@click.argument("file", metavar="HISTORY.json", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--module", required=True, help="The module that holds the workflow, such as myapp.workflows.")
@click.option("--workflow", "name", required=True, help="The workflow's name, as @workflow.defn gives it.")
@click.option("--args", "arguments", help="The start arguments as a JSON list, when the history does not hold them.")
@json_option
def replay(file: Path, module: str, name: str, arguments: str | None, *, as_json: bool) -> int:
    """Replay a saved history and say whether the code still does what it records.

    HISTORY.json is what `proctor history ID --out FILE` writes: a list of events, or an object with "events"; - reads
    it from standard input. Exit codes: 0 deterministic, 4 nondeterminism (with sequence, expected and found), 2
    unreadable.
    """
    definition = _definition(module, name)
    task = task_of_document(_read(file), workflow_type=definition.name)
    if not task.history:
        raise UsageError(f"the history '{file}' has no events; save one with `proctor history ID --out FILE`")
    if arguments is not None:
        task = replace(task, arguments=wire_form.envelope(_list(arguments)))
    try:
        decision = verify(definition, task)
    except EntryArgumentsMismatch as exc:
        raise UsageError(f"{exc}; give the start arguments with --args if the history does not hold them") from exc
    except NonDeterminismError as exc:
        if not as_json:
            raise
        facts = {"sequence": exc.sequence, "expected": exc.expected, "found": exc.found, "message": str(exc)}
        click.echo(json.dumps({"verdict": "nondeterminism", "workflow": definition.name} | facts))
        return NONDETERMINISM
    _tell(definition, len(task.history), decision, as_json=as_json)
    return 0


def _tell(definition: WorkflowDefinition, events: int, decision: Decision, *, as_json: bool) -> None:
    follows = _follows(decision)
    if as_json:
        facts = {"verdict": "deterministic", "workflow": definition.name, "events": events, "follows": follows}
        click.echo(json.dumps(facts))
    else:
        then = ", ".join(follows) or "it waits for what is at work"
        click.echo(f"deterministic: workflow {definition.name!r} replays its {events} events; then: {then}")


def _follows(decision: Decision) -> list[str]:
    """Name what the code asks for behind the end of the history."""
    if isinstance(decision, Commands):
        return [str(command["type"]) for command in decision.commands]
    if isinstance(decision, LocalCall):
        return [*(str(command["type"]) for command in decision.prefix), f"local activity {decision.activity_type}"]
    return [type(decision).__name__]


def _definition(module: str, name: str) -> WorkflowDefinition:
    found = [workflow.definition_of(cls) for cls in load([module]).workflows]
    named = [definition for definition in found if definition.name == name]
    if len(named) > 1:
        classes = " and ".join(f"{each.cls.__module__}.{each.cls.__qualname__}" for each in named)
        raise UsageError(f"module '{module}' has more than one workflow {name!r}: {classes}; name the module of one")
    if named:
        return named[0]
    known = ", ".join(sorted(definition.name for definition in found)) or "none"
    raise UsageError(f"module '{module}' has no workflow {name!r}; it has {known}")


def _read(file: Path) -> object:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as exc:
        raise UsageError(f"the history '{file}' cannot be read: {exc.strerror}; give the path of a file") from exc
    if content.startswith(_GZIP):
        raise UsageError(f"the history '{file}' is compressed; unpack it first")
    if not content.strip():
        raise UsageError(f"the history '{file}' is empty; save one with `proctor history ID --out FILE`")
    try:
        return json.loads(content)  # in any of the encodings of Unicode, with or without a mark in front
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            f"the history '{file}' is no JSON ({exc}); save one with `proctor history ID --out FILE`"
        ) from exc


def _list(text: str) -> Sequence[Any]:
    try:
        values = json.loads(text)
    except ValueError as exc:
        raise UsageError(f"--args is no JSON ({exc}); give a list, such as --args '[\"a\", 1]'") from exc
    if not isinstance(values, list):
        raise UsageError("--args is a JSON list of the start arguments, such as --args '[\"a\", 1]'")
    return values
