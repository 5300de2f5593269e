"""Commands that need no answer: side effects, version markers, search attributes, memo (commands.md §2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proctor.core import codec
from proctor.server.rules import memo
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Refusal, Unstored
from proctor.server.rules.rows import Task

MAX_ATTRIBUTES_BYTES = 40_960
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


def _memo(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    if isinstance(reader.body.get("entries"), Unstored):
        reader.payload("entries", limit=grammar.limit)  # notes what is wrong with it
        return {"entries": {}}
    try:
        return {"entries": memo.read_entries(reader.body.get("entries"))}
    except ValueError as exc:
        reader.wrong("entries", str(exc))
        return {"entries": {}}


READERS = {
    "record_side_effect": _side_effect,
    "record_version_marker": _version_marker,
    "upsert_search_attributes": _search_attributes,
    "upsert_memo": _memo,
}

_EVENTS = {
    "record_side_effect": "SideEffectRecorded",
    "record_version_marker": "VersionMarkerRecorded",
    "upsert_search_attributes": "SearchAttributesUpserted",
    "upsert_memo": "MemoUpserted",
}


def check(book: RunBook, commands: Sequence[Command]) -> None:
    """Refuse a batch whose upserts would make the memo or the search attributes of the run too large."""
    entries, attributes = memo.current(book.run), book.run.search_attributes or {}
    for command in commands:
        if command.type == "upsert_memo":
            entries = memo.merge(entries, command.facts["entries"])
        elif command.type == "upsert_search_attributes":
            attributes = _merged_attributes(attributes, command.facts["attributes"])
            size = len(msgspec.json.encode(attributes))
            if size > MAX_ATTRIBUTES_BYTES:
                raise Refusal(
                    422,
                    "structural_limit_exceeded",
                    f"the search attributes would have {size} bytes, {MAX_ATTRIBUTES_BYTES} are allowed",
                    {
                        "limit_kind": "search_attribute_size",
                        "current_value": size,
                        "configured_limit": MAX_ATTRIBUTES_BYTES,
                    },
                )


def record(book: RunBook, task: Task, kind: str, facts: Mapping[str, Any]) -> None:
    """Record one marker under the next durable number."""
    payload = dict(facts)
    if kind == "upsert_search_attributes":
        merged = _merged_attributes(book.run.search_attributes or {}, payload["attributes"])
        book.update_run(search_attributes=merged)
        payload["merged"] = merged
    elif kind == "upsert_memo":
        after = memo.merge(memo.current(book.run), payload["entries"])
        stored = codec.envelope(after)
        book.update_run(memo=memo.readable(after), memo_blob=stored["blob"])
        payload = {"entries": codec.envelope(payload["entries"]), "merged": stored}
    sequence = book.take_sequence()
    book.record(_EVENTS[kind], {"sequence": sequence, **payload}, task_id=task.task_id)


def _merged_attributes(attributes: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**attributes, **changes}.items() if value is not None}
