"""Queries, real worker against real embedded server: the client asks, the workflow's own code answers."""

from __future__ import annotations

import json
import sys

import pytest
import trio

from news import await_events
from proctor.errors import ServerRefused
from running.worlds import world


@pytest.mark.parametrize(("profile", "protocol"), [("supervised", "1.20"), ("ordinary", "1.18"), ("ordinary", "1.20")])
async def test_a_run_answers_while_it_waits_while_it_works_and_when_it_has_completed(
    profile: str, protocol: str
) -> None:
    async with world(protocol=protocol) as here:
        here.start_worker(profile=profile)
        handle = await here.client.start_workflow("counting", [1], task_queue="q", workflow_id="wf")
        await here.wait_for("registered")
        await handle.signal("add", 4)

        # The only slot of the worker is taken by the local call meanwhile.
        answers = [await handle.query("total"), await handle.query("total", 3)]
        await await_events(here.client, "wf", "ConditionWaitOpened")
        answers.append(await handle.query("total"))
        await handle.signal("finish")
        assert await handle.result() == 4
        answers.append(await handle.query("total"))

        # A signal reaches the code at its place in history: behind the local call that the first answers saw going on.
        assert answers[-2:] == [{"total": 4}, {"total": 4}]
        assert answers[:2] in ([{"total": 0}, {"total": 0}], [{"total": 4}, {"total": 12}])
        assert [event["outcome"] for event in here.events if event["event"] == "query_task"] == ["completed"] * 4


async def test_a_query_without_an_answer_is_refused_and_the_worker_goes_on() -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow("counting", task_queue="q", workflow_id="wf")
        await here.wait_for("registered")
        refused = []
        for name in ("nothing", "broken"):
            with pytest.raises(ServerRefused) as caught:
                await handle.query(name)
            refused.append((caught.value.status, caught.value.reason))

        assert refused == [(404, "rejected_unknown_query"), (409, "query_rejected")]
        assert await handle.query("total") == {"total": 0}


async def test_without_a_worker_the_refusal_says_so() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("counting", task_queue="q", workflow_id="wf")

        with pytest.raises(ServerRefused, match="no active worker on queue q") as caught:
            await handle.query("total")

        assert caught.value.reason == "query_worker_unavailable"


async def test_the_command_prints_the_answer() -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow("counting", task_queue="q", workflow_id="wf")
        await here.wait_for("registered")
        await handle.signal("add", 7)
        await await_events(here.client, "wf", "SignalReceived")
        options = ["--server", here.url, "--args", "[2]", "--json"]
        command = [sys.executable, "-m", "proctor", "query", "wf", "total", *options]

        done = await trio.run_process(command, capture_stdout=True)
        unknown = await trio.run_process([*command[:5], "no", *command[6:]], capture_stderr=True, check=False)

        assert json.loads(done.stdout) == {"total": 14}
        assert unknown.returncode == 1
        assert b"rejected_unknown_query" in unknown.stderr
