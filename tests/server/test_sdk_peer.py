"""The official SDK's client and worker, unmodified, on the embedded server: every kind of step it can author.

One run of `sdk_peer` drives all scenarios side by side; each test judges one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from official.events import check_events
from official.watching import Watch
from once import once_for_all
from proctor.server import ServerOptions, serve

PROGRAM = Path(__file__).with_name("sdk_peer.py")
Seen = dict[str, Any]


async def _run() -> subprocess.CompletedProcess[bytes]:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, ServerOptions(workflow_task_lease_seconds=90))
        with trio.fail_after(110):
            done = await trio.run_process(
                [sys.executable, str(PROGRAM), url], capture_stdout=True, capture_stderr=True, check=False
            )
        nursery.cancel_scope.cancel()
    return done


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory, official_watch: Watch | None) -> dict[str, Seen]:
    """Run the program once for all test processes of this run, and give what each scenario saw.

    The server runs in this process, so every answer it gives and every event it records is validated on the way.
    """

    def make() -> str:
        done = trio.run(_run)
        assert done.returncode == 0, done.stderr.decode()
        output = json.loads(done.stdout)
        if official_watch is not None:
            assert official_watch.problems == []
            output["answers"] = dict(official_watch.answers)
        print(done.stderr.decode())
        return json.dumps(output)

    seen: dict[str, Seen] = json.loads(once_for_all(tmp_path_factory, "sdk-peer", make))
    return seen


def result(seen: Seen) -> Any:
    """Give the result of a scenario that must not have failed."""
    assert "error" not in seen, seen["traceback"]
    return seen["result"]


def test_what_is_recorded_fits_the_official_event_schema(peer: dict[str, Seen], shared_fixtures: Path) -> None:
    for seen in peer.values():
        check_events(shared_fixtures, seen.get("history", ()))


def test_every_answer_of_the_whole_run_was_held_against_the_official_documents(
    peer: dict[str, Seen], shared_fixtures: Path
) -> None:
    answers = peer["answers"]
    assert {
        "GET /cluster/info 200",
        "POST /worker/register 201",
        "POST /worker/workflow-tasks/poll 200",
        "POST /worker/workflow-tasks/{taskId}/complete 200",
        "POST /worker/workflow-tasks/{taskId}/heartbeat 200",
        "POST /worker/activity-tasks/poll 200",
        "POST /worker/activity-tasks/{taskId}/complete 200",
        "POST /worker/activity-tasks/{taskId}/fail 200",
        "POST /workflows 201",
    } <= answers.keys()
    assert sum(answers.values()) > 200


def test_local_calls_of_the_ordinary_profile(peer: dict[str, Seen]) -> None:
    seen = peer["ordinary_local"]
    assert result(seen) == [7, 3, "hello Ada", "ActivityFailed", "never"]
    assert seen["events"] == [
        "StartAccepted",
        "WorkflowStarted",
        "SideEffectRecorded",
        "VersionMarkerRecorded",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityHeartbeatRecorded",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityFailed",
        "WorkflowCompleted",
    ]


def test_timers_conditions_and_signals(peer: dict[str, Seen]) -> None:
    seen = peer["waiting"]
    assert result(seen) == [True, False, ["Ada", "Grace"]]
    assert seen["status"] == "completed"
    kinds = seen["events"]
    assert kinds[:2] == ["StartAccepted", "WorkflowStarted"]
    assert kinds.count("SignalReceived") == 2
    assert kinds.index("TimerFired") < kinds.index("ConditionWaitOpened")
    assert kinds.index("ConditionWaitSatisfied") < kinds.index("ConditionWaitTimedOut")
    assert kinds[-1] == "WorkflowCompleted"


def test_queued_activities(peer: dict[str, Seen]) -> None:
    seen = peer["queued"]
    assert result(seen) == [{"charged": 12}, "ActivityFailed", "no such card"]
    assert seen["events"] == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityHeartbeatRecorded",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityFailed",
        "WorkflowCompleted",
    ]


def test_parallel_groups(peer: dict[str, Seen]) -> None:
    seen = peer["parallel"]
    assert result(seen) == [[2, [4, None], 6], "ActivityFailed", "no such card"]
    scheduled = [event["payload"] for event in seen["history"] if event["event_type"] == "ActivityScheduled"]
    assert [len(payload["parallel_group_path"]) for payload in scheduled] == [1, 2, 1, 1, 1]
    for event in seen["history"]:
        for level in event["payload"].get("parallel_group_path", []):
            number = level["parallel_group_base_sequence"] + level["parallel_group_index"]
            assert number == event["payload"]["sequence"]


def test_children(peer: dict[str, Seen]) -> None:
    seen = peer["family"]
    assert result(seen) == [[3, 2, 1, 0], ["ChildWorkflowFailed", "no hope"], [[1, 0], [0]]]
    kinds = seen["events"]
    assert kinds.count("ChildWorkflowScheduled") == 4
    assert kinds.count("ChildRunStarted") == 4 + 3 + 1 + 1
    assert kinds.count("ChildRunCompleted") == 3
    assert kinds.count("ChildRunFailed") == 1


def test_a_workflow_that_continues_as_new(peer: dict[str, Seen]) -> None:
    seen = peer["chain"]
    assert result(seen) == [[2, 1, 0], [1, 2, 3], ["completed", "completed", "completed"]]
    assert seen["events"] == ["WorkflowStarted", "SideEffectRecorded", "WorkflowCompleted"]


def test_selections(peer: dict[str, Seen]) -> None:
    seen = peer["choosing"]
    assert result(seen) == [
        ["quick", 100, "DurableOperationCancelled"],
        [0, False, "ActivityFailed"],
        ["list", [10, 12], None],
        ["gate", True, True],
    ]
    kinds = seen["events"]
    assert kinds.count("SelectionResolved") == 4
    assert kinds.count("SelectionOperationCancelled") == 2


def test_queries_of_open_and_completed_runs(peer: dict[str, Seen]) -> None:
    answers, refused, final = result(peer["counting"])
    assert answers == [{"total": 5}, {"total": 15}, {"total": 5}]
    assert final == 5
    assert [kind for kind, _ in refused] == ["QueryFailed", "QueryFailed"]
    assert "nothing" in refused[0][1]
    assert "cannot tell" in refused[1][1]
    kinds = peer["counting"]["events"]
    assert kinds.count("SignalReceived") == 2  # asking leaves no trace
    assert kinds[-1] == "WorkflowCompleted"


def test_updates(peer: dict[str, Seen]) -> None:
    seen = result(peer["updated"])
    assert seen["first"] == ["completed", [0, 3]]
    assert seen["second"] in ("accepted", "completed")
    assert seen["again"] == ["completed", True, True]
    assert [kind for kind, _ in seen["refused"]] == ["UpdateFailed", "ServerError", "UpdateRejected"]
    assert "no room" in seen["refused"][0][1]
    assert "unknown_update" in seen["refused"][1][1]
    assert "below zero" in seen["refused"][2][1]
    assert (seen["total"], seen["result"]) == ({"total": 4}, 4)
    kinds = peer["updated"]["events"]
    assert [kinds.count(f"Update{what}") for what in ("Accepted", "Applied", "Completed")] == [3, 2, 3]
    assert kinds[-1] == "WorkflowCompleted"
