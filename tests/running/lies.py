"""One falsehood in one answer of a server: what is changed in an otherwise honest body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Lie = Callable[[dict[str, Any]], Any]


def set_to(key: str, value: Any) -> Lie:
    def lie(body: dict[str, Any]) -> None:
        body[key] = value

    return lie


def without(key: str) -> Lie:
    def lie(body: dict[str, Any]) -> None:
        del body[key]

    return lie


def forget(kind: str) -> Lie:
    """Leave every event of a kind out of a history page, and number the rest anew."""

    def lie(body: dict[str, Any]) -> None:
        kept = [event for event in body["history_events"] if event["event_type"] != kind]
        body["history_events"] = [{**event, "sequence": number} for number, event in enumerate(kept, start=1)]

    return lie


def falsify(kind: str, **fields: Any) -> Lie:
    """Change fields of the payload of every event of a kind in a history page."""

    def lie(body: dict[str, Any]) -> None:
        for event in body["history_events"]:
            if event["event_type"] == kind:
                event["payload"].update(fields)

    return lie
