"""The official SDK's workers hold, share, close and lose worker sessions on the embedded server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from machine import alone
from proctor.server import ServerOptions, serve

PROGRAM = Path(__file__).with_name("sdk_sessions.py")


async def test_its_workers_hold_share_close_and_lose_sessions(tmp_path: Path) -> None:
    with alone():
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, ServerOptions(workflow_task_lease_seconds=90, faults=True))
            with trio.fail_after(110):
                done = await trio.run_process(
                    [sys.executable, str(PROGRAM), url, str(tmp_path)],
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                )
            nursery.cancel_scope.cancel()
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)

    life = seen["lifecycle"]
    assert life["outcomes"] == ["created", "reused", "heartbeat_recorded"]
    assert life["ttls"] == 1
    assert life["refusals"] == [
        "session_owned_by_another_worker",
        "worker_session_limit_exceeded",
        "session_requirements_not_met",
        "session_owner_mismatch",
    ]
    assert life["closed"] == ["closed", True, "session_closed"]
    assert life["pair"] == [1, 2]
    assert life["spans"] == ["+", "-", "+", "-"]
    kinds = [event["event_type"] for event in life["pair history"]]
    assert kinds.count("ActivityHeartbeatRecorded") == kinds.count("ActivityCompleted") == 2
    scheduled = [event["payload"] for event in life["pair history"] if event["event_type"] == "ActivityScheduled"]
    assert [payload["activity"]["worker_session"]["session_id"] for payload in scheduled] == ["auto", "auto"]
    assert (life["auto"]["status"], life["auto"]["lease_owner"], life["auto is tracked"]) == ("active", "holder", True)
    assert life["auto after stop"]["status"] == "closed"

    loss = seen["loss"]
    assert loss["result"] == 42
    assert (loss["before"]["lease_owner"], loss["before"]["active_activity_count"]) == ("killed", 1)
    assert (loss["after"]["status"], loss["after"]["lease_owner"]) == ("active", "replacement")
    assert loss["after"]["ttl_expires_at"] == loss["before"]["ttl_expires_at"]
    kinds = [event["event_type"] for event in loss["history"]]
    assert kinds.count("ActivityStarted") == 2
    assert kinds.count("ActivityCompleted") == kinds.count("WorkflowCompleted") == 1
    assert "ActivityHeartbeatRecorded" not in kinds
    assert loss["late"] == "stale_attempt"
    assert loss["late renewal"] == "session_owner_mismatch"

    ended = seen["ended"]
    assert ended["when stopped"][-1] == "ActivityStarted", "stopped, and nothing is said of it"
    assert (ended["session when stopped"]["status"], ended["session when stopped"]["failure_reason"]) == (
        "expired",
        "lease_expired",
    )
    assert ended["result"] == "again"
    assert ended["kinds"].count("ActivityStarted") == 2
    assert ended["kinds"].count("ActivityCompleted") == 1
    assert ended["session"]["status"] == "active"
    assert ended["session"]["ttl_expires_at"] == ended["session when stopped"]["ttl_expires_at"]
