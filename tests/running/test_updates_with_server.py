"""Updates, real worker against real embedded server: asked in a task of their own, applied once, replayed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import trio

from news import await_events
from proctor.core import codec
from proctor.core.replay.offline import task_of_history, verify
from proctor.errors import ServerRefused, UpdateFailed
from proctor.workflow import definition_of
from running.workflows import Counting
from running.worlds import World, world


async def _kinds(here: World) -> list[str]:
    return [event["event_type"] for event in await here.client.history("wf")]


@pytest.mark.parametrize(("profile", "protocol"), [("supervised", "1.20"), ("ordinary", "1.18"), ("ordinary", "1.20")])
async def test_an_update_changes_the_state_once_and_its_answer_comes_back(profile: str, protocol: str) -> None:
    async with world(protocol=protocol) as here:
        here.start_worker(profile=profile)
        handle = await here.client.start_workflow("counting", task_queue="q", workflow_id="wf")
        await handle.signal("add", 4)

        assert await handle.update("set", 10) == [4, 10]
        told = await here.client.update("wf", "set", [20], request_id="mine", wait_timeout_seconds=30)
        again = await here.client.update("wf", "set", [20], request_id="mine")
        assert told["result"] == again["result"] == [10, 20]
        assert told["update_id"] == again["update_id"]
        with pytest.raises(UpdateFailed, match="no such book"):
            await handle.update("refuse", "no such book")
        with pytest.raises(ServerRefused) as caught:
            await handle.update("nothing")
        assert caught.value.reason == "unknown_update"
        with pytest.raises(ServerRefused, match="below zero") as caught:
            await handle.update("set", -1)
        assert caught.value.reason == "update_validator_rejected"
        assert await handle.query("total") == {"total": 20}
        await handle.signal("finish")
        assert await handle.result() == 20

        history = await here.client.history("wf")
        kinds = [event["event_type"] for event in history]
        assert [kinds.count(f"Update{what}") for what in ("Accepted", "Applied", "Completed")] == [3, 2, 3]
        verify(
            definition_of(Counting), task_of_history(history, workflow_type="counting", arguments=codec.envelope([]))
        )


async def test_an_update_during_a_local_call_is_applied_when_the_call_has_ended() -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow("counting", [0.6], task_queue="q", workflow_id="wf")
        await await_events(here.client, "wf", "ActivityStarted")

        accepted = await here.client.update("wf", "set", [1], wait_for="accepted")
        assert accepted["update_status"] == "accepted"
        assert await handle.update("set", 2) == [1, 2]

        kinds = await _kinds(here)
        assert kinds.index("ActivityCompleted") < kinds.index("UpdateApplied")
        await handle.signal("finish")
        assert await handle.result() == 2


async def _proctor(here: World, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "proctor", *arguments, "--server", here.url]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_the_command_prints_the_answer_or_says_what_became_of_it() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("counting", task_queue="q", workflow_id="wf")
        five = ("update", "wf", "set", "--args", "[5]", "--request-id", "r")
        code, _, told = await _proctor(here, *five, "--timeout", "1")
        assert code == 1
        assert "not answered yet; ask again with --request-id r" in told

        here.start_worker()
        code, text, _ = await _proctor(here, *five, "--json")
        receipt: dict[str, Any] = json.loads(text)
        assert (code, receipt["update_status"], receipt["retained"]) == (0, "completed", True)
        assert receipt["result"] == [0, 5]
        code, text, _ = await _proctor(here, "update", "wf", "set", "--args", "[6]")
        assert (code, json.loads(text)) == (0, [5, 6])
        code, text, _ = await _proctor(here, "update", "wf", "set", "--args", "[7]", "--wait-for", "accepted")
        assert (code, text.startswith("accepted ")) == (0, True)
        code, _, told = await _proctor(here, "update", "wf", "refuse", "--args", '["no"]')
        assert (code, "failed: update handler failed: no" in told) == (1, True)
        await handle.signal("finish")
