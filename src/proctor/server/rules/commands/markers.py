"""Commands that need no answer: side effects, version markers, search attributes (commands.md §2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.grammar import Grammar
from proctor.server.rules.fields import Fields
from proctor.server.rules.rows import Task

_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def _side_effect(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    blob = reader.payload("result", limit=grammar.limit)
    if reader.body.get("result") is None:
        reader.wrong("result", "is required")
    return {"result": blob, "payload_codec": "avro"}


def _version_marker(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    low = -(2**31)
    facts: dict[str, Any] = {
        "change_id": reader.text("change_id").strip(),
        "version": reader.integer("version", low=low),
        "min_supported": reader.integer("min_supported", low=low),
        "max_supported": reader.integer("max_supported", low=low),
    }
    if not reader.errors and not facts["min_supported"] <= facts["version"] <= facts["max_supported"]:
        reader.wrong("version", "must lie within min_supported and max_supported")
    return facts


def _search_attributes(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    attributes = reader.object("attributes")
    clean: dict[str, Any] = {}
    for name, value in attributes.items():
        if not _ATTRIBUTE_NAME.fullmatch(name):
            reader.wrong(f"attributes.{name}", "a name is 1 to 64 of A-Z a-z 0-9 _ . : -")
        elif isinstance(value, str):
            clean[name] = value.strip() or None
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            clean[name] = [item.strip() for item in value]
        elif value is None or isinstance(value, bool | int | float):
            clean[name] = value
        else:
            reader.wrong(f"attributes.{name}", "must be a scalar, a list of strings or null")
    if not attributes:
        reader.wrong("attributes", "must not be empty")
    facts: dict[str, Any] = {"attributes": clean}
    types = reader.optional_object("attribute_types")
    if types is not None:
        facts["attribute_types"] = types
    return facts


READERS = {
    "record_side_effect": _side_effect,
    "record_version_marker": _version_marker,
    "upsert_search_attributes": _search_attributes,
}

_EVENTS = {
    "record_side_effect": "SideEffectRecorded",
    "record_version_marker": "VersionMarkerRecorded",
    "upsert_search_attributes": "SearchAttributesUpserted",
}


def record(book: RunBook, task: Task, kind: str, facts: Mapping[str, Any]) -> None:
    """Record one marker under the next durable number."""
    payload = dict(facts)
    if kind == "upsert_search_attributes":
        payload["merged"] = _merge_attributes(book, payload["attributes"])
    sequence = book.take_sequence()
    book.record(_EVENTS[kind], {"sequence": sequence, **payload}, task_id=task.task_id)


def _merge_attributes(book: RunBook, changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**(book.run.search_attributes or {}), **changes}
    merged = {name: value for name, value in merged.items() if value is not None}
    book.update_run(search_attributes=merged)
    return merged
