"""A run as one document to be kept, checked and replayed elsewhere: the history export (control-plane.md §5).

Everything but the payloads is told from the history. The checksum is over the canonical form that the contract names
`json-recursive-ksort-v1`, which other runtimes compute too: sorted keys, ASCII, numbers as PHP writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from proctor.core.external import Payload
from proctor.core.instants import format_instant
from proctor.server.rules.rows import Event, Run
from proctor.server.rules.runs import instant_or_none

SCHEMA = "durable-workflow.v2.history-export"
CANONICAL = "json-recursive-ksort-v1"

_FRAMING = {"avro_framing": "single-object", "writer_schema_fingerprint": "crc64-avro:e2a33dff55802237"}
_ENDS = ("Completed", "Failed", "TimedOut", "Cancelled", "Terminated", "Fired", "ContinuedAsNew")

Told = tuple[Event, dict[str, Any]]


def bundle(
    run: Run, events: Sequence[Event], payloads: tuple[Payload | None, Payload | None], *, now: datetime
) -> dict[str, Any]:
    """Give the whole bundle of a run, sealed with its checksum."""
    told = [(event, msgspec.json.decode(event.payload)) for event in events]
    given, produced = payloads
    document = {
        "schema": SCHEMA,
        "schema_version": 1,
        "exported_at": format_instant(now),
        "dedupe_key": f"{run.run_id}:{run.last_event}",
        "history_complete": run.is_closed,
        "workflow": _workflow(run),
        "payloads": {"codec": run.payload_codec, "arguments": _payload(given), "output": _payload(produced)},
        "history_events": [_event(event, payload) for event, payload in told],
        "commands": _commands(told),
        "signals": _signals(told),
        "updates": _entities(told, "update_id", lambda payload: {"update_name": payload.get("update_name")}),
        "tasks": [{"id": task_id, "type": "workflow"} for task_id in _distinct(e.workflow_task_id for e in events)],
        "activities": _entities(told, "activity_execution_id", _activity),
        "timers": _entities(told, "timer_id", lambda payload: {"delay_seconds": payload.get("delay_seconds")}),
        "failures": _failures(told),
        "links": _links(run, told),
        "redaction": {"applied": False, "policy": None, "paths": []},
        "codec_schemas": {"avro": dict(_FRAMING)},
        "payload_manifest": {
            "version": 1,
            "entries": [_manifest("payloads.arguments.data", given), _manifest("payloads.output.data", produced)],
        },
    }
    return {**document, "integrity": integrity(document)}


def integrity(document: Mapping[str, Any]) -> dict[str, Any]:
    """Give the seal of a document: a checksum, and no signature, because this server has no key."""
    return {
        "canonicalization": CANONICAL,
        "checksum_algorithm": "sha256",
        "checksum": hashlib.sha256(canonical(document).encode()).hexdigest(),
        "signature_algorithm": None,
        "signature": None,
        "key_id": None,
    }


def canonical(value: Any) -> str:
    """Give the canonical text of a JSON value."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(name)}:{canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    return _number(value) if isinstance(value, float) else json.dumps(value)


def _text(value: str) -> str:
    """Write a string as PHP does: ASCII only, and unlike Python's encoder with DEL as it is."""
    return '"' + "\x7f".join(json.dumps(part)[1:-1] for part in value.split("\x7f")) + '"'


def _number(value: float) -> str:
    """Write a float as PHP does: in full up to 17 digits before the point, then with a bare exponent."""
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    if -4 <= int(exponent) < 17:
        return f"{Decimal(repr(value)):f}.0"
    return (digits if "." in digits else digits + ".0") + f"e{int(exponent):+d}"


def _workflow(run: Run) -> dict[str, Any]:
    return {
        "instance_id": run.workflow_id,
        "run_id": run.run_id,
        "run_number": run.run_number,
        "workflow_type": run.workflow_type,
        "workflow_class": run.workflow_type,
        "namespace": run.namespace,
        "queue": run.task_queue,
        "status": run.status,
        "closed_reason": run.closed_reason,
        "last_history_sequence": run.last_event,
        "memo": run.memo,
        "search_attributes": run.search_attributes,
        "started_at": format_instant(run.started_at),
        "closed_at": instant_or_none(run.closed_at),
    }


