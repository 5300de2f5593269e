"""SIGKILL of the worker or the server in mid-run loses nothing that was acknowledged and runs nothing twice."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from handlers.runs import STEPS
from processes import marked, parent, wait_for_exit
from stage import Stage, await_event

_TERMINAL = {"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"}


def _seed() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def _check(stage: Stage, workflow_id: str) -> list[dict[str, Any]]:
    """What must hold of a finished run whatever died: one terminal event each, no attempt and no step run twice."""
    events = stage.history(workflow_id)
    terminal = [event for event in events if event["event_type"] in _TERMINAL]
    assert [event["payload"]["sequence"] for event in terminal] == list(range(1, STEPS + 1))
    assert {event["event_type"] for event in terminal} == {"ActivityCompleted"}
    assert [event["event_type"] for event in events][-1] == "WorkflowCompleted"
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))

    notes = stage.notes()
    starts = Counter(identity for what, _, _, identity in notes if what == "start")
    assert set(starts.values()) == {1}, "an attempt ran twice"
    recorded = {event["payload"]["activity_attempt_id"] for event in terminal}
    last_start = {number: identity for what, number, _, identity in notes if what == "start"}
    assert set(last_start.values()) == recorded, "a committed activity ran again"
    return events


@pytest.mark.parametrize("round_number", range(2))
def test_a_killed_worker_leaves_nothing_and_another_finishes_the_run(stage: Stage, round_number: int) -> None:
    draw = _seed()
    stage.start_server()
    first = stage.start_worker()
    others = set(marked(stage.mark)) - {first.pid}
    servers = {pid for pid in others if not _is_below(pid, first.pid)}
    stage.start_run("e2e.steps", str(stage.folder), 0.15, workflow_id="run-1")
    await_event(first, "attempt_ended", within=20)
    wait_for_exit(first.pid, within=draw.uniform(0.0, 0.4))

    first.kill()
    first.wait()
    for pid in set(marked(stage.mark)) - servers:
        assert wait_for_exit(pid, within=2.0), f"process {pid} outlived its worker"

    stage.start_worker()
    assert stage.await_closed("run-1", within=40) == ("completed", [number * 10 for number in range(STEPS)])
    events = _check(stage, "run-1")
    unknown = [event for event in events if event["payload"].get("retry_reason") == "cold_replay"]
    assert len(unknown) <= 1


def test_a_killed_server_loses_nothing_that_it_acknowledged(stage: Stage) -> None:
    draw = _seed()
    server = stage.start_server()
    worker = stage.start_worker()
    stage.start_run("e2e.steps", str(stage.folder), 0.15, workflow_id="run-1")
    for _ in range(3):
        await_event(worker, "attempt_ended", within=20)
        acknowledged = stage.history("run-1")
        wait_for_exit(worker.pid, within=draw.uniform(0.0, 0.1))

        server.kill()
        server.wait()
        server = stage.start_server()

        assert stage.history("run-1")[: len(acknowledged)] == acknowledged
    assert stage.await_closed("run-1", within=60) == ("completed", [number * 10 for number in range(STEPS)])
    _check(stage, "run-1")


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = parent(pid)
    return False
