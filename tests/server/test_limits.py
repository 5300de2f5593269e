"""Structural limits: refused exactly, with nothing recorded, and free again when what was open is done."""

from __future__ import annotations

from typing import Any

import pytest

from proctor.server.rules.book import Settings, StructuralLimits
from server.groups import TIMER
from server.wire import EMPTY_LIST, ENVELOPE, WITH_POLICIES, Claim, Reply, Wire, Worker, running_server, side_effect

ACTIVITY = {"type": "schedule_activity", "activity_type": "a", "arguments": {"codec": "avro", "blob": EMPTY_LIST}}
CHILD = {"type": "start_child_workflow", "workflow_type": "t", "arguments": {"codec": "avro", "blob": EMPTY_LIST}}
SMALL = StructuralLimits(
    command_batch_size=3,
    history_transaction_size=10,
    pending_activity_count=2,
    pending_child_count=2,
    pending_timer_count=2,
    pending_signal_count=2,
)


def exceeded(reply: Reply, kind: str, value: int, limit: int, *, status: int = 422) -> None:
    body = reply.refused(status, "structural_limit_exceeded")
    assert (body["limit_kind"], body["current_value"], body["configured_limit"]) == (kind, value, limit)
    assert kind in str(body.get("error") or body.get("message"))


async def claimed(wire: Wire, capabilities: tuple[str, ...] = WITH_POLICIES) -> tuple[Worker, Claim]:
    worker = Worker(wire, capabilities=capabilities)
    await worker.register()
    await wire.start()
    return worker, await worker.poll()


@pytest.mark.parametrize(
    ("command", "kind"),
    [(ACTIVITY, "pending_activity_count"), (CHILD, "pending_child_count"), (TIMER, "pending_timer_count")],
)
async def test_what_a_run_may_have_open_at_once(command: dict[str, Any], kind: str) -> None:
    async with running_server(Settings(limits=SMALL)) as wire:
        _, claim = await claimed(wire)
        before = await wire.event_types()
        exceeded(await claim.complete(*[command] * 3), kind, 3, 2)
        assert await wire.event_types() == before
        (await claim.complete(command, command, side_effect())).ok()


async def test_calls_that_have_ended_make_room(wire: Wire) -> None:
    async with running_server(Settings(limits=SMALL)) as small:
        worker, claim = await claimed(small)
        timer = {**TIMER, "delay_seconds": 5}
        (await claim.complete(timer, timer)).ok()
        small.clock.advance(6)
        again = await worker.poll()
        exceeded(await again.complete(timer, timer, timer), "pending_timer_count", 3, 2)
        (await again.complete(timer, timer)).ok()


async def test_a_checkpoint_has_the_same_limits(wire: Wire) -> None:
    async with running_server(Settings(limits=SMALL)) as small:
        _, claim = await claimed(small)
        exceeded(await claim.checkpoint("c", 1, *[TIMER] * 3), "pending_timer_count", 3, 2)
        (await claim.checkpoint("c", 1, TIMER, TIMER)).ok()
        exceeded(await claim.checkpoint("d", 3, TIMER), "pending_timer_count", 3, 2)


async def test_a_turn_may_hold_so_many_commands_and_its_owner_is_asked_for_first() -> None:
    async with running_server(Settings(limits=SMALL)) as wire:
        _, claim = await claimed(wire)
        exceeded(await claim.complete(*[side_effect()] * 4), "command_batch_size", 4, 3)
        (await claim.post("/complete", commands=[{}] * 4, lease_owner="other")).refused(409, "lease_owner_mismatch")
        (await claim.complete(*[side_effect()] * 3)).ok()


async def test_a_turn_may_record_so_many_events() -> None:
    beats = [{"elapsed_ms": number} for number in range(9)]
    call = {
        "type": "record_local_activity",
        "activity_type": "a",
        "execution_mode": "local",
        "arguments": {"codec": "avro", "blob": EMPTY_LIST},
        "result": ENVELOPE,
        "outcome": "completed",
        "attempts": [{"attempt_number": 1, "outcome": "completed", "heartbeats": beats}],
    }
    async with running_server(Settings(limits=SMALL)) as wire:
        _, claim = await claimed(wire, ("local_activities",))
        before = await wire.event_types()
        exceeded(await claim.complete(call), "history_transaction_size", 12, 10)
        assert await wire.event_types() == before
        call["attempts"][0]["heartbeats"] = beats[:7]  # type: ignore[index]
        (await claim.complete(call)).ok()
        recorded = len(await wire.event_types()) - len(before)
        assert recorded == 10


async def test_signals_that_no_turn_has_dealt_with_are_limited() -> None:
    async with running_server(Settings(limits=SMALL)) as wire:

        async def signal(number: int) -> Reply:
            return await wire.control("POST", "/workflows/wf/signal/go", {"request_id": f"r{number}"})

        worker, claim = await claimed(wire)
        for number in range(2):
            (await signal(number)).ok(202)
        exceeded(await signal(2), "pending_signal_count", 3, 2, status=409)
        # One that is repeated is no new one.
        (await signal(1)).ok(202)
        # They came after the claim, so completing it has dealt with none of them.
        (await claim.complete(TIMER)).ok()
        exceeded(await signal(3), "pending_signal_count", 3, 2, status=409)
        (await (await worker.poll()).complete(side_effect())).ok()
        (await signal(4)).ok(202)
        assert (await wire.event_types()).count("SignalReceived") == 3


async def test_the_limits_are_shown(wire: Wire) -> None:
    info = (await wire.request("GET", "/api/cluster/info")).ok()
    assert info["structural_limits"] == {
        "command_batch_size": 1_000,
        "history_transaction_size": 5_000,
        "pending_activity_count": 2_000,
        "pending_child_count": 1_000,
        "pending_timer_count": 2_000,
        "pending_signal_count": 5_000,
        "pending_update_count": 500,
    }
    assert info["limits"]["max_pending_activities"] == 2_000


@pytest.mark.parametrize("groups", [524_288, 524_289])
async def test_a_payload_may_have_two_mebibytes(wire: Wire, worker: Worker, groups: int) -> None:
    await wire.start()
    claim = await worker.poll()
    result = {"codec": "avro", "blob": "AAAA" * groups}
    reply = await claim.complete({"type": "complete_workflow", "result": result})
    if groups == 524_288:
        reply.ok()
    else:
        assert "commands.0.result" in reply.refused(422, "validation_failed")["errors"]
