"""What a worker is doing when one answer is a lie, and what must have happened: it stops, and nothing is published.

By the name of the answer; the situations that prepared-local §3 speaks of are `test_every_must.py`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from proctor.core.attempt import StopCause
from proctor.errors import ProtocolBreach
from running import test_groups, test_queries, test_update_validation
from running.lies import Lie
from running.rigs import Rig
from running.scripted_children import beats, hangs, returns
from running.test_every_must import (
    PUBLISHING,
    acknowledging,
    beating,
    being_cancelled,
    cleaning_up,
    preparing,
    publishing,
    publishing_what_is_retried,
    recovering,
    running,
)
from running.test_lying_server import side_effect_then_call
from running.test_queued_attempt import PUBLISHING as PUBLISHING_QUEUED
from running.test_queued_attempt import QueueRig

Situation = Callable[[Lie], Awaitable[None]]


async def polling(lie: Lie) -> None:
    rig = Rig(returns("x"))
    rig.server.lie("poll", lie)

    await rig.run_for(5)

    assert rig.server.operations("prepare", *PUBLISHING) == []


async def checkpointing(lie: Lie) -> None:
    rig = Rig(returns("x"), workflow_class=side_effect_then_call())
    rig.server.lie("checkpoint", lie)

    await rig.run_for(5)

    assert rig.server.operations("prepare", *PUBLISHING) == []


async def admitting(lie: Lie) -> None:
    rig = test_groups.rig(returns("x"), returns("y"))
    rig.server.lie("checkpoint_group", lie)

    await rig.run_for(5)

    assert rig.server.operations("prepare", *PUBLISHING) == []


async def reading_history(lie: Lie) -> None:
    rig = Rig(returns("x"))
    rig.server.lie("history", lie)

    await rig.run_for(5)

    assert rig.server.operations("outcome") == ["outcome"]
    assert rig.server.operations("complete", "fail") == []


def cancelling(operation: str) -> Situation:
    """Lie after the acknowledgement, when the claim is to show the cancellation and the code is to be told of it."""

    async def situation(lie: Lie) -> None:
        rig = Rig(hangs())
        rig.server.start_run()
        async with rig.serving():
            await rig.children.started.wait()
            rig.server.request_cancellation()
            rig.server.lie(operation, lie)
            await trio.sleep(8)

        assert rig.server.operations(operation) == [operation]
        assert rig.server.operations("complete", "fail", "outcome") == []

    return situation


BOUNDARY = ("sequence", "call_kind", "sequence_span", "operation_sequence", "operation_sequence_span")


async def waiting_with_the_delivery(lie: Lie) -> None:
    def waits(body: dict[str, Any]) -> None:
        body |= {"delivered": False, "claim_released": True, "reason": "cancellation_waiting_for_activity"}
        body |= dict.fromkeys(BOUNDARY)
        del body["request_id"]
        lie(body)

    rig = Rig(hangs())
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        rig.server.request_cancellation()
        rig.server.lie("deliver", waits)
        await trio.sleep(8)

    assert [event["outcome"] for event in rig.events if event["event"] == "workflow_task"] == ["abandoned"]
    assert rig.server.operations("complete", "fail", "outcome") == []


async def keeping_an_ordinary_claim(lie: Lie) -> None:
    rig = Rig(hangs(), profile="ordinary")
    rig.server.start_run()
    async with rig.serving():
        await rig.children.started.wait()
        await trio.sleep(1)
        rig.server.lie("claim_heartbeat", lie)
        await trio.sleep(5)

        assert rig.children.running == 0
        assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")
        assert rig.server.operations(*PUBLISHING) == []


def with_a_queued_attempt(operation: str) -> Situation:
    async def situation(lie: Lie) -> None:
        rig = QueueRig(beats({"n": 1}, every=1, then=hangs()))

        async def spoil() -> None:
            await rig.children.started.wait()
            rig.server.lies[operation].append(lie)

        await rig.run_for(8, meanwhile=spoil)

        assert rig.children.all_reins[0].stops[0] == (StopCause.AUTHORITY_LOST, "protocol_breach")
        assert rig.children.running == 0
        assert rig.server.operations(*PUBLISHING_QUEUED) == []

    return situation


async def polling_for_a_queued_attempt(lie: Lie) -> None:
    rig = QueueRig(returns("x"))
    rig.server.lies["poll"].append(lie)

    await rig.run_for(5)

    assert rig.children.jobs == []
    assert rig.server.operations("renew-lease", "status", *PUBLISHING_QUEUED) == []


async def acknowledging_a_queued_attempt(lie: Lie) -> None:
    rig = QueueRig(hangs())
    rig.server.lies["acknowledge-cancellation"].append(lie)

    async def cancel() -> None:
        await rig.children.started.wait()
        rig.server.cancelled = True

    await rig.run_for(8, meanwhile=cancel)

    assert rig.attempt()["published"] is False


def asked(operation: str) -> Situation:
    async def situation(lie: Lie) -> None:
        made = test_queries.rig()
        made.server.lie(operation, lie)
        made.server.ask("total")
        async with made.serving():
            await trio.sleep(5)

        assert made.server.operations("query_complete", "query_fail") == []

    return situation


async def validating(lie: Lie) -> None:
    made = test_update_validation.rig()
    test_update_validation.lease(made, 3)
    (honest,) = made.server.lies["poll"]

    def both(body: dict[str, Any]) -> None:
        honest(body)
        lie(body)

    made.server.lies["poll"] = [both]
    async with made.serving():
        await trio.sleep(5)

    assert made.server.operations("approve", "reject") == []


async def registering(lie: Lie) -> None:
    rig = Rig()
    rig.server.lie("register", lie)

    with trio.move_on_after(5), pytest.raises(ProtocolBreach):
        await rig.service.run()

    assert rig.server.operations("poll") == []


async def deregistering(lie: Lie) -> None:
    rig = Rig()
    rig.server.lie("deregister", lie)

    await rig.idle_for(1)

    assert rig.events[-1]["event"] == "registration_left"


CLEANING_UP = {"prepare in cleanup": cleaning_up("prepare"), "control in cleanup": cleaning_up("control")}
"""On the embedded server; what these answers have besides the proof of the cleanup, all have."""

SITUATIONS: dict[str, Situation] = {
    **CLEANING_UP,
    "poll": polling,
    "checkpoint": checkpointing,
    "checkpoint_group": admitting,
    "prepare": preparing,
    "control": running,
    "control of a cancelled run": being_cancelled,
    "heartbeat": beating,
    "outcome": publishing,
    "outcome that is retried": publishing_what_is_retried,
    "acknowledge": acknowledging,
    "recover": recovering,
    "history": reading_history,
    "claim_heartbeat": cancelling("claim_heartbeat"),
    "deliver": cancelling("deliver"),
    "deliver that waits": waiting_with_the_delivery,
    "ordinary claim_heartbeat": keeping_an_ordinary_claim,
    "queued poll": polling_for_a_queued_attempt,
    "queued renew-lease": with_a_queued_attempt("renew-lease"),
    "queued status": with_a_queued_attempt("status"),
    "queued heartbeat": with_a_queued_attempt("heartbeat"),
    "queued acknowledge": acknowledging_a_queued_attempt,
    "query_poll": asked("query_poll"),
    "query_status": asked("query_status"),
    "validation": validating,
    "register": registering,
    "deregister": deregistering,
}

ENVELOPE = {"protocol_version", "server_capabilities"}
"""What every answer of the worker plane carries, and none of ours is read for."""

# fmt: off
UNREAD: dict[str, set[str]] = {
    "task of poll": {
        "activity_attempt_id", "activity_execution_id", "activity_type", "child_call_id", "child_workflow_run_id",
        "compatibility", "condition_definition_fingerprint", "condition_key", "condition_wait_id", "connection",
        "last_history_sequence", "lease_expires_at", "open_wait_id", "resume_source_id", "resume_source_kind",
        "run_status", "server_time", "signal_arguments", "signal_name", "signal_wait_id", "sticky_replay_mode",
        "sticky_until", "sticky_worker_id", "task_queue", "timer_id", "total_history_events", "workflow_event_type",
        "workflow_sequence", "workflow_signal_id", "workflow_wait_kind",
    },
    "checkpoint": {"recorded_at", "lease_expires_at", "created_task_ids", "fingerprint"},
    "control": {"run_status", "task_status"},
    "heartbeat": {"run_status", "task_status"},
    "acknowledge": {"request_id", "history_refresh_page_token"},
    "recover": {"workflow_task_attempt"},
    "history": {"total_history_events"},
    "claim_heartbeat": {"run_status", "task_status", "server_time"},
}
# fmt: on
"""What the embedded server says besides, and no worker of ours reads."""
