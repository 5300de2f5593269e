"""Timers, condition waits and signals: durable, fired by the clock, woken once (commands.md §2, events.md §7)."""

from __future__ import annotations

from typing import Any

import pytest

from server.test_cancellation import deliver
from server.wire import EMPTY_LIST, Wire, Worker, instant

TIMER = {"type": "start_timer", "delay_seconds": 30}
WAIT = {"type": "open_condition_wait", "condition_key": "k", "condition_definition_fingerprint": "f"}


async def test_a_timer_fires_at_its_instant_and_not_before(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(TIMER)).ok()

    wire.clock.advance(29.9)
    assert await worker.idle()
    wire.clock.advance(0.1)
    claim = await worker.poll()

    scheduled, fired = (await wire.events())[-2:]
    assert (scheduled["event_type"], fired["event_type"]) == ("TimerScheduled", "TimerFired")
    assert scheduled["payload"]["fire_at"] == fired["payload"]["fire_at"] == instant(30)
    assert scheduled["payload"]["timer_id"] == fired["payload"]["timer_id"]
    assert (scheduled["payload"]["sequence"], fired["payload"]["sequence"]) == (1, 1)
    (await claim.complete()).ok()
    assert (await wire.describe())["status"] == "completed"


async def test_a_timer_of_zero_seconds_fires_at_once(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete({"type": "start_timer", "delay_seconds": 0})).ok()

    await worker.poll()

    assert (await wire.event_types())[-1] == "TimerFired"


async def test_two_timers_of_one_turn_keep_the_authored_order(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete({**TIMER, "delay_seconds": 60}, TIMER)).ok()

    wire.clock.advance(61)
    await worker.poll()

    fired = [event["payload"]["sequence"] for event in await wire.events() if event["event_type"] == "TimerFired"]
    assert fired == [2, 1], "the one that was due first fires first"


async def test_a_closed_run_fires_no_timer(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(TIMER)).ok()
    (await wire.control("POST", "/workflows/wf/terminate", {})).ok()

    wire.clock.advance(31)

    assert await worker.idle()
    assert "TimerFired" not in await wire.event_types()


async def test_a_timer_that_is_due_does_not_outlive_the_runs_deadline(wire: Wire, worker: Worker) -> None:
    await wire.start(run_timeout_seconds=20)
    (await (await worker.poll()).complete(TIMER)).ok()

    wire.clock.advance(31)

    assert await worker.idle()
    assert (await wire.event_types())[-1] == "WorkflowTimedOut"


async def _signal(wire: Wire, **body: Any) -> Any:
    return await wire.control("POST", "/workflows/wf/signal/go", body)


async def test_a_signal_is_recorded_with_its_arguments_and_wakes_a_waiting_run(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(WAIT)).ok()
    assert await worker.idle()

    receipt = (await _signal(wire, input={"codec": "avro", "blob": EMPTY_LIST}, request_id="r")).ok(202)
    claim = await worker.poll()

    event = (await wire.events())[-1]
    assert (receipt["outcome"], receipt["command_status"]) == ("signal_received", "accepted")
    assert (event["event_type"], event["payload"]["signal_name"]) == ("SignalReceived", "go")
    assert event["payload"]["arguments"] == {"codec": "avro", "blob": EMPTY_LIST}
    (await claim.complete()).ok()
    assert "ConditionWaitSatisfied" in await wire.event_types()


async def test_a_repeated_signal_is_one_signal_and_another_under_its_id_is_refused(wire: Wire) -> None:
    await wire.start()
    first = (await _signal(wire, request_id="r")).ok(202)

    again = (await _signal(wire, request_id="r")).ok(202)
    other = await wire.control("POST", "/workflows/wf/signal/stop", {"request_id": "r"})

    assert (again["command_id"], again["retained"]) == (first["command_id"], True)
    assert other.refused(409, "request_id_conflict")["retained_command_type"] == "signal"
    assert (await wire.event_types()).count("SignalReceived") == 1


