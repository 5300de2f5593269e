"""Who may go on, and who must stop: authority that ends, cancellations, stops that cannot be confirmed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor.core.attempt import StopCause
from proctor.errors import StopUnconfirmed
from running.rigs import Rig, one_call
from running.scripted_children import hangs, returns
from running.scripted_server import Refusal, ScriptedServer, Silence


def fall_silent(body: dict[str, Any]) -> None:
    raise Silence


# -- authority -------------------------------------------------------------------------------------


async def test_a_silent_server_has_the_child_stopped_before_its_lease_can_be_over(autojump_clock: MockClock) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(3)
        last_renewal = rig.server.times("control")[-1]
        rig.server.lie_always("control", fall_silent)
        await trio.sleep(20)

        (ended_at,) = rig.children.ended_at
        assert ended_at <= last_renewal + rig.server.lease + 0.06
        assert rig.attempt()["outcome"] == "abandoned"
        assert rig.attempt()["published"] is False
        assert rig.attempt()["reason"] == "authority_spent"
        assert rig.server.operations("outcome", "complete", "fail") == []


async def test_the_worker_asks_for_the_stop_itself_when_authority_is_spent(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), enforcing=False)
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(3)
        last_renewal = rig.server.times("control")[-1]
        rig.server.lie_always("control", fall_silent)
        await trio.sleep(20)

        (reins,) = rig.children.all_reins
        assert reins.stops[0] == (StopCause.AUTHORITY_LOST, "authority_spent")
        assert rig.children.ended_at[0] == pytest.approx(last_renewal + rig.server.lease, abs=0.06)
        assert rig.server.operations("outcome", "complete", "fail") == []


@pytest.mark.parametrize("renewals", range(2, 6))
async def test_what_a_renewal_says_while_a_report_waits_for_its_turn_counts_before_the_report(
    autojump_clock: MockClock, renewals: int
) -> None:
    rig = Rig(returns("late", after=0.5), server=ScriptedServer(latency=1.0, lease=30))
    answered: list[bool] = []

    def refuse(body: dict[str, Any]) -> None:
        answered.append(True)
        if len(answered) == renewals:
            raise Refusal(409, {"reason": "workflow_claim_mismatch"})

    rig.server.lie_always("control", refuse)
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(8)

        lost = len(answered) >= renewals
        assert lost or renewals > 4, "the renewals that matter for this test were made"
        if lost:
            assert rig.attempt()["reason"] == "workflow_claim_mismatch"
            assert rig.server.operations("outcome", "complete", "fail") == []


async def test_a_lease_that_gets_shorter_ends_authority_earlier(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), enforcing=False, server=ScriptedServer(lease=40))
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(3)
        rig.server.lease = 2
        await trio.sleep(1)
        last_renewal = rig.server.times("control")[-1]
        rig.server.lie_always("control", fall_silent)
        await trio.sleep(20)

        assert rig.children.ended_at[0] == pytest.approx(last_renewal + 2, abs=0.06)


async def test_the_worker_asks_for_the_stop_itself_at_a_deadline(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), enforcing=False, workflow_class=one_call(start_to_close_timeout=4))

    await rig.run_to_close()

    (prepared_at,) = rig.server.times("prepare")
    assert rig.children.ended_at[0] == pytest.approx(prepared_at + 4, abs=0.06)
    assert rig.attempt()["timeout_kind"] == "start_to_close"


async def test_a_server_that_recovers_in_time_costs_nothing(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=12))

    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.lie_always("control", fall_silent)
        await trio.sleep(7)
        rig.server.always.clear()
        with trio.fail_after(30):
            await rig.server.run_closed.wait()

    assert rig.attempt()["outcome"] == "completed"


@pytest.mark.parametrize(
    "reason", ["workflow_claim_mismatch", "workflow_claim_expired", "stale_activity_attempt", "run_closed"]
)
async def test_a_refused_renewal_stops_the_child_and_publishes_nothing(autojump_clock: MockClock, reason: str) -> None:
    rig = Rig(hangs())

    def refuse(body: dict[str, Any]) -> None:
        raise Refusal(409, {"active": False, "stop_required": True, "reason": reason})

    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.lie("control", refuse)
        await trio.sleep(5)

    assert rig.attempt()["reason"] == reason
    assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, reason)
    assert rig.server.operations("outcome", "complete", "fail", "acknowledge") == []


async def test_overload_answers_do_not_end_the_authority(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=3))

    def overload(body: dict[str, Any]) -> None:
        raise Refusal(503, {"reason": "backend_unavailable"})

    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.lie("control", overload, overload, overload)
        with trio.fail_after(30):
            await rig.server.run_closed.wait()

    assert rig.attempt()["outcome"] == "completed"


async def test_a_claim_lost_before_the_start_starts_no_child(autojump_clock: MockClock) -> None:
    rig = Rig()

    def refuse(body: dict[str, Any]) -> None:
        raise Refusal(409, {"active": False, "reason": "stale_worker_registration"})

    rig.server.lie("control", refuse)

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert rig.attempt()["reason"] == "stale_worker_registration"
    assert rig.server.operations("outcome") == []


async def test_a_lost_outcome_answer_is_never_followed_by_another_child(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x"))

    rig.server.lie_always("outcome", fall_silent)

    await rig.run_for(30)

    assert len(rig.children.jobs) == 1
    assert rig.attempt()["reason"] == "outcome_unknown"
    assert rig.server.operations("complete", "fail") == []


# -- cancellation ----------------------------------------------------------------------------------


async def test_a_cancelled_attempt_is_acknowledged_only_after_its_child_is_gone(autojump_clock: MockClock) -> None:
    gone_at_acknowledgement: list[int] = []

    class Watching(ScriptedServer):
        async def _do_acknowledge(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            gone_at_acknowledgement.append(rig.children.running)
            return await super()._do_acknowledge(body)

    rig = Rig(hangs(), server=Watching())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        with trio.fail_after(30):
            await rig.server.run_closed.wait()

    assert gone_at_acknowledgement == [0]
    assert rig.server.bodies("acknowledge")[0]["request_id"] == "Q"
    assert rig.server.operations("outcome") == []
    assert rig.attempt()["outcome"] == "cancelled"
    assert rig.attempt()["stop"]["reason"] == StopCause.CANCELLED
    assert rig.server.operations("acknowledge", "claim_heartbeat", "history", "deliver", "complete") == [
        "acknowledge", "claim_heartbeat", "history", "deliver", "history", "complete",
    ]  # fmt: skip
    assert rig.server.closed == "cancelled"


async def test_a_call_that_is_already_cancelled_starts_no_child_and_is_acknowledged_at_once(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    original = rig.server._do_control

    async def cancel_first(body: dict[str, Any]) -> Any:
        if rig.server.cancellation is None:
            rig.server.request_cancellation()
        return await original(body)

    rig.server._do_control = cancel_first  # type: ignore[method-assign]

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert len(rig.server.bodies("acknowledge")) == 1


async def test_a_result_that_races_with_a_cancellation_is_not_published(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=0.5))
    original = rig.server._do_outcome

    async def cancel_first(body: dict[str, Any]) -> Any:
        rig.server.request_cancellation()
        return await original(body)

    rig.server._do_outcome = cancel_first  # type: ignore[method-assign]

    await rig.run_for(5)

    assert "ActivityCompleted" not in rig.server.event_types()
    assert len(rig.server.bodies("acknowledge")) == 1
    assert rig.attempt()["outcome"] == "cancelled"


# -- unconfirmed stops -----------------------------------------------------------------------------


async def test_an_unconfirmed_stop_is_never_acknowledged_keeps_its_slot_and_fails_the_run(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(hangs(), provable=False)
    rig.server.start_run()

    async def cancel_the_run() -> None:
        await rig.children.started.wait()
        rig.server.request_cancellation()

    with pytest.raises(StopUnconfirmed, match="4711"):
        await rig.run_beside(cancel_the_run)

    assert rig.server.operations("acknowledge", "outcome", "complete", "fail") == []
    assert rig.server.operations("deregister") == []
    assert len(rig.server.bodies("poll")) == 1


async def test_a_cancelled_worker_still_tells_of_an_unconfirmed_stop(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), provable=False)
    rig.server.start_run()

    with pytest.raises(StopUnconfirmed, match="4711"):
        await rig.run_beside(rig.children.started.wait, then_cancel=True)

    assert rig.server.operations("deregister") == []
