"""One local activity on one claim: order of calls, renewals, deadlines, heartbeats, cancellation, stops."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor.core.attempt import StopCause
from proctor.core.beats import MAX_DETAILS_BYTES
from proctor.core.codec import decode_bytes, decode_value
from running.rigs import Rig, one_call
from running.scripted_children import beats, blob_of, hangs, raises, returns
from running.scripted_server import ScriptedServer

RETRY = {"max_attempts": 3, "backoff_seconds": [0, 0], "non_retryable_error_types": []}


async def test_a_call_runs_and_its_result_completes_the_run(autojump_clock: MockClock) -> None:
    rig = Rig(returns({"n": 1}))

    await rig.run_to_close()

    (done,) = rig.server.bodies("complete")
    assert decode_value(done["commands"][0]["result"], "avro") == {"n": 1}
    assert rig.attempt()["outcome"] == "completed"
    assert rig.attempt()["published"] is True


async def test_control_confirms_the_claim_before_the_child_and_before_the_outcome(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=0.1))

    await rig.run_to_close()

    assert rig.server.operations("prepare", "control", "outcome", "history", "complete") == [
        "prepare", "control", "control", "outcome", "history", "complete",
    ]  # fmt: skip
    assert rig.server.bodies("outcome")[0]["report"]["result"]["blob"] == blob_of("x")


async def test_the_child_gets_its_arguments_and_the_facts_of_its_attempt(autojump_clock: MockClock) -> None:
    rig = Rig(returns(None))

    await rig.run_to_close()

    (job,) = rig.children.jobs
    facts = json.loads(job.context)
    assert decode_bytes(job.payload) == ["in"]
    assert facts == {
        "task_id": "T1",
        "activity_type": "act",
        "activity_execution_id": "E",
        "activity_attempt_id": "A1",
        "attempt_number": 1,
        "task_queue": "q",
        "worker_id": "w",
        "workflow_id": "wf-1",
        "run_id": "R",
        "last_heartbeat": None,
    }


async def test_a_silent_handler_is_renewed_at_least_every_second(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=20))

    await rig.run_to_close()

    gaps = [later - earlier for earlier, later in itertools.pairwise(rig.server.times("control"))]
    assert len(gaps) > 15
    assert max(gaps) <= 1.0


async def test_every_renewal_moves_the_dead_mans_instant_of_the_supervisor(autojump_clock: MockClock) -> None:
    rig = Rig(returns("x", after=5))

    await rig.run_to_close()

    (reins,) = rig.children.all_reins
    assert len(reins.moves) == len(rig.server.times("control"))
    assert reins.moves == sorted(reins.moves)
    for started, until in zip(rig.server.times("control"), reins.moves, strict=True):
        # The server renews after half the latency; the whole round trip is charged to the worker.
        assert until == pytest.approx(started + rig.server.lease, abs=1e-3)


async def test_the_limits_of_the_child_come_from_the_receipt_not_from_its_start(autojump_clock: MockClock) -> None:
    server = ScriptedServer(latency=0.5)
    rig = Rig(returns("x"), server=server, workflow_class=one_call(schedule_to_close_timeout=60, heartbeat_timeout=9))

    await rig.run_to_close()

    (job,) = rig.children.jobs
    (prepared_at,) = server.times("prepare")
    assert job.limits.attempt == pytest.approx(prepared_at + 30, abs=1e-3)
    assert job.limits.total == pytest.approx(prepared_at + 60, abs=1e-3)
    assert job.limits.heartbeat_timeout == 9


# -- deadlines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "cause", "kind"),
    [
        ({"start_to_close_timeout": 2}, StopCause.ATTEMPT_TIMEOUT, "start_to_close"),
        ({"start_to_close_timeout": 2, "schedule_to_close_timeout": 2}, None, "schedule_to_close"),
        ({"heartbeat_timeout": 2}, StopCause.HEARTBEAT_TIMEOUT, "heartbeat"),
    ],
)
async def test_a_hanging_handler_is_stopped_at_its_deadline_and_reported_timed_out(
    autojump_clock: MockClock, options: dict[str, Any], cause: StopCause | None, kind: str
) -> None:
    rig = Rig(hangs(), workflow_class=one_call(**options))

    await rig.run_to_close()

    (ended_at,) = rig.children.ended_at
    (prepared_at,) = rig.server.times("prepare")
    assert ended_at - prepared_at == pytest.approx(2, abs=0.06)
    assert rig.attempt()["outcome"] == "timed_out"
    assert rig.attempt()["timeout_kind"] == kind
    assert rig.attempt()["published"] is True
    if cause is not None:
        assert rig.attempt()["stop"]["reason"] == cause


async def test_a_timeout_is_reported_only_when_the_server_agrees_that_it_is_due(autojump_clock: MockClock) -> None:
    server = ScriptedServer(latency=0.6)
    rig = Rig(hangs(), server=server, workflow_class=one_call(start_to_close_timeout=3))

    await rig.run_to_close()

    assert len(server.bodies("outcome")) == 1
    assert rig.attempt()["reason"] == "ActivityTimedOut"


async def test_a_heartbeat_timeout_waits_for_the_deadline_of_the_server(autojump_clock: MockClock) -> None:
    rig = Rig(
        # The second heartbeat is held back by the rate limit, so the server's deadline lies after the
        # child's own.
        beats({"n": 1}, {"n": 2}, every=0.1, then=hangs()),
        workflow_class=one_call(heartbeat_timeout=3),
    )

    await rig.run_to_close()

    assert [body["progress"]["details"] for body in rig.server.bodies("heartbeat")] == [{"n": 1}, {"n": 2}]
    assert len(rig.server.bodies("outcome")) == 1
    assert rig.attempt()["timeout_kind"] == "heartbeat"
    assert rig.attempt()["published"] is True


async def test_a_timed_out_attempt_is_retried_on_a_new_task_with_a_new_nonce(autojump_clock: MockClock) -> None:
    rig = Rig(hangs(), returns("second"), workflow_class=one_call(start_to_close_timeout=2, retry_policy=RETRY))

    await rig.run_to_close()

    prepares = rig.server.bodies("prepare")
    assert [event["reason"] for event in rig.attempts()] == ["ActivityRetryScheduled", "ActivityCompleted"]
    assert prepares[0]["worker_attempt_id"] != prepares[1]["worker_attempt_id"]
    assert prepares[0]["descriptor"] == prepares[1]["descriptor"]


async def test_a_released_claim_is_neither_completed_nor_failed(autojump_clock: MockClock) -> None:
    rig = Rig(raises("OSError"), hangs(), workflow_class=one_call(retry_policy=RETRY))

    await rig.run_for(5)

    first = next(event for event in rig.events if event["event"] == "workflow_task")
    assert (first["outcome"], first["reason"]) == ("released", "ActivityRetryScheduled")
    assert rig.server.operations("complete", "fail", "history") == []
    assert rig.server.operations("poll")[:2] == ["poll", "poll"]


async def test_a_result_that_arrives_after_the_deadline_is_a_timeout(autojump_clock: MockClock) -> None:
    async def late(job: Any, beat: Any) -> Any:
        with trio.CancelScope(shield=True):
            return await returns("late", after=2.5)(job, beat)

    rig = Rig(late, workflow_class=one_call(start_to_close_timeout=2))

    await rig.run_to_close()

    assert rig.attempt()["reason"] == "ActivityTimedOut"


# -- failures --------------------------------------------------------------------------------------


async def test_a_failure_is_reported_with_its_type_and_message(autojump_clock: MockClock) -> None:
    rig = Rig(raises("ValueError", non_retryable=True))

    await rig.run_to_close()

    (body,) = rig.server.bodies("outcome")
    assert body["report"] == {
        "outcome": "failed",
        "message": "it broke",
        "exception_type": "ValueError",
        "non_retryable": True,
    }
    assert rig.server.closed == "fail_workflow"


async def test_an_unknown_activity_fails_for_good_without_a_child(autojump_clock: MockClock) -> None:
    rig = Rig(activities=frozenset({"other"}), workflow_class=one_call(retry_policy=RETRY))

    await rig.run_to_close()

    (body,) = rig.server.bodies("outcome")
    assert rig.children.jobs == []
    assert body["report"]["exception_type"] == "UnknownActivityType"
    assert body["report"]["non_retryable"] is True
    assert "'act'" in body["report"]["message"]
    assert "other" in body["report"]["message"]


# -- heartbeats ------------------------------------------------------------------------------------


async def test_heartbeats_are_coalesced_first_at_once_newest_wins_last_flushed(autojump_clock: MockClock) -> None:
    rig = Rig(
        beats(*({"n": n} for n in range(100)), every=0.05, then=returns("x")),
        workflow_class=one_call(heartbeat_timeout=6),
    )

    await rig.run_to_close()

    sent = [body["progress"]["details"]["n"] for body in rig.server.bodies("heartbeat")]
    times = rig.server.times("heartbeat")
    assert sent[0] == 0
    assert sent[-1] == 99
    assert sent == sorted(sent)
    assert len(sent) == 4
    assert times[1] - times[0] == pytest.approx(2, abs=0.06)


async def test_the_next_attempt_learns_the_last_recorded_heartbeat(autojump_clock: MockClock) -> None:
    rig = Rig(
        beats({"offset": 1}, {"offset": 2}, then=raises("OSError")),
        returns("x"),
        workflow_class=one_call(heartbeat_timeout=6, retry_policy=RETRY),
    )

    await rig.run_to_close()

    assert json.loads(rig.children.jobs[1].context)["last_heartbeat"] == blob_of({"offset": 2})


@pytest.mark.parametrize("payload", [b"\x80\x04garbage", [1, 2], {"raw": b"\x00"}, {"text": "x" * MAX_DETAILS_BYTES}])
async def test_unusable_details_of_a_child_do_not_stop_its_heartbeat(autojump_clock: MockClock, payload: Any) -> None:
    rig = Rig(beats(payload, then=returns("x")), workflow_class=one_call(heartbeat_timeout=6))

    await rig.run_to_close()

    assert rig.server.bodies("heartbeat")[0]["progress"] == {}
    assert rig.attempt()["outcome"] == "completed"


async def test_no_two_attempt_calls_are_ever_under_way_together(autojump_clock: MockClock) -> None:
    under_way = 0
    most = 0

    class Watching(ScriptedServer):
        async def _answer(self, operation: str, call: Any) -> Any:
            nonlocal under_way, most
            attempt_call = operation in ("control", "heartbeat", "outcome")
            under_way += attempt_call
            most = max(most, under_way)
            try:
                await trio.sleep(0.3)
                return await super()._answer(operation, call)
            finally:
                under_way -= attempt_call

    rig = Rig(
        beats(*({"n": n} for n in range(200)), every=0.05, then=returns("x")),
        server=Watching(),
        workflow_class=one_call(heartbeat_timeout=3),
    )

    await rig.run_to_close()

    assert most == 1
