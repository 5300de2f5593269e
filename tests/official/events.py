"""The official schemas of history events and of local activities, as checks on what the server records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from official.differences import NEWER_EVENT_TYPES


class EventDocuments:
    """The two documents that speak of history events."""

    def __init__(self, fixtures: Path) -> None:
        specs = fixtures / "specs"
        schema = json.loads((specs / "history-event-payloads.schema.json").read_text())
        listed = set(schema["$defs"]["historyEventType"]["enum"])
        schema["$defs"]["historyEventType"]["enum"] = sorted(listed | NEWER_EVENT_TYPES)
        local = json.loads((specs / "local-activity-runtime.schema.json").read_text())
        self._event = Draft202012Validator(schema)
        self._marker = Draft202012Validator({**local["$defs"]["localActivityHistoryMarker"], "$defs": local["$defs"]})

    def problems(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Give what the documents do not allow in an event."""
        payload = event["payload"]
        errors = [*self._event.iter_errors(event)]
        if payload.get("local_activity"):
            errors += self._marker.iter_errors(payload)
        for error in errors:
            yield f"{error.json_path}: {error.message[:300]}"


@cache
def event_documents(fixtures: Path) -> EventDocuments:
    """Give the documents, read once in a test process."""
    return EventDocuments(fixtures)


def check_events(fixtures: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Fail when an event has a shape or a type that the official schemas do not allow."""
    for event in events:
        problems = list(event_documents(fixtures).problems(event))
        assert not problems, (event["event_type"], problems)
