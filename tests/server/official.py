"""The official JSON Schemas of the shared fixtures, as checks on what the server records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

# Event types of protocol 1.20 that the published schema (catalog 15) is too old to list.
NEWER_EVENT_TYPES = frozenset(
    {
        "ActivityCancellationAcknowledged",
        "ChildCancellationRequested",
        "ChildCancellationResolved",
        "CooperativeCancellationDelivered",
        "CooperativeCancellationRequested",
        "MemoUpserted",
        "ParentCloseCancellationRequested",
        "SelectionOperationCancelled",
        "SelectionResolved",
    }
)


def check_events(fixtures: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Fail when an event has a shape or a type that the official schemas do not allow."""
    specs = fixtures / "specs"
    schema = json.loads((specs / "history-event-payloads.schema.json").read_text())
    listed = set(schema["$defs"]["historyEventType"]["enum"])
    schema["$defs"]["historyEventType"]["enum"] = sorted(listed | NEWER_EVENT_TYPES)
    event_schema = Draft202012Validator(schema)
    local = json.loads((specs / "local-activity-runtime.schema.json").read_text())
    marker = Draft202012Validator({**local["$defs"]["localActivityHistoryMarker"], "$defs": local["$defs"]})
    for event in events:
        problems = [error.message for error in event_schema.iter_errors(event)]
        payload = event["payload"]
        if payload.get("local_activity"):
            problems += [error.message for error in marker.iter_errors(payload)]
        assert not problems, (event["event_type"], problems)