async def test_signals_for_nobody_and_for_a_closed_run_are_refused(wire: Wire, worker: Worker) -> None:
    assert (await _signal(wire)).status == 404
    await wire.start()
    (await (await worker.poll()).complete()).ok()

    assert (await _signal(wire)).refused(409, "run_not_active")["run_status"] == "completed"


async def test_a_signal_that_no_worker_declares_is_unknown(wire: Wire, worker: Worker) -> None:
    await worker.register(workflow_command_contracts={"t": {"signals": ["other"]}})
    await wire.start()

    (await _signal(wire)).refused(404, "unknown_signal")

    assert "SignalReceived" not in await wire.event_types()
    (await wire.control("POST", "/workflows/wf/signal/other", {})).ok(202)


async def test_names_of_receivers_may_hold_slashes_and_are_not_blank(wire: Wire, worker: Worker) -> None:
    await worker.register(workflow_command_contracts={"t": {"signals": ["a/b"], "updates": ["c/d/"], "queries": []}})
    run_id = (await wire.start())["run_id"]

    assert (await wire.control("POST", "/workflows/wf/signal/a/b", {})).ok(202)["signal_name"] == "a/b"
    path = f"/workflows/wf/runs/{run_id}/signal"
    assert (await wire.control("POST", f"{path}/a/b", {})).ok(202)["signal_name"] == "a/b"
    assert (await wire.control("POST", "/workflows/wf/update/c/d/", {})).ok(202)["update_name"] == "c/d/"
    for path, reason in (("signal/b/a", "unknown_signal"), ("query/a/b", "rejected_unknown_query")):
        (await wire.control("POST", f"/workflows/wf/{path}", {})).refused(404, reason)
    for kind in ("signal", "update", "query"):
        errors = (await wire.control("POST", f"/workflows/wf/{kind}/ ", {})).refused(422, "validation_failed")["errors"]
        assert list(errors) == [f"{kind}_name"]


async def test_a_wait_that_times_out_says_so_and_a_signal_does_not_prolong_it(wire: Wire, worker: Worker) -> None:
    await wire.start()
    wait = {**WAIT, "timeout_seconds": 30}
    (await (await worker.poll()).complete(wait)).ok()
    wire.clock.advance(20)
    await _signal(wire)
    (await (await worker.poll()).complete(wait)).ok()

    wire.clock.advance(10)
    claim = await worker.poll()

    timed_out = (await wire.events())[-1]
    assert timed_out["event_type"] == "ConditionWaitTimedOut"
    assert timed_out["payload"]["timeout_seconds"] == 30
    (await claim.complete()).ok()


async def test_the_same_wait_without_news_in_between_records_nothing(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(WAIT)).ok()
    kinds = await wire.event_types()

    assert kinds.count("ConditionWaitOpened") == 1
    assert await worker.idle()


@pytest.mark.parametrize(("command", "kind", "closed"), [(TIMER, "timer", "TimerCancelled"), (WAIT, "condition", None)])
async def test_a_cooperative_cancellation_is_delivered_at_an_open_step(
    wire: Wire, worker: Worker, command: dict[str, Any], kind: str, closed: str | None
) -> None:
    await wire.start()
    (await (await worker.poll()).complete(command)).ok()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]
    claim = await worker.poll()

    delivered = await deliver(claim, request_id, call_kind=kind)

    assert delivered.ok()["reason"] is None
    kinds = await wire.event_types()
    assert kinds[-1] == "CooperativeCancellationDelivered"
    assert (kinds[-2] == closed) == (closed is not None)
    wire.clock.advance(60)
    assert "TimerFired" not in await wire.event_types(), "what was cancelled never fires"


async def test_a_delivery_of_another_kind_of_step_is_refused(wire: Wire, worker: Worker) -> None:
    await wire.start()
    (await (await worker.poll()).complete(TIMER)).ok()
    request_id = (await wire.cancel_cooperatively())["cancellation_request"]["request_id"]

    refused = await deliver(await worker.poll(), request_id, call_kind="condition")

    assert refused.status in (409, 422)
    assert "CooperativeCancellationDelivered" not in await wire.event_types()
