"""Prepared-local §3, rule by rule: of a server that breaks one clause the child is stopped, and nothing is published.

The table has every numbered rule of the reference; a test holds it against the numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from proctor.core.attempt import StopCause
from running.lies import Lie, falsify, forget, set_to, without
from running.rigs import Rig, one_call
from running.scripted_children import beats, hangs, raises, returns
from running.scripted_server import ScriptedServer
from running.test_cleanup_calls import Cleaning
from running.test_lying_server import interrupt
from running.whole_world import Fault, Network, story

PAST, FAR = "2020-01-01T00:00:00Z", "2031-01-01T00:00:00Z"
RETRY = {"max_attempts": 2, "backoff_seconds": [], "non_retryable_error_types": []}
PUBLISHING = ("outcome", "complete", "fail", "acknowledge")


# -- what the worker is doing when it is lied to, and what must have happened afterwards -------------------------------


async def preparing(lie: Lie) -> None:
    rig = Rig(workflow_class=one_call(schedule_to_close_timeout=60, heartbeat_timeout=6))
    rig.server.lie("prepare", lie)

    await rig.run_for(5)

    assert rig.server.operations("prepare") == ["prepare"]
    assert rig.children.jobs == []
    assert rig.server.operations(*PUBLISHING) == []


async def preparing_without_a_heartbeat_timeout(lie: Lie) -> None:
    rig = Rig()
    rig.server.lie("prepare", lie)

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert rig.server.operations(*PUBLISHING) == []


async def running(lie: Lie) -> None:
    rig = Rig(hangs(), workflow_class=one_call(schedule_to_close_timeout=60, heartbeat_timeout=20))
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(1)
        rig.server.lie("control", lie)
        await trio.sleep(5)

        assert rig.children.running == 0
        assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")
        assert rig.server.operations(*PUBLISHING) == []


async def running_on_an_order_to_stop(lie: Lie) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(1)
        rig.server.lie("control", lie)
        await trio.sleep(5)

        assert rig.children.running == 0
        assert rig.children.all_reins[0].stops[0][0] is StopCause.AUTHORITY_LOST
        assert rig.server.operations(*PUBLISHING) == []


async def beating(lie: Lie) -> None:
    rig = Rig(beats({"n": 1}, then=hangs()), workflow_class=one_call(schedule_to_close_timeout=60, heartbeat_timeout=6))
    rig.server.lie("heartbeat", lie)

    await rig.run_for(3)

    assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")
    assert rig.server.operations(*PUBLISHING) == []


async def being_cancelled(lie: Lie) -> None:
    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(1)
        rig.server.request_cancellation()
        rig.server.lie("control", lie)
        await trio.sleep(5)

        assert rig.children.running == 0
        assert rig.server.operations(*PUBLISHING) == []


async def publishing(lie: Lie) -> None:
    rig = Rig(returns("x"))
    rig.server.lie("outcome", lie)

    await rig.run_for(5)

    assert rig.server.operations("outcome") == ["outcome"]
    assert len(rig.children.jobs) == 1
    assert rig.server.operations("complete", "fail") == []


async def publishing_what_is_retried(lie: Lie) -> None:
    server = ScriptedServer()
    server.lie("outcome", lie)
    rig = Rig(raises("OSError"), hangs(), server=server, workflow_class=one_call(retry_policy=RETRY))

    await rig.run_for(0.5)

    assert rig.attempts()[0]["reason"] == "protocol_breach"
    assert rig.server.operations("complete", "fail") == []


async def reading_the_outcome_back(lie: Lie) -> None:
    rig = Rig(returns("x"))
    rig.server.lie("history", lie)

    await rig.run_for(5)

    assert rig.server.operations("outcome") == ["outcome"]
    assert len(rig.children.jobs) == 1
    assert rig.server.operations("complete", "fail") == []


async def acknowledging(lie: Lie) -> None:
    rig = Rig(hangs())
    rig.server.lie("acknowledge", lie)
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        await trio.sleep(5)

    assert rig.server.operations("acknowledge") == ["acknowledge"]
    assert rig.server.operations("deliver", "complete", "fail", "outcome") == []
    assert rig.attempt()["published"] is False


async def recovering(lie: Lie) -> None:
    rig = Rig()
    interrupt(rig.server)
    rig.server.lie("recover", lie)

    await rig.run_for(5)

    assert rig.server.operations("recover") == ["recover"]
    assert rig.server.operations("prepare", *PUBLISHING) == []


async def reading_the_recovery_back(lie: Lie) -> None:
    rig = Rig()
    interrupt(rig.server)
    rig.server.lie("history", lie)

    await rig.run_for(5)

    assert rig.server.operations("recover") == ["recover"]
    assert rig.server.operations("prepare", *PUBLISHING) == []


def cleaning_up(operation: str) -> Callable[[Lie], Awaitable[None]]:
    """Lie to the second call, which runs inside cleanup; the server is the embedded one."""

    async def situation(lie: Lie) -> None:
        async with story(Cleaning, hangs(), hangs()) as told:
            lied_about = _lie_in_cleanup(told.network, operation, lie)

            async def cancel() -> None:
                await told.children.started.wait()
                await trio.sleep(1)
                await told.wire.cancel_cooperatively(cleanup_timeout_seconds=20)

            described = await told.run(meanwhile=cancel)
            history = await told.check()

        ended = [event["event_type"] for event in history if event["payload"].get("sequence") == 2]
        assert "ActivityCompleted" not in ended
        assert described["status"] == "cancelled"
        (attempt_id,) = lied_about
        if operation == "prepare":  # the claim is left to expire; the next one hears no lie
            assert attempt_id not in [job.attempt_id for job in told.children.jobs]
        else:
            assert told.children.all_reins[1].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")

    return situation


def _lie_in_cleanup(network: Network, operation: str, lie: Lie) -> list[str]:
    """Change the first answer of an operation that speaks of cleanup; gives a list to hold the attempt it was about."""
    lied_about: list[str] = []

    async def fault(honest: Any) -> Any:
        status, body = await honest()
        if body.get("cancellation_cleanup") and not lied_about:
            lied_about.append(body["activity_attempt_id"])
            lie(body)
        return status, body

    faults: list[Fault] = [fault] * 100
    network.faults[operation] += faults
    return lied_about


# -- the rules ---------------------------------------------------------------------------------------------------------


def in_cleanup(**fields: Any) -> Lie:
    def lie(body: dict[str, Any]) -> None:
        body["cancellation_cleanup"].update(fields)

    return lie


def inactive(*, renewed: bool, reason: str) -> Lie:
    return lambda body: body.update(active=False, stop_required=True, renewed=renewed, reason=reason)


class Broken(NamedTuple):
    """One clause of a rule, broken."""

    rule: int
    situation: Callable[[Lie], Awaitable[None]]
    what: str
    lie: Lie


def fields(rule: int, situation: Callable[[Lie], Awaitable[None]], **values: Any) -> list[Broken]:
    """Break one clause each by another value; `...` leaves the field out."""
    return [
        Broken(rule, situation, f"{key}={value!r}", without(key) if value is ... else set_to(key, value))
        for key, several in values.items()
        for value in (several if isinstance(several, list) else [several])
    ]


IDENTITY = {"workflow_task_id": "another", "workflow_task_attempt": [2, True, "1"]}
SAME_ATTEMPT = {**IDENTITY, "activity_execution_id": ["another", ...], "activity_attempt_id": ["another", ...]}

BROKEN: list[Broken] = [
    *fields(1, preparing, prepared=[False, "true", ...], duplicate=[None, ...], reason=["x", ...]),
    *fields(2, preparing, **IDENTITY, lease_owner=["another", ...], worker_attempt_id=["another", ...]),
    *fields(2, preparing, attempt_number=[0, True, "1"], activity_execution_id=[" ", ...], activity_attempt_id=" "),
    *fields(3, preparing, lease_expires_at=[PAST, None, "tomorrow", "2031-01-01T00:00:00", ...], server_time=[..., ""]),
    *fields(4, preparing, start_to_close_deadline_at=[PAST, ...], schedule_to_close_deadline_at=[PAST, ...]),
    *fields(4, preparing, heartbeat_deadline_at=...),
    *fields(5, preparing, heartbeat_deadline_at=[None, FAR]),
    *fields(5, preparing_without_a_heartbeat_timeout, heartbeat_deadline_at=FAR),
    *fields(6, preparing, cancellation_cleanup=[{}, {"request_id": "Q"}, ...]),
    *fields(6, cleaning_up("prepare"), cancellation_cleanup=[None, {}]),
    *(
        Broken(6, cleaning_up(operation), f"{operation}: {key}", in_cleanup(**{key: value}))
        for operation in ("prepare", "control")
        for key, value in {
            "request_id": "another",
            "root_request_id": "another",
            "delivery_history_event_id": "another",
            "cleanup_deadline_at": FAR,
            "something": "more",
        }.items()
    ),
    *fields(7, running, **SAME_ATTEMPT, lease_owner=["another", ...], cancellation_cleanup=[{}, ...]),
    *fields(7, beating, **SAME_ATTEMPT, lease_owner=["another", ...]),
    *fields(8, running, active=["yes", ..., 1], stop_required=[True, "no"], renewed=[None, 1], reason=...),
    *fields(9, running, reason="because", renewed=False),
    *fields(9, beating, renewed=True, reason="because"),
    Broken(9, running, "inactive without reason", inactive(renewed=False, reason="")),
    Broken(9, running, "inactive and renewed", inactive(renewed=True, reason="run_closed")),
    *fields(10, running, heartbeat_recorded=True, heartbeat_history_event_id="H"),
    *fields(10, beating, heartbeat_recorded=False, heartbeat_history_event_id=[None, " "]),
    *fields(11, running, start_to_close_deadline_at=[FAR, None, ...], schedule_to_close_deadline_at=[FAR, None, ...]),
    *fields(11, beating, start_to_close_deadline_at=FAR, schedule_to_close_deadline_at=[FAR, None]),
    *fields(12, running, heartbeat_deadline_at=[FAR, None, ...]),
    *fields(12, beating, heartbeat_deadline_at=[FAR, PAST, None, ...]),
    *fields(13, running, lease_expires_at=[PAST, None, ...], workflow_lease_expires_at=[PAST, None, ...]),
    *fields(13, beating, lease_expires_at=PAST, workflow_lease_expires_at=PAST),
    Broken(
        14,
        running_on_an_order_to_stop,
        "run_closed",
        inactive(renewed=False, reason="run_closed"),
    ),
    *fields(15, being_cancelled, fenced=[False, "yes", ...], cancellation_history_event_id=[" ", ...]),
    *fields(15, being_cancelled, cancellation_request=[None, {}, ...]),
    Broken(
        15,
        being_cancelled,
        "of another run",
        lambda body: body["cancellation_request"]["lineage"][-1].update(workflow_run_id="another"),
    ),
    *fields(16, publishing, **SAME_ATTEMPT, lease_owner="another", recorded=[False, ...], duplicate=[None, ...]),
    *fields(16, publishing, reason=["x", ...], workflow_run_id=["another", ...], worker_attempt_id=["another", ...]),
    *fields(16, publishing, event_type=["ActivityCancelled", "Anything", ...]),
    *fields(17, publishing, claim_released=[True, None, ...], created_task_ids=[["T9"], None, ...]),
    *fields(17, publishing, recorded_at=["yesterday", ...], event_id=[" ", ...]),
    *fields(17, publishing_what_is_retried, claim_released=False, created_task_ids=[[], ["a", "b"], [" "], "T"]),
    *fields(18, publishing, event_id=["V999", "V2"]),
    Broken(18, reading_the_outcome_back, "no such event", forget("ActivityCompleted")),
    *(
        Broken(18, reading_the_outcome_back, key, falsify("ActivityCompleted", **{key: value}))
        for key, value in {"sequence": 2, "activity_execution_id": "another", "activity_attempt_id": "another"}.items()
    ),
    *fields(19, acknowledging, acknowledged=[False, ...], duplicate=[None, ...], reason=["x", ...]),
    *fields(19, acknowledging, history_event_id=[None, " ", ...]),
    *fields(20, recovering, recovered=[False, ...], duplicate=[None, ...], reason=["x", ...], workflow_task_id="other"),
    *fields(20, recovering, activity_execution_id="another", activity_attempt_id="another", event_id=[" ", ...]),
    *fields(20, recovering, callback_stop_state=["stopped", ...], event_type=["ActivityCompleted", ...]),
    *fields(20, recovering, claim_released=[True, None], created_task_ids=[["T9"], None]),
    Broken(21, reading_the_recovery_back, "no such event", forget("ActivityFailed")),
    Broken(21, reading_the_recovery_back, "no recovery", falsify("ActivityFailed", local_recovery=None)),
    *(
        Broken(21, reading_the_recovery_back, key, falsify("ActivityFailed", local_recovery={key: "another"}))
        for key in ("workflow_task_id", "lease_owner", "callback_stop_state")
    ),
]  # fmt: skip


def test_every_rule_of_the_reference_is_broken_once_at_least() -> None:
    assert {broken.rule for broken in BROKEN} == set(range(1, 22))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: f"{one.rule}-{one.situation.__name__}-{one.what}")
async def test_nothing_is_published_after_a_broken_rule(autojump_clock: MockClock, broken: Broken) -> None:
    await broken.situation(broken.lie)
