"""The same workflow file, run by the official SDK's worker and by ours on one server: the same events and payloads.

Each side also replays what the other one left behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import trio

from interop.both import Run, comparable, drive, official_worker, our_worker, server
from once import once_for_all
from portable import live
from portable_files import OFFICIAL, definitions, load
from proctor.core import codec
from proctor.core.replay import Commands
from proctor.core.replay.offline import task_of_history, verify

official = pytest.importorskip("durable_workflow", reason="the official SDK is a development dependency")

OURS = definitions(load("live"))
CONCURRENT = {
    "live.groups",
    "live.failing-group",
    "live.siblings",
    "live.local-groups",
    "live.failing-local-group",
}
"""Where the order of events is a race between activities; the events of each step are in order."""

ENDS = {
    "WorkflowCompleted": "complete_workflow",
    "WorkflowFailed": "fail_workflow",
    "WorkflowContinuedAsNew": "continue_as_new",
}
PREPARED = (
    "cooperative_cancellation",
    "prepared_local_activities",
    "prepared_local_activity_cancellation_policies",
    "prepared_local_activity_groups",
)
"""What makes the official worker work as our profile ``supervised`` does."""

CASES = [
    *((name, "ordinary") for name in sorted(OURS) if name not in live.ONLY_SUPERVISED),
    *((name, "supervised") for name in live.SUPERVISED),
    *((name, "groups") for name in live.GROUPS),
]


cases = pytest.mark.parametrize(("name", "profile"), CASES)
Runs = dict[str, dict[str, Run]]


AT_ONCE = {"ordinary": 100, "supervised": 1, "groups": 1}
"""Runs of one side at once: the official worker gives the process of a prepared handler no more than 5 s to start."""


async def _run_all(profile: str) -> str:
    runs: Runs = {}
    async with (
        server(external_threshold_bytes=2_000, workflow_task_lease_seconds=30, cleanup_lease_seconds=30) as (
            url,
            client,
        ),
        our_worker(url, "ours", profile="ordinary" if profile == "ordinary" else "supervised"),
        official_worker(url, "theirs", *(() if profile == "ordinary" else PREPARED)),
        trio.open_nursery() as nursery,
    ):

        async def run(side: str, name: str, limit: trio.CapacityLimiter) -> None:
            async with limit:
                runs.setdefault(side, {})[name] = await drive(client, name, side)

        for side in ("ours", "theirs"):
            limit = trio.CapacityLimiter(AT_ONCE[profile])
            for name, of in CASES:
                if of == profile:
                    nursery.start_soon(run, side, name, limit)
    return json.dumps(runs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Runs]:
    """Give, for a profile, what each workflow left behind, by side."""

    @cache
    def of(profile: str) -> Runs:
        found: Runs = json.loads(
            once_for_all(tmp_path_factory, f"both-workers-{profile}", lambda: trio.run(_run_all, profile), alone=True)
        )
        return found

    return of


@cases
def test_both_workers_leave_the_same_history(name: str, profile: str, runs: Callable[[str], Runs]) -> None:
    ours, theirs = runs(profile)["ours"][name], runs(profile)["theirs"][name]

    assert ours["result"] == theirs["result"]
    assert ours["failure"] == theirs["failure"]
    assert ours["answers"] == theirs["answers"]
    if name in CONCURRENT:
        assert _by_step(ours) == _by_step(theirs)
    else:
        assert comparable(ours) == comparable(theirs)


@cases
def test_both_workers_keep_the_same_payloads_outside(name: str, profile: str, runs: Callable[[str], Runs]) -> None:
    ours, theirs = runs(profile)["ours"][name], runs(profile)["theirs"][name]

    assert ours["stored"] == theirs["stored"]
    assert bool(ours["stored"]) is name.startswith("live.large")


@cases
def test_we_replay_what_the_official_worker_recorded(name: str, profile: str, runs: Callable[[str], Runs]) -> None:
    history = runs(profile)["theirs"][name]["history"]

    task = task_of_history(history, workflow_type=name, arguments=codec.envelope(live.ARGUMENTS.get(name, [])))

    decision = verify(OURS[name], task)

    end = ENDS.get(history[-1]["event_type"])
    if end is not None:
        assert isinstance(decision, Commands)
        assert [command["type"] for command in decision.commands] == [end]


# The official replayer refuses local calls that need a prepared admission.
@pytest.mark.parametrize(("name", "profile"), [case for case in CASES if case[0] != "live.cleans-up-locally"])
def test_the_official_replayer_replays_what_we_recorded(name: str, profile: str, runs: Callable[[str], Runs]) -> None:
    history = runs(profile)["ours"][name]["history"]
    replayer = official.workflow.Replayer(workflows=load("live", OFFICIAL).WORKFLOWS)

    outcome = replayer.replay(history, live.ARGUMENTS.get(name, []), workflow_type=name)

    end = ENDS.get(history[-1]["event_type"])
    if end is not None:
        assert [command.to_server_command("queue")["type"] for command in outcome.commands] == [end]


def _by_step(run: Run) -> dict[Any, list[Any]]:
    steps: dict[Any, list[Any]] = {}
    for event in comparable(run):
        steps.setdefault(event[1].get("sequence"), []).append(event)
    return steps
