"""Commands that need no answer: side effects, version markers, search attributes, memo (commands.md §2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from proctor.core import codec
from proctor.server.rules import memo
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.grammar import Command, Grammar
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Refusal, Unstored, conflict
from proctor.server.rules.rows import Task

MAX_ATTRIBUTES = 100
MAX_ATTRIBUTES_BYTES = 40_960


CAPABILITY_FLOORS = {"memo_upserts": "1.14", "typed_search_attributes": "1.16"}


def _is_datetime(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


_ATTRIBUTE_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "keyword": lambda value: isinstance(value, str),
    "keyword_list": lambda value: isinstance(value, list),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "datetime": _is_datetime,
}
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def _side_effect(reader: Fields, grammar: Grammar) -> dict[str, Any]:
    blob = reader.payload("result", limit=grammar.limit)
    if reader.body.get("result") is None:
        reader.wrong("result", "is required")
    if reader.body.get("workflow_stream") is not None:
        # What was to be appended would be lost, and nobody would know.
        reader.wrong("workflow_stream", "is not supported by this server")
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
        for name, kind in types.items():
            _check_type(reader, name, kind, clean)
        facts["attribute_types"] = types
    return facts


def _check_type(reader: Fields, name: str, kind: object, attributes: Mapping[str, Any]) -> None:
    """Note what is wrong with the declared type of an attribute; what is deleted may have any."""
    fits = _ATTRIBUTE_TYPES.get(kind) if isinstance(kind, str) else None
    if fits is None:
        reader.wrong(f"attribute_types.{name}", f"must be one of {', '.join(_ATTRIBUTE_TYPES)}")
    elif name not in attributes:
        reader.wrong(f"attribute_types.{name}", "declares an attribute that is not among `attributes`")
    elif attributes[name] is not None and not fits(attributes[name]):
        reader.wrong(f"attribute_types.{name}", f"the value is no {kind}")


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


def _needed(command: Command) -> str | None:
    """Give the capability of a worker that may author this marker, and replay it; None for one that any worker may."""
    if command.type == "upsert_memo":
        return "memo_upserts"
    if command.type == "upsert_search_attributes" and command.facts.get("attribute_types"):
        return "typed_search_attributes"
    return None


def check_declared(task: Task, commands: Sequence[Command]) -> None:
    """Refuse markers that the worker behind this claim did not declare; others could not tell it what they mean."""
    declared = () if task.claim is None else task.claim.capabilities
    for command in commands:
        capability = _needed(command)
        if capability is not None and capability not in declared:
            raise conflict(
                "workflow_metadata_capability_not_advertised",
                f"the worker of task {task.task_id} is registered without the capability {capability}",
                task_id=task.task_id,
                workflow_task_attempt=task.attempt,
                outcome="rejected",
                recorded=False,
                capability=capability,
                minimum_protocol_version=CAPABILITY_FLOORS[capability],
                command_type=command.type,
                remediation=f"register with the capability {capability}",
            )


def check(book: RunBook, commands: Sequence[Command]) -> None:
    """Refuse a batch whose upserts would make the memo or the search attributes of the run too large."""
    entries, attributes = memo.current(book.run), book.run.search_attributes or {}
    for command in commands:
        if command.type == "upsert_memo":
            entries = memo.merge(entries, command.facts["entries"])
        elif command.type == "upsert_search_attributes":
            attributes = _merged_attributes(attributes, command.facts["attributes"])
            _check_bound("search_attribute_count", len(attributes), MAX_ATTRIBUTES, "entries")
            size = len(msgspec.json.encode(attributes))
            _check_bound("search_attribute_size", size, MAX_ATTRIBUTES_BYTES, "bytes")


def _check_bound(kind: str, number: int, most: int, unit: str) -> None:
    if number > most:
        raise Refusal(
            422,
            "structural_limit_exceeded",
            f"the search attributes would have {number} {unit}, {most} are allowed",
            {"limit_kind": kind, "current_value": number, "configured_limit": most},
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
    capability = _needed(Command(kind, facts))
    if capability is not None and capability not in book.run.needed_capabilities:
        book.update_run(needed_capabilities=(*book.run.needed_capabilities, capability))
    sequence = book.take_sequence()
    book.record(_EVENTS[kind], {"sequence": sequence, **payload}, task_id=task.task_id)


def _merged_attributes(attributes: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**attributes, **changes}.items() if value is not None}
