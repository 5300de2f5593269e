"""Large payloads with the real server, worker and client: outside of history, and nobody's code sees a difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proctor import Client
from proctor.errors import ExternalPayloadRejected, WorkflowFailed
from proctor.transport.calls import Call
from running.worlds import World, world

TEXT = "a rather long text " * 200
THRESHOLD = 1_000


async def history_text(here: World, handle: Any) -> str:
    """Read the history as the server has it, with the references in it."""
    transport = here.client._transport
    assert transport is not None
    path = f"/workflows/{handle.workflow_id}/runs/{handle.run_id}/history"
    return json.dumps((await transport.send(Call("control", "GET", path, query={"page_size": "1000"}), within=5)).body)


async def until(here: World, handle: Any, kind: str) -> None:
    while all(event["event_type"] != kind for event in await handle.history()):
        await here.wait_for("workflow_task")
        here.events.clear()


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_large_payloads_pass_everywhere_and_a_cold_worker_finds_them_again(profile: str) -> None:
    async with world(external_threshold_bytes=THRESHOLD) as here:
        first = here.start_worker(profile=profile, queued_activities=1, worker_id="first", drain_grace=5)
        handle = await here.client.start_workflow("large", [TEXT], task_queue="q")
        await until(here, handle, "ConditionWaitOpened")
        first.drain()
        await here.stopped.wait()

        await handle.signal("add", f"another {TEXT}")
        here.start_worker(profile=profile, queued_activities=1, worker_id="second")

        assert await handle.result() == [f"{TEXT}!", f"another {TEXT}"]
        assert here.attempts() == []  # the second worker ran nothing: all of it was in history
        text = await history_text(here, handle)
        assert len(text) < 30_000
        assert text.count('"external_payload"') >= 6
        assert "external_payload" not in json.dumps(await handle.history())
        described = await handle.describe()
        assert "blob" in described["input_envelope"]
        assert "blob" in described["output_envelope"]


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_queries_carry_large_questions_and_answers_over_histories_with_references(profile: str) -> None:
    async with world(external_threshold_bytes=THRESHOLD) as here:
        here.start_worker(profile=profile)
        handle = await here.client.start_workflow("large", [TEXT], task_queue="q")
        await until(here, handle, "SideEffectRecorded")

        assert await handle.query("repeated", "?" + TEXT) == [TEXT, "?" + TEXT]
        assert await handle.query("repeated", "?") == [TEXT, "?"]


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_small_payloads_stay_inline(profile: str) -> None:
    async with world(external_threshold_bytes=THRESHOLD) as here:
        here.start_worker(profile=profile)
        handle = await here.client.start_workflow("one", ["echo", ["x"], {}], task_queue="q")

        assert await handle.result() == "x"
        assert "external_payload" not in await history_text(here, handle)


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_without_the_storage_large_payloads_go_inline_up_to_the_servers_limit(profile: str) -> None:
    async with world(external_threshold_bytes=None, max_payload_bytes=20_000) as here:
        here.start_worker(profile=profile)
        assert await here.run("echo", TEXT) == TEXT
        with pytest.raises(WorkflowFailed) as caught:
            await here.run("repeat", TEXT, 20)
        assert "20000" in str(caught.value)


async def test_a_result_larger_than_a_request_is_stored_and_one_larger_than_the_storage_fails_the_activity() -> None:
    async with world() as here:
        here.start_worker()
        assert len(await here.run("repeat", "x", 5_000_000)) == 5_000_000
        with pytest.raises(WorkflowFailed, match="16777216"):
            await here.run("repeat", "x", 13_000_000)


async def test_an_argument_larger_than_the_storage_is_refused_before_anything_is_sent() -> None:
    async with world() as here:
        with pytest.raises(ExternalPayloadRejected) as caught:
            await here.client.start_workflow("one", ["x" * 13_000_000], task_queue="q")
        assert caught.value.reason == "external_payload_oversized"


async def test_a_payload_of_the_workflow_that_is_too_large_fails_its_task_and_never_the_run() -> None:
    async with world() as here:
        here.start_worker()
        handle = await here.client.start_workflow("swollen", [13_000_000], task_queue="q")
        ended = await here.wait_for("workflow_task")
        assert (ended["outcome"], ended["reason"]) == ("failed", "ExternalPayloadError")
        assert (await handle.describe())["status"] == "waiting"


async def test_a_client_that_is_opened_again_asks_again() -> None:
    async with world(external_threshold_bytes=THRESHOLD) as here:
        client = Client(here.url)
        for number in range(2):
            async with client:
                await client.start_workflow("one", ["echo", [TEXT], {}], task_queue="q", workflow_id=f"wf-{number}")
        described = await here.client.describe("wf-1")
        assert described["status"] in ("pending", "running", "waiting")
