"""Commands as the wire spells them (commands.md §2): one function per kind, fields only when they say something."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from proctor.core import codec
from proctor.core.replay.authoring.commands import (
    Activity,
    ChildWorkflow,
    ContinueAsNew,
    LocalActivity,
    Operation,
    Timer,
    UpsertMemo,
    UpsertSearchAttributes,
    VersionDecision,
    WaitCondition,
)
from proctor.core.replay.authoring.placing import Path
from proctor.core.replay.authoring.service import ServiceOperation
from proctor.errors import PayloadError


def encode(value: object) -> str:
    """Give the blob of a value of workflow code; PayloadError for one that has no wire form."""
    try:
        return codec.encode(value)
    except UnicodeEncodeError as exc:
        raise PayloadError("", f"text that is no Unicode cannot be stored: {exc.reason}") from exc


def envelope(value: object) -> dict[str, str]:
    """Give the envelope of a value of workflow code; PayloadError for one that has no wire form."""
    return {"codec": codec.CODEC, "blob": encode(value)}


def operation(command: Operation[Any] | ServiceOperation, queue: str | None, path: Path = ()) -> dict[str, Any]:
    """Give the wire command of an operation that starts now; `queue` is where it goes by default."""
    if isinstance(command, Activity):
        wire = _activity(command, queue)
    elif isinstance(command, Timer):
        wire = {"type": "start_timer", "delay_seconds": command.delay_seconds}
    elif isinstance(command, ChildWorkflow):
        wire = _child(command, queue)
    elif isinstance(command, WaitCondition):
        wire = _wait(command)
    elif isinstance(command, ServiceOperation):
        wire = command.to_wire(encode(command.arguments))
    else:
        raise TypeError(f"{command} is not started by a command")
    return wire | membership(path)


def membership(path: Path) -> dict[str, Any]:
    """Give the group fields of a leaf: those of its innermost group, and the whole path (commands.md §5)."""
    return {**path[-1], "parallel_group_path": [dict(entry) for entry in path]} if path else {}


def local_descriptor(command: LocalActivity, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Give what prepare and recover take (prepared-local.md §2.3), always with the same bytes."""
    return _given(
        {
            "type": "record_local_activity",
            "activity_type": command.activity_type,
            "execution_mode": "local",
            "arguments": arguments,
            "payload_codec": codec.CODEC,
        },
        retry_policy=None if command.retry_policy is None else command.retry_policy.to_wire(),
        start_to_close_timeout=command.start_to_close_timeout,
        schedule_to_close_timeout=command.schedule_to_close_timeout,
        heartbeat_timeout=command.heartbeat_timeout,
        cancellation_policy=_plain(command.cancellation_policy),
    )


def version_marker(command: VersionDecision[Any]) -> dict[str, Any]:
    """Give the marker that records the newest version (commands.md §2)."""
    return {
        "type": "record_version_marker",
        "change_id": command.change_id,
        "version": command.max_supported,
        "min_supported": command.min_supported,
        "max_supported": command.max_supported,
    }


def upsert(command: UpsertMemo | UpsertSearchAttributes) -> dict[str, Any]:
    """Give the command of a metadata upsert."""
    if isinstance(command, UpsertMemo):
        return {"type": "upsert_memo", "entries": envelope(dict(command.entries))}
    return {"type": "upsert_search_attributes", "attributes": dict(command.attributes)}


def continue_as_new(command: ContinueAsNew, queue: str | None) -> dict[str, Any]:
    """Give the terminal command that starts the next run."""
    return _given(
        {"type": "continue_as_new", "arguments": envelope(command.arguments)},
        queue=command.queue or queue,
        workflow_type=command.workflow_type,
    )


def _activity(command: Activity, queue: str | None) -> dict[str, Any]:
    return _given(
        {
            "type": "schedule_activity",
            "activity_type": command.activity_type,
            "arguments": envelope(command.arguments),
        },
        queue=command.queue or queue,
        retry_policy=command.retry_policy,
        start_to_close_timeout=command.start_to_close_timeout,
        schedule_to_start_timeout=command.schedule_to_start_timeout,
        schedule_to_close_timeout=command.schedule_to_close_timeout,
        heartbeat_timeout=command.heartbeat_timeout,
        worker_session=command.worker_session,
        cancellation_policy=_plain(command.cancellation_policy),
    )


def _child(command: ChildWorkflow, queue: str | None) -> dict[str, Any]:
    return _given(
        {
            "type": "start_child_workflow",
            "workflow_type": command.workflow_type,
            "arguments": envelope(command.arguments),
        },
        queue=command.queue or queue,
        parent_close_policy=_plain(command.parent_close_policy),
        cancellation_policy=_plain(command.cancellation_policy),
        retry_policy=command.retry_policy,
        execution_timeout_seconds=command.execution_timeout_seconds,
        run_timeout_seconds=command.run_timeout_seconds,
    )


def _wait(command: WaitCondition) -> dict[str, Any]:
    return _given(
        {"type": "open_condition_wait"},
        condition_key=command.key,
        condition_definition_fingerprint=command.fingerprint,
        timeout_seconds=command.timeout_seconds,
    )


def _given(wire: dict[str, Any], **options: object) -> dict[str, Any]:
    return wire | {key: value for key, value in options.items() if value is not None}


def _plain(policy: str | None) -> str | None:
    return None if policy is None else str(policy)


def refuse_async(value: object, what: str) -> None:
    """Raise TypeError for a coroutine where a plain value belongs; it is closed, so that nobody misses its await."""
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"{what} is a plain function, this one is async")
