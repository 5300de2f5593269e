"""Version markers: one decision per change and run, read from history or made by new code (replay.md §5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proctor.core.replay.answering.answers import Answer, Outcome
from proctor.core.replay.answering.boundaries import pending_delivery
from proctor.core.replay.answering.run import Replaying
from proctor.core.replay.authoring.commands import VersionDecision
from proctor.core.replay.authoring.wire_form import version_marker
from proctor.core.replay.recorded.steps import VERSION_MARKER, Step

_NUMBERS: Final = ("version", "min_supported", "max_supported")


def answer_version(run: Replaying, command: VersionDecision[Any]) -> Outcome:
    """Give the version that applies to this run, deciding it if this is the first time."""
    version = run.versions.get(command.change_id)
    if version is None:
        version = _decide(run, command)
    if not command.min_supported <= version <= command.max_supported:
        run.cursor.refuse(
            f"version {command.min_supported} to {command.max_supported} of change {command.change_id!r}",
            f"version {version}",
        )
    run.versions[command.change_id] = version
    return Answer(command.convert(version))


def skip_repeated_markers(run: Replaying) -> None:
    """Pass markers that repeat a decision, as older workers recorded them."""
    while run.versions and (step := run.cursor.answered) is not None and step.shape == VERSION_MARKER:
        decided = run.versions.get(str(step.end.get("change_id")))
        if decided is None or run.cursor.unconsumed is not step:
            return
        change_id, version = _read(run, step)
        if version != decided:
            run.cursor.refuse(f"version {decided} of {change_id!r}", f"version {version}", at=step.sequence)
        run.cursor.take(step)


def _decide(run: Replaying, command: VersionDecision[Any]) -> int:
    step = run.cursor.unconsumed
    if step is not None and step.shape == VERSION_MARKER and step is run.cursor.answered:
        change_id, version = _read(run, step)
        if change_id != command.change_id:
            run.cursor.refuse(str(command), f"version marker {change_id!r}", at=step.sequence)
        run.cursor.take(command)
        return version
    if run.uncommitted:
        return int(run.take_uncommitted(command, "record_version_marker")["version"])
    if step is not None or run.history.closed or pending_delivery(run) is not None or _selection_ahead(run):
        return -1  # the run passed this place before the change was in the code
    run.author(version_marker(command))
    return command.max_supported


def _selection_ahead(run: Replaying) -> bool:
    return len(run.history.selected) > len(run.selected & run.history.selected.keys())


def _read(run: Replaying, step: Step) -> tuple[str, int]:
    payload: Mapping[str, Any] = step.end
    change_id = payload.get("change_id")
    version, low, high = (payload.get(key) for key in _NUMBERS)
    if (
        not isinstance(change_id, str)
        or not change_id.strip()
        or type(version) is not int
        or type(low) is not int
        or type(high) is not int
    ):
        run.cursor.refuse("a version marker with its four fields", f"a malformed {step}", at=step.sequence)
    if not low <= version <= high:
        run.cursor.refuse(
            f"a supported version of {change_id!r}", f"version {version} outside {low} to {high}", at=step.sequence
        )
    return change_id, version