def _payload(payload: Payload | None) -> dict[str, Any]:
    """Give a payload: its blob, or the reference to it when it is kept elsewhere."""
    return {"available": payload is not None, "data": msgspec.to_builtins(payload)}


def _manifest(path: str, payload: Payload | None) -> dict[str, Any]:
    return {"path": path, "codec": "avro", "available": payload is not None, "redacted": False, **_FRAMING}


def _event(event: Event, payload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": event.id,
        "sequence": event.sequence,
        "type": event.event_type,
        "event_type": event.event_type,
        "payload": payload,
        "workflow_task_id": event.workflow_task_id,
        "workflow_command_id": event.workflow_command_id,
        "recorded_at": format_instant(event.recorded_at),
    }


def _commands(told: Iterable[Told]) -> list[dict[str, Any]]:
    """Give what came from the control plane: every event that a command of it has made, once for each command."""
    found: dict[str, dict[str, Any]] = {}
    for event, _ in told:
        if event.workflow_command_id is not None and event.workflow_command_id not in found:
            found[event.workflow_command_id] = {
                "id": event.workflow_command_id,
                "history_event_id": event.id,
                "event_type": event.event_type,
                "recorded_at": format_instant(event.recorded_at),
            }
    return list(found.values())


def _signals(told: Iterable[Told]) -> list[dict[str, Any]]:
    return [
        {
            "id": payload.get("signal_id"),
            "signal_name": payload.get("signal_name"),
            "workflow_command_id": event.workflow_command_id,
            "history_event_id": event.id,
            "received_at": format_instant(event.recorded_at),
        }
        for event, payload in told
        if event.event_type == "SignalReceived"
    ]


def _entities(
    told: Iterable[Told], key: str, facts: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Give what events speak of by the id `key`: what it is, and how it stands after the last of them."""
    found: dict[str, dict[str, Any]] = {}
    for event, payload in told:
        name = payload.get(key)
        if not isinstance(name, str):
            continue
        entity = found.setdefault(name, {"id": name, "sequence": payload.get("sequence"), "status": "open"})
        entity |= {name: value for name, value in facts(payload).items() if value is not None}
        entity["last_history_event_id"] = event.id
        end = next((end for end in _ENDS if event.event_type.endswith(end)), None)
        if end is not None:
            entity |= {"status": _snake(end), "closed_at": format_instant(event.recorded_at)}
    return list(found.values())


def _snake(word: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in word).lstrip("_")


def _activity(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "activity_type": payload.get("activity_type"),
        "attempt_number": payload.get("attempt_number"),
        "local_activity": payload.get("local_activity"),
    }


def _failures(told: Iterable[Told]) -> list[dict[str, Any]]:
    names = ("failure_category", "exception_type", "exception_class", "message")
    return [
        {"id": payload["failure_id"], "history_event_id": event.id, **{name: payload.get(name) for name in names}}
        for event, payload in told
        if isinstance(payload.get("failure_id"), str)
    ]


def _links(run: Run, told: Iterable[Told]) -> dict[str, Any]:
    parents = []
    if run.parent is not None:
        parents.append({"workflow_instance_id": run.parent.workflow_id, "workflow_run_id": run.parent.run_id})
    children = [
        {
            "child_call_id": payload.get("child_call_id"),
            "workflow_instance_id": payload.get("child_workflow_instance_id"),
            "workflow_run_id": payload.get("child_workflow_run_id"),
        }
        for event, payload in told
        if event.event_type == "ChildRunStarted"
    ]
    return {
        "projection_source": "rebuilt",
        "parents": parents,
        "children": children,
        "continued_from_run_id": run.previous_run_id,
        "continued_to_run_id": run.next_run_id,
    }


def _distinct(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))
