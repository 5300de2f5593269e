"""Honest receipts to falsify, and the identities they answer to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from proctor.core.authority import AttemptDeadlines
from proctor.core.instants import format_instant
from proctor.core.wire.checkpoint import checkpoint_id
from proctor.core.wire.prepare import AttemptIdentity, ClaimIdentity, Timeouts
from proctor.errors import ProtocolBreach

Body = dict[str, Any]

MISSING = object()
COMMANDS: list[Body] = [{"type": "record_side_effect"}, {"type": "upsert_memo"}]
NOW = datetime(2026, 10, 2, 12, tzinfo=UTC)
CLAIM = ClaimIdentity("T", "R", "w", 3)
IDENTITY = AttemptIdentity(CLAIM, "E", "A", "nonce", 2)
TIMEOUTS = Timeouts(start_to_close=30, schedule_to_close=60, heartbeat=5)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return format_instant(after(seconds))


DEADLINES = AttemptDeadlines(start_to_close=after(30), schedule_to_close=after(60), heartbeat=after(5))


def prepare(**changes: Any) -> dict[str, Any]:
    return {
        "prepared": True,
        "duplicate": False,
        "reason": None,
        "activity_execution_id": "E",
        "activity_attempt_id": "A",
        "worker_attempt_id": "nonce",
        "attempt_number": 2,
        "workflow_task_id": "T",
        "workflow_task_attempt": 3,
        "lease_owner": "w",
        "lease_expires_at": stamp(10),
        "start_to_close_deadline_at": stamp(30),
        "schedule_to_close_deadline_at": stamp(60),
        "heartbeat_deadline_at": stamp(5),
        "cancellation_cleanup": None,
        "server_time": stamp(0),
        "history_refresh_page_token": "MA==",
        **changes,
    }


def control(**changes: Any) -> dict[str, Any]:
    return {
        "active": True,
        "renewed": True,
        "stop_required": False,
        "reason": None,
        "activity_execution_id": "E",
        "activity_attempt_id": "A",
        "workflow_task_id": "T",
        "workflow_task_attempt": 3,
        "lease_owner": "w",
        "lease_expires_at": stamp(11),
        "workflow_lease_expires_at": stamp(11),
        "start_to_close_deadline_at": stamp(30),
        "schedule_to_close_deadline_at": stamp(60),
        "heartbeat_deadline_at": stamp(5),
        "cancellation_cleanup": None,
        "heartbeat_recorded": False,
        "heartbeat_history_event_id": None,
        "run_status": "waiting",
        "task_status": "leased",
        "server_time": stamp(1),
        "history_refresh_page_token": "MA==",
        **changes,
    }


def heartbeat(**changes: Any) -> dict[str, Any]:
    recorded = {
        "renewed": False,
        "heartbeat_recorded": True,
        "heartbeat_history_event_id": "H",
        "heartbeat_deadline_at": stamp(6),
    }
    return control(**{**recorded, **changes})


def context(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "durable-workflow.cancellation-context/v1",
        "request_id": "Q2",
        "root_request_id": "Q1",
        "root_workflow_instance_id": "parent",
        "root_workflow_run_id": "R0",
        "parent_request_id": "Q1",
        "reason": None,
        "requester": {"type": "operator", "id": "ann"},
        "source": "control_plane",
        "requested_at": stamp(0),
        "cleanup_deadline_at": stamp(600),
        "lineage": [
            {"request_id": "Q1", "workflow_instance_id": "parent", "workflow_run_id": "R0"},
            {"request_id": "Q2", "workflow_instance_id": "wf", "workflow_run_id": "R"},
        ],
        **changes,
    }


def stop(**changes: Any) -> dict[str, Any]:
    stopped = {
        "active": False,
        "renewed": False,
        "stop_required": True,
        "reason": "cancellation_requested",
        "fenced": True,
        "cancellation_history_event_id": "K",
        "cancellation_request": context(),
    }
    return control(**{**stopped, **changes})


def outcome(**changes: Any) -> dict[str, Any]:
    return {
        "recorded": True,
        "duplicate": False,
        "reason": None,
        "event_id": "V",
        "event_type": "ActivityCompleted",
        "workflow_run_id": "R",
        "workflow_task_id": "T",
        "workflow_task_attempt": 3,
        "activity_execution_id": "E",
        "activity_attempt_id": "A",
        "worker_attempt_id": "nonce",
        "recorded_at": stamp(2),
        "claim_released": False,
        "created_task_ids": [],
        "history_refresh_page_token": "MA==",
        **changes,
    }


def recovery(**changes: Any) -> dict[str, Any]:
    return {
        "recovered": True,
        "duplicate": False,
        "reason": None,
        "event_id": "V",
        "event_type": "ActivityRetryScheduled",
        "activity_execution_id": "E",
        "activity_attempt_id": "A",
        "workflow_task_id": "T",
        "recorded_at": stamp(2),
        "callback_stop_state": "unknown",
        "claim_released": True,
        "created_task_ids": ["T2"],
        "history_refresh_page_token": "MA==",
        **changes,
    }


def checkpoint(identity: str, **changes: Any) -> dict[str, Any]:
    return {
        "checkpointed": True,
        "duplicate": False,
        "reason": None,
        "checkpoint_id": identity,
        "task_id": "T",
        "workflow_run_id": "R",
        "workflow_task_attempt": 3,
        "lease_owner": "w",
        "start_sequence": 4,
        "next_sequence": 6,
        "history_refresh_page_token": "MA==",
        **changes,
    }


def honest_checkpoint(**changes: Any) -> Body:
    return checkpoint(checkpoint_id(CLAIM, start=4, commands=COMMANDS), **changes)


def changed(body: Body, key: str, value: Any) -> Body:
    body = dict(body)
    if value is MISSING:
        del body[key]
    else:
        body[key] = value
    return body


def refuses(read: Callable[[Any], Any], body: Any, rule: str) -> None:
    with pytest.raises(ProtocolBreach) as caught:
        read(body)
    assert caught.value.rule == rule
    assert rule in str(caught.value)
