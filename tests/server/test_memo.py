"""Memo and search attributes on the embedded server: given at start, changed by the workflow, read by people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from proctor.core import codec
from server.test_children import both_types, of_type, successor
from server.wire import COOPERATIVE, Wire, Worker, running_server, side_effect


def upsert(**entries: Any) -> dict[str, Any]:
    return {"type": "upsert_memo", "entries": codec.envelope(entries)}


def attributes(**values: Any) -> dict[str, Any]:
    return {"type": "upsert_search_attributes", "attributes": values}


async def worker_of(wire: Wire, **started: Any) -> Worker:
    worker = await both_types(wire)
    await wire.start(**started)
    return worker


async def test_an_upsert_merges_deletes_and_keeps_types(shared_fixtures: Path) -> None:
    async with running_server() as wire:
        worker = await worker_of(wire, memo={"kept": 1, "gone": "x"})
        commands = [upsert(b=b"\xff\x00", a={"z": 7.0, "y": 7}), upsert(gone=None, a=2)]
        (await (await worker.poll()).complete(*commands)).ok()
        events = await wire.events()
        first, second = of_type(events, "MemoUpserted")
        assert (first["sequence"], second["sequence"]) == (1, 2)
        assert codec.decode_value(first["merged"], None) == {
            "a": {"y": 7, "z": 7.0},
            "b": b"\xff\x00",
            "gone": "x",
            "kept": 1,
        }
        assert list(codec.decode_value(first["entries"], None)) == ["a", "b"], "entries are canonical"
        assert codec.decode_value(second["entries"], None) == {"a": 2, "gone": None}
        assert codec.decode_value(second["merged"], None) == {"a": 2, "b": b"\xff\x00", "kept": 1}
        check_events(shared_fixtures, events)
        assert (await wire.describe())["memo"] == {"a": 2, "b": "/wA=", "kept": 1}
        (row,) = (await wire.control("GET", "/workflows")).ok()["workflows"]
        assert row["memo"] == {"a": 2, "b": "/wA=", "kept": 1}


async def test_a_memo_may_become_empty() -> None:
    async with running_server() as wire:
        worker = await worker_of(wire, memo={"only": 1})
        (await (await worker.poll()).complete(upsert(only=None))).ok()
        (event,) = of_type(await wire.events(), "MemoUpserted")
        assert codec.decode_value(event["merged"], None) == {}
        assert (await wire.describe())["memo"] == {}


async def test_a_successor_inherits_the_memo_with_its_types() -> None:
    async with running_server() as wire:
        worker = await worker_of(wire)
        (await (await worker.poll()).complete(upsert(blob=b"\x01"), attributes(stage="two"), successor())).ok()
        (await (await worker.poll()).complete(upsert(more=1))).ok()
        (event,) = of_type(await wire.events(), "MemoUpserted")
        assert codec.decode_value(event["merged"], None) == {"blob": b"\x01", "more": 1}
        assert (await wire.describe())["search_attributes"] == {"stage": "two"}


@pytest.mark.parametrize(
    "entries",
    [
        None,
        {},
        {"codec": "json", "blob": "e30="},
        {"codec": "avro", "blob": "?"},
        codec.encode({"a": 1}),
        codec.envelope({}),
        codec.envelope([1]),
        codec.envelope({"12": 1}),
        codec.envelope({"a b": 1}),
        codec.envelope({"a": "x" * 10_241}),
        codec.envelope({f"k{number}": 1 for number in range(101)}),
    ],
)
async def test_entries_that_are_none_are_refused_and_nothing_is_recorded(entries: Any) -> None:
    async with running_server() as wire:
        worker = await worker_of(wire)
        reply = await (await worker.poll()).complete(side_effect(), {"type": "upsert_memo", "entries": entries})
        assert list(reply.refused(422, "validation_failed")["errors"]) == ["commands.1.entries"]
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


async def test_a_memo_that_would_grow_too_large_is_refused_as_a_whole() -> None:
    async with running_server() as wire:
        worker = await worker_of(wire)
        big = {f"k{number}": "x" * 10_000 for number in range(6)}
        more = {f"m{number}": "x" * 10_000 for number in range(6)}
        reply = await (await worker.poll()).complete(upsert(**big), upsert(**more))
        reply.refused(422, "workflow_memo_validation_failed")
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


async def test_there_are_as_many_search_attributes_as_discovery_says() -> None:
    async with running_server() as wire:
        most = (await wire.request("GET", "/api/cluster/info")).ok()["limits"]["max_search_attributes"]
        worker = await worker_of(wire, search_attributes={"given": "1"})
        others = {f"a{number}": 1 for number in range(most)}
        claim = await worker.poll()
        body = (await claim.complete(attributes(**others))).refused(422, "structural_limit_exceeded")
        assert (body["limit_kind"], body["current_value"]) == ("search_attribute_count", most + 1)
        (await claim.complete(attributes(**others, given=None))).ok()


async def test_search_attributes_have_a_limit() -> None:
    async with running_server() as wire:
        worker = await worker_of(wire)
        reply = await (await worker.poll()).complete(attributes(a="x" * 30_000), attributes(b="x" * 30_000))
        body = reply.refused(422, "structural_limit_exceeded")
        assert (body["limit_kind"], body["configured_limit"]) == ("search_attribute_size", 40_960)
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]


@pytest.mark.parametrize(
    ("value", "kind", "fits"),
    [
        ("x", "string", True),
        ("x", "keyword", True),
        (["x"], "keyword_list", True),
        (5, "int", True),
        (5, "float", True),
        (0.5, "float", True),
        (True, "bool", True),
        ("2026-01-02T03:04:05Z", "datetime", True),
        (None, "int", True),
        (True, "int", False),
        (0.5, "int", False),
        ("x", "keyword_list", False),
        ("soon", "datetime", False),
        ("x", "text", False),
        ("x", ["keyword"], False),
    ],
)
async def test_a_declared_type_is_one_there_is_and_fits_its_value(value: Any, kind: Any, fits: bool) -> None:
    async with running_server() as wire:
        claim = await (await worker_of(wire)).poll()
        declared = {**attributes(a=value), "attribute_types": {"a": kind}}
        if not fits:
            errors = (await claim.complete(declared)).refused(422, "validation_failed")["errors"]
            assert list(errors) == ["commands.0.attribute_types.a"]
            return
        strange = {**declared, "attribute_types": {"b": kind}}
        assert "commands.0.attribute_types.b" in (await claim.complete(strange)).body["errors"]
        (await claim.complete(declared)).ok()
        assert (await wire.events())[-1]["payload"]["attribute_types"] == {"a": kind}


async def test_search_attributes_are_shown_wherever_a_run_is() -> None:
    async with running_server() as wire:
        worker = await worker_of(wire, search_attributes={"a": "1", "b": "2"})
        (await (await worker.poll()).complete(attributes(b=None, c=[" x "]))).ok()
        (row,) = (await wire.control("GET", "/workflows")).ok()["workflows"]
        assert row["search_attributes"] == (await wire.describe())["search_attributes"] == {"a": "1", "c": ["x"]}
        (started,) = of_type(await wire.events(), "WorkflowStarted")
        assert started["search_attributes"] == {"a": "1", "b": "2"}


TYPED = {**attributes(count=7), "attribute_types": {"count": "int"}}


@pytest.mark.parametrize(
    ("command", "capability", "floor"),
    [(upsert(a=1), "memo_upserts", "1.14"), (TYPED, "typed_search_attributes", "1.16")],
)
async def test_only_workers_that_declare_it_change_and_replay_what_others_could_not_read(
    command: dict[str, Any], capability: str, floor: str
) -> None:
    async with running_server() as wire:
        without = Worker(wire, "without", capabilities=COOPERATIVE)
        await without.register()
        await wire.start()
        claim = await without.poll()
        for reply in (await claim.complete(command), await claim.checkpoint("one", 1, command)):
            body = reply.refused(409, "workflow_metadata_capability_not_advertised")
            assert (body["capability"], body["minimum_protocol_version"]) == (capability, floor)
            assert (body["outcome"], body["recorded"], body["command_type"]) == ("rejected", False, command["type"])
        assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
        (await claim.post("/fail", failure={"message": "cannot"})).ok()
        wire.clock.advance(1)

        within = Worker(wire, "with", capabilities=(*COOPERATIVE, capability))
        await within.register()
        (await (await within.poll()).complete(command, {"type": "start_timer", "delay_seconds": 5})).ok()
        wire.clock.advance(5)
        blocked = (await without.try_poll()).ok()
        assert (blocked["task"], blocked["poll_status"]) == (None, "compatibility_blocked")
        (await (await within.poll()).complete()).ok()


async def test_untyped_attributes_need_no_declaration_and_a_new_run_needs_none_of_the_last_one() -> None:
    async with running_server() as wire:
        within, without = Worker(wire, "with"), Worker(wire, "without", capabilities=COOPERATIVE)
        await within.register()
        await without.register()
        await wire.start()
        (await (await within.poll()).complete(upsert(a=1), successor())).ok()

        claim = await without.poll()

        (await claim.complete(attributes(a="x"), {"type": "start_timer", "delay_seconds": 5})).ok()
        wire.clock.advance(5)
        await without.poll()
