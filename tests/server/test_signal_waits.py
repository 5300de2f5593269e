"""Signal waits, which workers in other languages open: who answers them, when, and with what (commands.md §2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from proctor.core import codec
from proctor.server.rules.book import Settings
from server.groups import TIMER, flat
from server.test_cancellation import deliver
from server.test_children import of_type
from server.test_external_payloads import stored
from server.test_selections import cancel, select
from server.wire import Wire, Worker, instant, running_server

GO = {"type": "open_signal_wait", "signal_name": "go"}


async def send(wire: Wire, name: str = "go", *arguments: Any, **body: Any) -> dict[str, Any]:
    given = codec.envelope(list(arguments)) if arguments else None
    reply = await wire.control("POST", f"/workflows/wf/signal/{name}", {"input": given, **body})
    return reply.ok(202)


async def opened(wire: Wire, worker: Worker, *commands: dict[str, Any]) -> None:
    await wire.start()
    (await (await worker.poll()).complete(*commands)).ok()


def answers(events: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Give the durable number and the value of each answered wait."""
    applied = of_type(events, "SignalApplied")
    return [(payload["sequence"], codec.decode_value(payload["value"], None)) for payload in applied]


async def test_a_signal_answers_the_wait_for_its_name_and_wakes_the_workflow(
    wire: Wire, worker: Worker, shared_fixtures: Path
) -> None:
    await opened(wire, worker, {**GO, "signal_name": " go ", "timeout_seconds": 30})
    assert await worker.idle()
    receipt = await send(wire, "go", "yes")

    claim = await worker.poll()

    events = claim.task["history_events"]
    assert [event["event_type"] for event in events[2:]] == [
        "SignalWaitOpened",
        "TimerScheduled",
        "SignalReceived",
        "SignalApplied",
        "TimerCancelled",
    ]
    wait, timer, received, applied, cancelled = (event["payload"] for event in events[2:])
    assert wait == {
        "signal_name": "go",
        "signal_wait_id": wait["signal_wait_id"],
        "sequence": 1,
        "timeout_seconds": 30,
    }
    assert timer == {
        "timer_id": timer["timer_id"],
        "delay_seconds": 30,
        "fire_at": instant(30),
        "timer_kind": "signal_timeout",
        "signal_name": "go",
        "signal_wait_id": wait["signal_wait_id"],
        "sequence": 1,
    }
    assert applied == {
        "workflow_command_id": receipt["command_id"],
        "signal_id": received["signal_id"],
        "signal_name": "go",
        "signal_wait_id": wait["signal_wait_id"],
        "sequence": 1,
        "value": codec.envelope("yes"),
        "payload_codec": "avro",
    }
    assert received["signal_wait_id"] == wait["signal_wait_id"]
    assert cancelled["timer_id"] == timer["timer_id"]
    task = claim.task
    assert (task["resume_source_kind"], task["resume_source_id"]) == ("signal", received["signal_id"])
    assert task["workflow_command_id"] == receipt["command_id"]
    (await claim.complete()).ok()
    wire.clock.advance(60)
    assert await worker.idle()
    assert "TimerFired" not in await wire.event_types()
    check_events(shared_fixtures, await wire.events())


@pytest.mark.parametrize(("arguments", "value"), [((), True), ((7,), 7), ((1, "b"), [1, "b"]), (([],), [])])
async def test_the_answer_is_the_one_argument_or_the_list_of_several_or_true(
    wire: Wire, worker: Worker, arguments: tuple[Any, ...], value: Any
) -> None:
    await opened(wire, worker, GO)
    await send(wire, "go", *arguments)
    assert answers(await wire.events()) == [(1, value)]


async def test_arguments_that_are_stored_outside_are_passed_on_as_a_reference(wire: Wire, worker: Worker) -> None:
    await opened(wire, worker, GO)

    (await wire.control("POST", "/workflows/wf/signal/go", {"input": await stored(wire)})).ok(202)

    (received,) = of_type(await wire.events(), "SignalReceived")
    (applied,) = of_type(await wire.events(), "SignalApplied")
    assert applied["arguments"] == received["arguments"]
    assert "value" not in applied


