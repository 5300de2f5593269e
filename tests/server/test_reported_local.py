"""`record_local_activity`: what a 1.18 or 1.19 worker reports of the local calls it ran itself (commands.md §3)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from official.events import check_events
from server.wire import EMPTY_LIST, ENVELOPE, TEXT, Claim, Wire, Worker, instant, side_effect

ORDINARY = ("local_activities",)


@pytest.fixture
async def ordinary(wire: Wire) -> Worker:
    worker = Worker(wire, capabilities=ORDINARY, version="1.19")
    await worker.register()
    return worker


def attempt(number: int = 1, outcome: str = "completed", **fields: Any) -> dict[str, Any]:
    failed = {} if outcome == "completed" else {"message": "no", "exception_type": "RuntimeError"}
    told = {"attempt_id": f"a{number}", "attempt_number": number, "outcome": outcome, "duration_ms": 0}
    return {**told, **failed, **fields}


def reported(*attempts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    listed = list(attempts) or [attempt()]
    outcome = listed[-1]["outcome"]
    ended = {"result": ENVELOPE} if outcome == "completed" else {"message": "no", "exception_type": "RuntimeError"}
    return {
        "type": "record_local_activity",
        "activity_type": "greet",
        "execution_mode": "local",
        "arguments": {"codec": "avro", "blob": EMPTY_LIST},
        "outcome": outcome,
        "attempts": listed,
        **ended,
        **fields,
    }


def retried(number: int = 1, **fields: Any) -> dict[str, Any]:
    return attempt(number, "failed", retry_reason="failure", backoff_seconds=0, **fields)


TWICE: dict[str, Any] = {"max_attempts": 2, "backoff_seconds": [0]}


async def claim_of(wire: Wire, worker: Worker) -> Claim:
    await wire.start()
    return await worker.poll()


async def test_a_retried_call_becomes_the_whole_event_series(
    wire: Wire, ordinary: Worker, shared_fixtures: Path
) -> None:
    claim = await claim_of(wire, ordinary)
    wire.clock.advance(5)
    command = reported(
        retried(duration_ms=1_000),
        attempt(2, duration_ms=2_000, heartbeats=[{"elapsed_ms": 500, "details": {"phase": "greeting"}}]),
        retry_policy=TWICE,
        start_to_close_timeout=30,
    )
    finish = {"type": "complete_workflow", "result": ENVELOPE}
    body = (await claim.complete(command, finish)).ok()
    assert (body["outcome"], body["run_status"], body["created_task_ids"]) == ("completed", "completed", [])
    events = await wire.events()
    assert [event["event_type"] for event in events] == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityHeartbeatRecorded",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]
    check_events(shared_fixtures, events)
    series = [event["payload"] for event in events[2:8]]
    assert {payload["sequence"] for payload in series} == {1}
    assert all(payload["local_activity"] and payload["execution_mode"] == "local" for payload in series)
    assert series[2]["retry_reason"] == "failure"
    assert [series[1]["worker_attempt_id"], series[3]["worker_attempt_id"]] == ["a1", "a2"]
    assert series[1]["activity_attempt_id"] != series[3]["activity_attempt_id"]
    # Attempt 2 took the last two seconds of the five, and its heartbeat came half a second into it.
    assert series[4]["heartbeat_at"] == instant(3.5)
    assert series[4]["progress"] == {"details": {"phase": "greeting"}}
    assert (series[5]["result"], series[5]["payload_codec"]) == (TEXT, "avro")
    assert series[5]["activity"]["attempt_count"] == 2


@pytest.mark.parametrize(
    ("outcome", "fields", "event_type"),
    [
        ("failed", {"non_retryable": True}, "ActivityFailed"),
        ("timed_out", {"timeout_kind": "heartbeat"}, "ActivityTimedOut"),
        ("cancelled", {"non_retryable": True}, "ActivityCancelled"),
    ],
)
async def test_each_bad_ending_has_its_event(
    wire: Wire, ordinary: Worker, outcome: str, fields: dict[str, Any], event_type: str
) -> None:
    claim = await claim_of(wire, ordinary)
    (await claim.complete(reported(attempt(1, outcome, **fields), **fields))).ok()
    event = (await wire.events())[-1]
    assert event["event_type"] == event_type
    assert event["payload"]["message"] == "no"
    if outcome == "timed_out":
        assert event["payload"]["timeout_kind"] == "heartbeat"
        assert "exception_type" not in event["payload"]
    else:
        assert event["payload"]["non_retryable"] is True


async def test_commands_keep_their_order_and_numbers(wire: Wire, ordinary: Worker) -> None:
    claim = await claim_of(wire, ordinary)
    body = (await claim.complete(side_effect(), reported(), side_effect())).ok()
    assert len(body["created_task_ids"]) == 1
    numbers = [event["payload"]["sequence"] for event in (await wire.events())[2:]]
    assert numbers == [1, 2, 2, 2, 3]


async def test_a_second_completion_changes_nothing(wire: Wire, ordinary: Worker) -> None:
    claim = await claim_of(wire, ordinary)
    (await claim.complete(reported())).ok()
    before = await wire.events()
    (await claim.complete(reported())).refused(409, "task_not_leased")
    assert await wire.events() == before


async def test_durations_longer_than_the_run_do_not_reach_back_before_it(wire: Wire, ordinary: Worker) -> None:
    claim = await claim_of(wire, ordinary)
    beats = [{"elapsed_ms": 0}, {"elapsed_ms": 2**53 - 1}]
    (await claim.complete(reported(attempt(duration_ms=2**53 - 1, heartbeats=beats)))).ok()
    seen = [e["payload"]["heartbeat_at"] for e in await wire.events() if e["event_type"] == "ActivityHeartbeatRecorded"]
    assert seen == [instant(0), instant(0)]


async def test_only_protocol_1_18_may_leave_the_attempts_out(wire: Wire) -> None:
    older = Worker(wire, capabilities=ORDINARY, version="1.18")
    await older.register()
    claim = await claim_of(wire, older)
    command = reported()
    del command["attempts"]
    (await claim.complete(command)).ok()
    assert (await wire.event_types())[2:] == ["ActivityScheduled", "ActivityStarted", "ActivityCompleted"]
    newer = Worker(wire, "newer", capabilities=ORDINARY, version="1.19")
    await newer.register()
    second = await newer.poll()
    assert "commands.0.attempts" in (await second.complete(command)).refused(422, "validation_failed")["errors"]


async def test_a_worker_that_did_not_register_reports_is_refused_with_the_whole_completion(wire: Wire) -> None:
    worker = Worker(wire, capabilities=(), version="1.19")
    await worker.register()
    claim = await claim_of(wire, worker)
    body = (await claim.complete(side_effect(), reported())).refused(409, "worker_capability_not_supported")
    assert (body["capability"], body["outcome"], body["recorded"]) == ("local_activities", "rejected", False)
    assert (await wire.event_types())[2:] == []
    (await claim.complete(side_effect())).ok()


def broken(**fields: Any) -> dict[str, Any]:
    return {**reported(), **fields}


def twice(first: dict[str, Any], second: dict[str, Any] | None = None) -> dict[str, Any]:
    return broken(retry_policy=TWICE, attempts=[first, second or attempt(2)])


def beating(*beats: dict[str, Any]) -> dict[str, Any]:
    return broken(attempts=[attempt(heartbeats=list(beats))])


FAILED = {"outcome": "failed", "message": "no", "exception_type": "E", "result": None}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    (broken(activity_type=" "), "activity_type"),
    (broken(outcome="odd"), "outcome"),
    (broken(result=None), "result"),
    (broken(non_retryable=False), "non_retryable"),
    (broken(timeout_kind="heartbeat"), "timeout_kind"),
    (broken(schedule_to_start_timeout=1), "schedule_to_start_timeout"),
    (broken(worker_session={"session_id": "s"}), "worker_session"),
    (broken(parallel_group_id="parallel-activities:1:1"), "parallel_group_id"),
    (broken(selection_member_key="k"), "selection_member_key"),
    (broken(payload_codec="json"), "payload_codec"),
    (broken(start_to_close_timeout=9, schedule_to_close_timeout=8), "start_to_close_timeout"),
    (broken(attempts=[]), "attempts"),
    (broken(attempts=[attempt(2)]), "attempts.0.attempt_number"),
    (broken(attempts=[attempt(1, odd=1)]), "attempts.0.odd"),
    (broken(attempts=[attempt(1, "failed")]), "attempts.0.outcome"),
    (broken(attempts=[attempt(1, retry_reason="failure")]), "attempts.0.retry_reason"),
    (broken(attempts=[attempt(1, backoff_seconds=0)]), "attempts.0.backoff_seconds"),
    (broken(attempts=[attempt(1, non_retryable=None)]), "attempts.0.non_retryable"),
    (broken(attempts=[attempt(1, attempt_id="é" * 128)]), "attempts.0.attempt_id"),
    (broken(attempts=[retried(), attempt(2)]), "attempts"),
    (twice(retried(), attempt(2, attempt_id="a1")), "attempts"),
    (
        twice(attempt(1, "cancelled", retry_reason="failure", backoff_seconds=0)),
        "attempts.0.outcome",
    ),
    (twice({**retried(), "retry_reason": "timeout"}), "attempts.0.retry_reason"),
    (twice({**retried(), "backoff_seconds": 1}), "attempts.0.backoff_seconds"),
    (twice(retried(non_retryable=True)), "attempts.0.non_retryable"),
    (broken(retry_policy={"max_attempts": 101}), "retry_policy.max_attempts"),
    (broken(retry_policy={"max_attempts": 1, "backoff_seconds": [1]}), "retry_policy.backoff_seconds"),
    (broken(retry_policy={"odd": 1}), "retry_policy.odd"),
    (broken(retry_policy={"non_retryable_error_types": ["E", "E"]}), "retry_policy.non_retryable_error_types"),
    (beating({"elapsed_ms": 2}, {"elapsed_ms": 1}), "attempts.0.heartbeats.1.elapsed_ms"),
    (beating({"elapsed_ms": 0, "details": [1]}), "attempts.0.heartbeats.0.details"),
    (beating(*[{"elapsed_ms": 0}] * 1_001), "attempts.0.heartbeats"),
    ({**broken(**FAILED), "message": " "}, "message"),
    (broken(**FAILED, attempts=[attempt(1, "failed", non_retryable=True)]), "attempts.0.non_retryable"),
    (broken(**FAILED, attempts=[attempt(1, "failed", timeout_kind="heartbeat")]), "attempts.0.timeout_kind"),
]


async def test_every_mistake_is_named_and_leaves_no_trace(wire: Wire, ordinary: Worker) -> None:
    claim = await claim_of(wire, ordinary)
    for command, field in MISTAKES:
        reply = await claim.complete(side_effect(), copy.deepcopy(command))
        errors = reply.refused(422, "validation_failed")["errors"]
        assert f"commands.1.{field}" in errors, (field, errors)
    assert await wire.event_types() == ["StartAccepted", "WorkflowStarted"]
