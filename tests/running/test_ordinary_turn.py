"""An ordinary worker's authority is its task lease: kept beside the handler, and the end of everything when lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from proctor.core.attempt import ChildEnd, Returned, StopCause
from proctor.core.codec import encode
from proctor.core.jobs import Job
from proctor.errors import StopUnconfirmed
from running.rigs import Rig, one_call
from running.scripted_children import Beat, ScriptedChildren, beats, hangs, raises, returns
from running.scripted_server import Refusal, ScriptedServer, Silence

PUBLISHING = ("complete", "fail")


def ordinary(*behaviours: Any, **options: Any) -> Rig:
    return Rig(*behaviours, profile="ordinary", **options)


def silence(body: dict[str, Any]) -> None:
    raise Silence


def refusing(status: int, reason: str) -> Callable[[dict[str, Any]], None]:
    def lie(body: dict[str, Any]) -> None:
        raise Refusal(status, {"reason": reason})

    return lie


def set_to(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.update({key: value})


async def test_a_call_runs_inside_the_task_and_is_recorded_by_its_completion(autojump_clock: MockClock) -> None:
    rig = ordinary(returns("x"))

    await rig.run_to_close()

    assert rig.server.operations("prepare", "control", "outcome", "checkpoint") == []
    (body,) = rig.server.bodies("complete")
    assert [command["type"] for command in body["commands"]] == ["record_local_activity", "complete_workflow"]
    assert rig.server.operations("claim_heartbeat", "complete")[0] == "claim_heartbeat"


async def test_a_silent_handler_is_renewed_every_second(autojump_clock: MockClock) -> None:
    rig = ordinary(returns("x", after=20))

    await rig.run_to_close()

    times = rig.server.times("claim_heartbeat")
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 1.05


async def test_renewals_move_the_dead_mans_instant_counted_from_the_request(autojump_clock: MockClock) -> None:
    rig = ordinary(returns("x", after=3))
    rig.server.latency = 0.4

    await rig.run_to_close()

    times = rig.server.times("claim_heartbeat")
    for at, until in zip(times[2:], rig.children.all_reins[0].moves, strict=False):
        assert until == pytest.approx(at + rig.server.lease, abs=0.001)


@pytest.mark.parametrize(
    "lie",
    [
        refusing(409, "run_closed"),
        refusing(409, "task_not_leased"),
        refusing(404, "task_not_found"),
        set_to("renewed", False),
        set_to("lease_owner", "another"),
        set_to("workflow_task_attempt", True),
        set_to("task_id", "another"),
        set_to("lease_expires_at", None),
        set_to("cancellation_request", {}),
    ],
)
async def test_a_refused_or_lying_renewal_stops_the_child_and_publishes_nothing(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = ordinary(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.lie("claim_heartbeat", lie)
        await trio.sleep(1.5)

        assert rig.children.running == 0
        assert rig.children.all_reins[0].stops[0][0] == StopCause.AUTHORITY_LOST
        assert rig.server.operations(*PUBLISHING) == []
        assert rig.attempt()["outcome"] == "abandoned"


async def test_a_lease_that_is_already_over_gives_no_authority(autojump_clock: MockClock) -> None:
    rig = ordinary(hangs())
    rig.server.lie_always("claim_heartbeat", set_to("lease_expires_at", "2020-01-01T00:00:00Z"))

    await rig.run_for(15)

    assert rig.children.jobs == []
    assert rig.server.operations(*PUBLISHING) == []


async def test_a_silent_server_has_the_child_stopped_before_its_lease_can_be_over(autojump_clock: MockClock) -> None:
    rig = ordinary(hangs(), enforcing=False)
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.lie_always("claim_heartbeat", silence)
        last = rig.server.times("claim_heartbeat")[-1]
        await trio.sleep(20)

        assert rig.children.ended_at[0] == pytest.approx(last + rig.server.lease, abs=1.1)
        assert rig.children.ended_at[0] <= last + rig.server.lease + 1.05
        assert rig.server.operations(*PUBLISHING) == []


async def test_a_child_is_given_no_more_time_than_the_lease_has(autojump_clock: MockClock) -> None:
    rig = ordinary(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        renewed = rig.server.times("claim_heartbeat")[-1]

        assert rig.children.jobs[0].limits.authority <= renewed + rig.server.lease + 0.011


async def test_a_claim_that_is_lost_between_two_attempts_ends_the_turn_at_once(autojump_clock: MockClock) -> None:
    retry = {"max_attempts": 2, "backoff_seconds": [60], "non_retryable_error_types": []}
    rig = ordinary(raises("OSError"), workflow_class=one_call(retry_policy=retry))
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(3)
        rig.server.lie_always("claim_heartbeat", refusing(409, "run_closed"))
        await trio.sleep(1.5)

        ended = [event for event in rig.events if event["event"] == "workflow_task"]
        assert [(event["outcome"], event["reason"]) for event in ended] == [("abandoned", "run_closed")]
        assert rig.server.operations(*PUBLISHING) == []


async def test_the_completion_gives_up_before_the_lease_can_be_over(autojump_clock: MockClock) -> None:
    rig = ordinary(returns("x"), server=ScriptedServer(lease=3.0))

    await rig.run_to_close()

    assert rig.server.spare["complete"] >= -1e-6


@workflow.defn(name="wf")
class Twice:
    async def run(self, ctx: Any) -> Any:
        await ctx.local_activity("act", [1], start_to_close_timeout=30)
        return await ctx.local_activity("act", [2], start_to_close_timeout=30)


async def test_a_draining_worker_begins_no_further_call_and_records_nothing_of_the_first(
    autojump_clock: MockClock,
) -> None:
    rig = ordinary(returns("one", after=5), returns("two"), workflow_class=Twice)
    rig.server.start_run()

    async def drain() -> None:
        await rig.children.started.wait()
        rig.service.drain()

    with trio.fail_after(20):
        await rig.run_beside(drain)

    assert len(rig.children.jobs) == 1
    assert rig.server.operations(*PUBLISHING) == []


class LateStops(ScriptedChildren):
    """Children that a stop reaches too late: their handlers win, and return what they made."""

    async def run(self, job: Job, reins: Any, on_heartbeat: Beat) -> ChildEnd:
        self.jobs.append(job)
        self.started.set()
        await reins.pulled.wait()
        await trio.sleep(0.2)
        return Returned(encode("late"))


async def test_a_handler_that_returns_although_the_claim_is_lost_is_recorded_nowhere(autojump_clock: MockClock) -> None:
    rig = ordinary(children=LateStops())
    honest = itertools.count()

    def refuse_later(body: dict[str, Any]) -> None:
        if next(honest) >= 3:
            raise Refusal(409, {"reason": "run_closed"})

    rig.server.lie_always("claim_heartbeat", refuse_later)

    await rig.run_for(8)

    assert len(rig.children.jobs) == 1
    assert rig.attempt()["reason"] == "run_closed"
    assert rig.server.operations(*PUBLISHING) == []


@pytest.mark.parametrize("lie", [silence, refusing(503, "backend_unavailable"), refusing(429, "throttled")])
async def test_a_server_that_recovers_within_the_lease_costs_nothing(
    autojump_clock: MockClock, lie: Callable[[dict[str, Any]], Any]
) -> None:
    rig = ordinary(returns("x", after=8))
    rig.server.lie("claim_heartbeat", lambda body: None, lambda body: None, *[lie] * 20)

    await rig.run_to_close()

    assert rig.server.closed == "complete_workflow"


async def test_attempts_are_retried_inside_the_task_with_their_backoff(autojump_clock: MockClock) -> None:
    retry = {"max_attempts": 3, "backoff_seconds": [4, 0], "non_retryable_error_types": []}
    rig = ordinary(
        raises("OSError"),
        beats({"n": 1}, {"n": 2}, then=raises("OSError")),
        returns("x"),
        workflow_class=one_call(retry_policy=retry),
    )

    await rig.run_to_close()

    ((record, _),) = [body["commands"] for body in rig.server.bodies("complete")]
    assert [one["outcome"] for one in record["attempts"]] == ["failed", "failed", "completed"]
    assert [one.get("backoff_seconds") for one in record["attempts"]] == [4, 0, None]
    assert len({job.attempt_id for job in rig.children.jobs}) == 3
    assert record["attempts"][1]["heartbeats"][0]["details"] == {"n": 1}
    assert rig.children.ended_at[1] - rig.children.ended_at[0] > 4


async def test_a_deadline_stops_the_attempt_and_the_total_one_is_final(autojump_clock: MockClock) -> None:
    retry = {"max_attempts": 5, "backoff_seconds": [], "non_retryable_error_types": []}
    rig = ordinary(
        hangs(), hangs(), hangs(),
        workflow_class=one_call(retry_policy=retry, start_to_close_timeout=3, schedule_to_close_timeout=7),
    )  # fmt: skip

    await rig.run_to_close()

    record = rig.server.bodies("complete")[0]["commands"][0]
    assert [one["timeout_kind"] for one in record["attempts"]] == [
        "start_to_close",
        "start_to_close",
        "schedule_to_close",
    ]
    assert record["outcome"] == "timed_out"


async def test_an_unconfirmed_stop_records_nothing_keeps_its_slot_and_fails_the_worker(
    autojump_clock: MockClock,
) -> None:
    rig = ordinary(hangs(), provable=False, workflow_class=one_call(start_to_close_timeout=2))
    rig.server.start_run()

    with pytest.raises(StopUnconfirmed):
        await rig.run_beside(partial(trio.sleep, 10))

    assert rig.server.operations(*PUBLISHING, "deregister") == []
    assert len(rig.server.bodies("poll")) == 1


async def test_a_legacy_cancel_flag_is_recorded_without_a_child(autojump_clock: MockClock) -> None:
    rig = ordinary()
    rig.server.lie("poll", lambda body: body["task"].update(cancel_requested=True))

    await rig.run_to_close()

    record = rig.server.bodies("complete")[0]["commands"][0]
    assert (record["outcome"], record["exception_type"], record["non_retryable"]) == (
        "cancelled",
        "ActivityCancelled",
        True,
    )
    assert rig.children.jobs == []


async def test_a_cancellation_policy_is_refused_and_named(autojump_clock: MockClock) -> None:
    rig = ordinary(workflow_class=one_call(cancellation_policy="try_cancel"))

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert "supervised profile" in rig.server.bodies("fail")[0]["failure"]["message"]