async def test_other_names_do_not_answer_and_do_not_wake(wire: Wire, worker: Worker) -> None:
    await opened(wire, worker, GO)

    await send(wire, "stop")

    assert await worker.idle()
    (received,) = of_type(await wire.events(), "SignalReceived")
    assert "signal_wait_id" not in received
    assert "SignalApplied" not in await wire.event_types()


async def test_a_signal_that_came_first_answers_as_soon_as_the_wait_opens(wire: Wire, worker: Worker) -> None:
    await wire.start()
    await send(wire, "go", 1)
    await send(wire, "stop", 0)
    claim = await worker.poll()
    await send(wire, "go", 2)  # while the turn is going on, which cannot know of it
    (await claim.complete(GO)).ok()

    claim = await worker.poll()
    (await claim.complete(GO)).ok()
    claim = await worker.poll()
    (await claim.complete(GO)).ok()

    assert await worker.idle(), "no third signal of this name is left"
    events = await wire.events()
    assert answers(events) == [(1, 1), (2, 2)]
    received = {payload["signal_id"]: payload["workflow_command_id"] for payload in of_type(events, "SignalReceived")}
    for payload in of_type(events, "SignalApplied"):
        assert payload["workflow_command_id"] == received[payload["signal_id"]]
    await send(wire, "go", 3)
    assert answers(await wire.events())[-1] == (3, 3)


async def test_a_repeated_signal_answers_one_wait(wire: Wire, worker: Worker) -> None:
    await opened(wire, worker, *flat(GO, GO, TIMER, kind="mixed"))

    first = await send(wire, "go", 1, request_id="r")
    again = await send(wire, "go", 1, request_id="r")

    assert again["command_id"] == first["command_id"]
    assert answers(await wire.events()) == [(1, 1)]


async def test_a_wait_that_times_out_leaves_later_signals_for_the_next_wait(wire: Wire, worker: Worker) -> None:
    await opened(wire, worker, {**GO, "timeout_seconds": 30})
    wire.clock.advance(29.9)
    assert await worker.idle()
    wire.clock.advance(0.1)

    claim = await worker.poll()

    fired = (await wire.events())[-1]
    assert (fired["event_type"], fired["payload"]["timer_kind"]) == ("TimerFired", "signal_timeout")
    assert (claim.task["resume_source_kind"], fired["payload"]["sequence"]) == ("signal_timeout", 1)
    await send(wire, "go", "late")
    (await claim.complete(GO)).ok()
    assert answers(await wire.events()) == [(2, "late")]


async def test_of_a_signal_and_a_timeout_that_both_wait_the_signal_was_first(wire: Wire, worker: Worker) -> None:
    await wire.start()
    await send(wire, "go", 1)

    (await (await worker.poll()).complete({**GO, "timeout_seconds": 0})).ok()

    assert answers(await wire.events()) == [(1, 1)]
    assert "TimerFired" not in await wire.event_types()


async def test_a_passed_timeout_is_recorded_before_a_signal_that_comes_after_it(wire: Wire, worker: Worker) -> None:
    await opened(wire, worker, {**GO, "timeout_seconds": 5})
    wire.clock.advance(5)

    await send(wire, "go", 1)

    kinds = await wire.event_types()
    assert kinds[-2:] == ["TimerFired", "SignalReceived"]


async def test_a_list_of_waits_takes_signals_in_authored_order_and_wakes_once(wire: Wire, worker: Worker) -> None:
    other = {**GO, "signal_name": "stop"}
    commands = flat(GO, other, GO, TIMER, kind="mixed")
    await opened(wire, worker, *commands)

    for name, value in (("go", 1), ("stop", 2), ("go", 3)):
        await send(wire, name, value)
    assert await worker.idle()
    wire.clock.advance(30)
    claim = await worker.poll()

    assert answers(await wire.events()) == [(1, 1), (2, 2), (3, 3)]
    for payload in of_type(await wire.events(), "SignalApplied"):
        assert payload["parallel_group_path"][0]["parallel_group_id"] == "parallel-calls:1:4"
    (await claim.complete()).ok()


async def test_a_list_that_is_authored_again_opens_no_second_wait(wire: Wire, worker: Worker) -> None:
    commands = flat(GO, TIMER, kind="mixed")
    await opened(wire, worker, *commands)
    await wire.cancel_cooperatively()

    (await (await worker.poll()).complete(*commands)).ok()

    assert (await wire.event_types()).count("SignalWaitOpened") == 1


