"""A worker's life: negotiate, register, poll, drain, stop, deregister. In that order, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.attempt import StopCause
from proctor.errors import (
    AuthorityLost,
    NegotiationRefused,
    ProtocolBreach,
    ServerRefused,
    ServerUnreachable,
    StopUnconfirmed,
)
from proctor.running.polling import poll_backoff
from running.rigs import Rig
from running.scripted_children import hangs, returns
from running.scripted_server import Refusal, ScriptedServer, Silence


def refusing(status: int, **body: Any) -> Callable[[dict[str, Any]], None]:
    def lie(honest: dict[str, Any]) -> None:
        raise Refusal(status, body)

    return lie


def silence(body: dict[str, Any]) -> None:
    raise Silence


async def test_nothing_is_polled_before_the_registration_and_nothing_after_the_deregistration(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(returns("x"))

    await rig.run_to_close()

    operations = rig.server.operations()
    assert operations[:2] == ["discovery", "register"]
    assert operations[-1] == "deregister"
    assert operations.count("deregister") == 1


async def test_the_registration_says_what_this_worker_is(autojump_clock: MockClock) -> None:
    rig = Rig(slots=3)

    await rig.idle_for(1)

    (body,) = rig.server.bodies("register")
    assert body["worker_id"] == "w"
    assert body["task_queue"] == "q"
    assert body["runtime"] == "python"
    assert body["supported_workflow_types"] == ["wf"]
    assert body["supported_activity_types"] == []
    assert body["max_concurrent_workflow_tasks"] == 3
    assert "prepared_local_activities" in body["capabilities"]
    assert {"local_activities", "worker_sessions", "sticky_execution"} <= set(body["capability_manifest"])


async def test_a_server_that_lacks_a_capability_sees_no_registration(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.capabilities["prepared_local_activities"] = False

    with pytest.raises(NegotiationRefused) as caught:
        await rig.service.run()

    assert caught.value.missing == ("worker_protocol.server_capabilities.prepared_local_activities",)
    assert rig.server.operations() == ["discovery"]


@pytest.mark.parametrize(
    ("operation", "lie", "error"),
    [
        ("discovery", silence, ServerUnreachable),
        ("discovery", refusing(401), ServerRefused),
        ("register", silence, ServerUnreachable),
        ("register", refusing(409, reason="workflow_definition_changed"), ServerRefused),
        ("register", lambda body: body.update(registration_token="short"), ProtocolBreach),
    ],
)
async def test_a_worker_that_cannot_register_says_so_and_claims_nothing(
    autojump_clock: MockClock, operation: str, lie: Callable[[dict[str, Any]], Any], error: type[Exception]
) -> None:
    rig = Rig()
    rig.server.lie_always(operation, lie)

    with pytest.raises(error):
        await rig.service.run()

    assert rig.server.operations("poll") == []


async def test_an_idle_worker_beats_at_the_interval_of_the_server(autojump_clock: MockClock) -> None:
    rig = Rig(slots=2)

    await rig.idle_for(35)

    beats = rig.server.bodies("worker_heartbeat")
    assert len(beats) == 3


async def test_a_beat_tells_how_many_slots_are_free(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), slots=2)

    await rig.run_for(15)

    assert rig.server.bodies("worker_heartbeat")[0]["task_slots"]["workflow_available"] == 1


async def test_registration_and_beats_carry_what_is_true_of_this_process_then(autojump_clock: MockClock) -> None:
    rig = Rig()

    await rig.idle_for(25)

    told = [
        body["process_metrics"] for body in (*rig.server.bodies("register"), *rig.server.bodies("worker_heartbeat"))
    ]
    assert len(told) == 3
    born = {(one["process_id"], one["host"], one["process_started_at"]) for one in told}
    assert len(born) == 1
    assert born.pop()[0] == os.getpid()
    for one in told:
        assert 0 <= one["cpu_percent"] <= 100
        assert one["memory_bytes"] > 1_000_000
        assert one["process_uptime_seconds"] >= 0


async def test_a_draining_worker_offers_no_slots(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=15), slots=2)

    await drained(rig, after=3)

    assert [body["task_slots"]["workflow_available"] for body in rig.server.bodies("worker_heartbeat")] == [0]


async def test_a_stale_registration_is_looked_at_when_a_poll_tells_of_it(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie("poll", lambda body: body.update(poll_status="stale_worker_registration"))
    rig.server.lie("worker_heartbeat", refusing(409, reason="worker_registration_superseded"))

    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.idle_for(60)

    assert caught.group_contains(AuthorityLost)
    assert rig.server.times("worker_heartbeat")[0] < 1


async def test_a_stale_registration_is_looked_at_when_an_attempt_is_refused_for_it(autojump_clock: MockClock) -> None:
    rig = Rig(hangs())
    rig.server.lie("control", lambda body: None, refusing(409, reason="stale_worker_registration"))
    rig.server.lie("worker_heartbeat", refusing(404, reason="worker_not_registered"))

    await rig.run_for(3)

    assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "stale_worker_registration")
    assert len(rig.server.bodies("register")) == 2
    assert rig.server.operations("outcome", "complete", "fail") == []


async def test_a_server_that_came_back_with_less_is_not_registered_with_again(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie("worker_heartbeat", refusing(404, reason="worker_not_registered"))
    rig.server.lie("discovery", lambda body: None, lambda body: body["worker_protocol"].update(version="1.19"))

    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.idle_for(60)

    assert caught.group_contains(NegotiationRefused)
    assert len(rig.server.bodies("register")) == 1


async def test_a_failed_beat_is_repeated_at_the_next_interval(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie("worker_heartbeat", silence, refusing(503, reason="backend_unavailable"))

    await rig.idle_for(45)

    assert len(rig.server.bodies("worker_heartbeat")) == 4


async def test_a_forgotten_worker_registers_again(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie("poll", refusing(412, reason="worker_not_registered"))
    rig.server.lie("worker_heartbeat", refusing(404, reason="worker_not_registered"))

    await rig.idle_for(5)

    assert len(rig.server.bodies("register")) == 2
    assert rig.server.times("register")[1] < 1


async def test_a_worker_whose_id_was_taken_over_stops(autojump_clock: MockClock) -> None:
    rig = Rig(hangs())
    rig.server.lie("worker_heartbeat", refusing(409, reason="worker_registration_superseded"))

    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.run_for(60)

    assert caught.group_contains(AuthorityLost)
    assert rig.children.running == 0
    assert rig.attempt()["published"] is False


async def test_a_worker_whose_id_was_taken_over_does_not_end_the_registration_of_the_other(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(hangs())
    del rig.server.capabilities["worker_deregistration_fencing"]  # then only the id says which one is to be ended
    rig.server.lie("worker_heartbeat", refusing(409, reason="worker_registration_superseded"))

    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.run_for(60)

    assert caught.group_contains(AuthorityLost)
    assert rig.server.operations("deregister", "deregister_by_id") == []
    assert rig.events[-1]["event"] == "registration_left"


async def test_an_unfenced_worker_ends_its_own_registration_by_its_id(autojump_clock: MockClock) -> None:
    rig = Rig()
    del rig.server.capabilities["worker_deregistration_fencing"]

    await rig.idle_for(1)

    assert rig.server.operations("deregister", "deregister_by_id") == ["deregister_by_id"]
    assert rig.events[-1]["event"] == "deregistered"


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_the_proof_of_a_stop_is_told_also_when_the_worker_is_cancelled(
    autojump_clock: MockClock, profile: str
) -> None:
    rig = Rig(hangs(), profile=profile)
    rig.server.start_run()

    await rig.run_beside(rig.children.started.wait, then_cancel=True)

    ended = rig.attempt()
    assert ended["stop"] == {"pid": 4711, "reason": "shutdown"}
    assert (ended["reason"], ended["published"]) == ("shutdown", False)


# -- lost slots ------------------------------------------------------------------------------------


async def test_a_worker_all_of_whose_slots_are_lost_ends_although_it_could_answer_queries(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(hangs(), provable=False)
    rig.server.capabilities["query_tasks"] = True
    rig.server.start_run()

    async def lose_the_slot() -> None:
        await rig.children.started.wait()
        rig.children.all_reins[-1].request_stop(StopCause.AUTHORITY_LOST, "test")

    begun = trio.current_time()
    with trio.fail_after(120), pytest.raises(StopUnconfirmed, match="4711"):
        await rig.run_beside(lose_the_slot)

    assert trio.current_time() < begun + 60, "it ended by itself"
    assert rig.server.operations("query_poll"), "it asked for queries"
    assert rig.server.operations("deregister") == []


async def test_a_lost_slot_is_offered_to_nobody_while_the_others_work_on(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), slots=2, provable=False)
    rig.server.start_run()

    async def lose_one() -> None:
        await rig.children.started.wait()
        rig.children.all_reins[-1].request_stop(StopCause.AUTHORITY_LOST, "test")
        await trio.sleep(100)

    with pytest.raises(StopUnconfirmed, match="1 slots"):
        await rig.run_beside(lose_one, then_cancel=True)

    offered = [body["task_slots"]["workflow_available"] for body in rig.server.bodies("worker_heartbeat")]
    assert offered[1:] == [1] * (len(offered) - 1)
    late = [at for at in rig.server.times("poll") if at > rig.children.ended_at[0] + 31]
    assert late
    assert len(late) == len(set(late)), "only one slot polls"


# -- polling ---------------------------------------------------------------------------------------


def test_the_poll_backoff_doubles_from_one_second_to_thirty() -> None:
    ceilings = [poll_backoff(failures, jitter=1.0) for failures in range(1, 9)]

    assert ceilings == [1, 2, 4, 8, 16, 30, 30, 30]
    assert poll_backoff(1, jitter=0.0) == 0.5
    assert poll_backoff(1_000_000, jitter=1.0) == 30


async def test_a_failing_poll_backs_off(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie_always("poll", refusing(500))

    await rig.idle_for(60)

    assert 5 <= len(rig.server.bodies("poll")) <= 10


async def test_a_lost_poll_answer_is_asked_for_again_under_the_same_request_id(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie("poll", silence)

    await rig.idle_for(1)

    first, second = rig.server.bodies("poll")
    assert first["poll_request_id"] == second["poll_request_id"]
    assert first["poll_request_id"].startswith("wf-poll-")


async def test_each_poll_has_a_request_id_of_its_own(autojump_clock: MockClock) -> None:
    rig = Rig()

    await rig.idle_for(100)

    ids = [body["poll_request_id"] for body in rig.server.bodies("poll")]
    assert len(ids) == len(set(ids)) >= 3


async def test_full_capacity_is_waited_for_as_long_as_the_server_says(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie(
        "poll", refusing(429, reason="long_poll_capacity_exhausted", task=None, retryable=True, retry_after_seconds=7)
    )

    await rig.idle_for(8)

    first, second = rig.server.times("poll")
    assert second - first == pytest.approx(7, abs=0.1)


async def test_a_server_that_answers_nothing_at_once_is_not_asked_in_a_tight_loop(autojump_clock: MockClock) -> None:
    class Hasty(ScriptedServer):
        async def _do_poll(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            return 200, {"task": None, "poll_status": "empty"}

    rig = Rig(server=Hasty(latency=0.0001))

    await rig.idle_for(20)

    assert 15 <= len(rig.server.bodies("poll")) <= 26


# -- drain and stop --------------------------------------------------------------------------------


async def drained(rig: Rig, *, after: float) -> float:
    """Run until a drain has ended the service; gives the seconds from drain to end."""
    rig.server.start_run()
    asked = 0.0

    async def ask() -> None:
        nonlocal asked
        await trio.sleep(after)
        asked = trio.current_time()
        rig.service.drain()

    await rig.run_beside(ask)
    return trio.current_time() - asked


async def test_a_drain_of_an_idle_worker_ends_at_once(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x"))

    seconds = await drained(rig, after=3)

    assert seconds < 0.1
    assert rig.server.operations()[-1] == "deregister"


async def test_a_drain_lets_a_running_attempt_publish(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=8))

    await drained(rig, after=3)

    assert rig.attempt()["outcome"] == "completed"
    assert rig.server.closed == "complete_workflow"
    assert len(rig.server.bodies("poll")) == 1


async def test_a_drain_stops_what_outlives_its_grace_and_publishes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), drain_grace=4)

    seconds = await drained(rig, after=3)

    assert seconds == pytest.approx(4, abs=0.2)
    assert rig.children.running == 0
    assert rig.attempt()["stop"]["reason"] == StopCause.SHUTDOWN
    assert rig.attempt()["published"] is False
    assert rig.server.operations("outcome", "complete", "fail", "acknowledge") == []
    assert rig.server.operations()[-1] == "deregister"


async def test_a_drain_starts_no_further_attempt_of_a_run_it_works_on(autojump_clock: MockClock) -> None:
    @workflow.defn(name="wf")
    class TwoCalls:
        async def run(self, ctx: Any) -> Any:
            await ctx.local_activity("act", [1], start_to_close_timeout=30)
            return await ctx.local_activity("act", [2], start_to_close_timeout=30)

    rig = Rig(returns("x", after=8), workflow_class=TwoCalls)

    await drained(rig, after=3)

    assert rig.attempt()["outcome"] == "completed"
    assert len(rig.server.bodies("prepare")) == 1
    assert rig.server.operations("complete", "fail") == []
    assert rig.server.operations()[-1] == "deregister"


async def test_draining_twice_is_draining_once(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x"))
    rig.service.drain()
    rig.service.drain()

    await rig.service.run()

    assert [event["event"] for event in rig.events].count("draining") == 1
    assert rig.server.operations("poll") == []


async def test_a_cancelled_worker_stops_its_child_before_it_deregisters(autojump_clock: MockClock) -> None:
    running_at_deregistration: list[int] = []

    class Watching(ScriptedServer):
        async def _do_deregister(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            running_at_deregistration.append(rig.children.running)
            return await super()._do_deregister(body)

    rig = Rig(hangs(), server=Watching())

    await rig.run_for(5)

    assert running_at_deregistration == [0]
    assert rig.attempt()["stop"]["reason"] == StopCause.SHUTDOWN
    assert rig.server.operations("outcome", "complete", "fail", "acknowledge") == []


@pytest.mark.parametrize("seconds", [0.001, 0.006, 0.011, 0.016, 0.021, 0.026, 0.031, 0.041, 0.051, 0.12, 0.131, 0.141])
async def test_a_worker_may_be_cancelled_at_any_moment(autojump_clock: MockClock, seconds: float) -> None:
    rig = Rig(returns("x", after=0.08))

    await rig.run_for(seconds)

    assert rig.children.running == 0
    # A registration whose answer was not awaited has no token to end it with; the server lets it go stale.
    assert rig.server.registered is False or not any(event["event"] == "registered" for event in rig.events)
    assert len(rig.attempts()) == len(rig.server.bodies("prepare")) or not rig.children.jobs


# -- deregistration --------------------------------------------------------------------------------


async def test_a_deregistration_is_repeated_only_as_the_server_allows(autojump_clock: MockClock) -> None:
    rig = Rig()
    fence = "0123456789abcdef0123456789abcdef"
    complete = refusing(
        503,
        reason="backend_unavailable",
        operation="deregister_worker",
        outcome="unknown",
        worker_id="w",
        registration_token=fence,
        retryable=True,
        retry_after_seconds=2,
    )
    rig.server.lie("deregister", silence, complete)

    await rig.idle_for(1)

    assert len(rig.server.bodies("deregister")) == 3
    assert rig.events[-1]["event"] == "deregistered"


@pytest.mark.parametrize(
    "lie",
    [
        refusing(409, reason="worker_registration_lost_authority"),
        refusing(503, reason="backend_unavailable"),
        lambda body: body.update(registration_token="another"),
    ],
)
async def test_a_refused_deregistration_is_left(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = Rig()
    rig.server.lie("deregister", lie)

    await rig.idle_for(1)

    assert len(rig.server.bodies("deregister")) == 1
    assert rig.events[-1]["event"] == "registration_left"


async def test_a_server_that_is_gone_does_not_hold_the_end_up(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.server.lie_always("deregister", silence)
    begun = trio.current_time()

    await rig.idle_for(1)

    assert trio.current_time() - begun < 7


async def test_each_slot_polls_for_itself(autojump_clock: MockClock) -> None:
    rig = Rig(slots=3)

    await rig.idle_for(1)

    assert len(rig.server.bodies("poll")) == 3