async def test_a_selected_wait_wins_by_its_signal_and_may_lose(
    wire: Wire, worker: Worker, shared_fixtures: Path
) -> None:
    await opened(wire, worker, *select({"go": GO, "stop": {**GO, "signal_name": "stop", "timeout_seconds": 90}}))
    await send(wire, "go", 1)

    claim = await worker.poll()

    events = claim.task["history_events"]
    (marker,) = of_type(events, "SelectionResolved")
    (applied,) = [event for event in events if event["event_type"] == "SignalApplied"]
    assert (marker["member_key"], marker["operation_kind"]) == ("go", "signal")
    assert marker["operation_identity"] == applied["payload"]["signal_wait_id"]
    assert (marker["resolution_event_id"], marker["outcome"]) == (applied["id"], "completed")
    (await claim.complete(cancel(events, 2), TIMER)).ok()
    await send(wire, "stop", 2)
    assert answers(await wire.events()) == [(1, 1)]
    assert (await wire.event_types())[-3:] == ["SelectionOperationCancelled", "TimerScheduled", "SignalReceived"]
    check_events(shared_fixtures, await wire.events())


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_cancellation_is_delivered_at_an_open_wait_and_closes_it(
    wire: Wire, worker: Worker, timeout: int | None
) -> None:
    await opened(wire, worker, {**GO, "timeout_seconds": timeout})
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    claim = await worker.poll()
    (await deliver(claim, request_id, call_kind="condition")).refused(409, "cancellation_delivery_shape_mismatch")

    (await deliver(claim, request_id, call_kind="signal")).ok()

    await send(wire, "go", 1)
    wire.clock.advance(70)
    kinds = await wire.event_types()
    assert {"SignalApplied", "TimerFired"}.isdisjoint(kinds)
    assert ("TimerCancelled" in kinds) is (timeout is not None)


async def test_a_wait_that_was_answered_before_the_request_is_no_place_for_it(wire: Wire, worker: Worker) -> None:
    await opened(wire, worker, GO)
    await send(wire, "go", 1)
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    claim = await worker.poll()

    refused = await deliver(claim, request_id, call_kind="signal")

    refused.refused(409, "cancellation_delivery_not_eligible")
    (await deliver(claim, request_id, sequence=2, call_kind="signal")).ok()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"signal_name": None}, "signal_name"),
        ({"signal_name": "  "}, "signal_name"),
        ({"signal_name": 7}, "signal_name"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"timeout_seconds": "30"}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"delay_seconds": 1}, "delay_seconds"),
        ({"retry_policy": {"max_attempts": 1}}, "retry_policy"),
        (flat(GO, kind="mixed")[0] | {"parallel_group_kind": "signal"}, "parallel_group_path"),
    ],
)
async def test_a_wait_that_is_not_well_formed_is_refused_by_field(
    wire: Wire, worker: Worker, changes: dict[str, Any], field: str
) -> None:
    await wire.start()
    reply = await (await worker.poll()).complete({**GO, **changes})
    assert f"commands.0.{field}" in reply.refused(422, "validation_failed")["errors"]


async def test_open_waits_and_early_signals_outlive_the_server(tmp_path: Path) -> None:
    database = tmp_path / "db"
    async with running_server(database=database) as wire:
        worker = Worker(wire)
        await worker.register()
        await opened(wire, worker, {**GO, "timeout_seconds": 30})
        await send(wire, "stop", "early")
    async with running_server(database=database) as wire:
        await send(wire, "go", 1)
        worker = Worker(wire)
        (await (await worker.poll()).complete({**GO, "signal_name": "stop"})).ok()
        assert answers(await wire.events()) == [(1, 1), (2, "early")]


@pytest.mark.parametrize("version", ["1.18", "1.19"])
async def test_older_protocols_have_signal_waits_too(version: str) -> None:
    async with running_server(Settings(protocol=version)) as wire:
        worker = Worker(wire, capabilities=(), version=version)
        await worker.register()
        await opened(wire, worker, GO)
        await send(wire, "go", 1)
        assert answers(await wire.events()) == [(1, 1)]
