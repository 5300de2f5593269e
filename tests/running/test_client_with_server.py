"""The real client against the real embedded server."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from proctor import Client
from proctor.errors import PayloadError, ServerRefused, UsageError, WorkflowFailed
from proctor.harness import open_fault_proxy
from running.worlds import world


async def test_a_started_run_can_be_described_and_read() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("chain", task_queue="q", workflow_id="wf-1")

        described = await handle.describe()
        kinds = [event["event_type"] for event in await here.client.history("wf-1")]

        assert (described["workflow_id"], described["run_id"]) == ("wf-1", handle.run_id)
        assert kinds == ["StartAccepted", "WorkflowStarted"]


async def test_a_second_start_of_an_open_id_is_refused() -> None:
    async with world() as here:
        await here.client.start_workflow("chain", task_queue="q", workflow_id="wf-1")

        with pytest.raises(ServerRefused) as caught:
            await here.client.start_workflow("chain", task_queue="q", workflow_id="wf-1")

        assert caught.value.status == 409
        assert caught.value.reason in ("duplicate_not_allowed", "instance_already_started")


async def test_an_unknown_run_is_refused_with_its_reason() -> None:
    async with world() as here:
        with pytest.raises(ServerRefused) as caught:
            await here.client.describe("nobody")

        assert (caught.value.status, caught.value.reason) == (404, "instance_not_found")


async def test_a_cancelled_run_has_no_result() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("chain", task_queue="q")

        await here.client.cancel(handle.workflow_id, reason="not needed")

        with pytest.raises(WorkflowFailed) as caught:
            await handle.result()
        assert caught.value.status == "cancelled"
        assert caught.value.workflow_id == handle.workflow_id


async def test_a_cancellation_request_is_answered_with_its_deadline_and_repeats_itself() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("chain", task_queue="q")

        first = await here.client.request_cancellation(handle.workflow_id, "enough", cleanup_timeout_seconds=60)
        again = await here.client.request_cancellation(handle.workflow_id)

        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert first["cancellation_request"] == again["cancellation_request"]


async def test_waiting_for_a_result_can_be_bounded() -> None:
    async with world() as here:
        handle = await here.client.start_workflow("chain", task_queue="q")

        with trio.move_on_after(0.2) as scope:
            await handle.result()

        assert scope.cancelled_caught


@pytest.mark.parametrize("argument", [object(), (1, 2), {1: 2}])
async def test_an_argument_without_a_wire_form_is_refused_before_anything_is_sent(argument: Any) -> None:
    async with world() as here:
        with pytest.raises(PayloadError):
            await here.client.start_workflow("chain", [argument], task_queue="q", workflow_id="wf-1")

        with pytest.raises(ServerRefused):
            await here.client.describe("wf-1")


async def test_an_id_without_a_wire_form_is_our_own_mistake() -> None:
    async with world() as here:
        with pytest.raises((UsageError, UnicodeEncodeError)):
            await here.client.start_workflow("chain", task_queue="q", workflow_id="\udc80")


async def test_discovery_shows_the_protocol() -> None:
    async with world() as here:
        info = await here.client.cluster_info()

        assert info["worker_protocol"]["version"] == "1.20"


async def test_the_end_of_a_run_is_heard_of_without_asking_for_its_description() -> None:
    async with world() as here, open_fault_proxy(here.url) as proxy, Client(proxy.url) as client:
        handle = await client.start_workflow("chain", task_queue="q", workflow_id="wf-1")

        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait() -> None:
                with pytest.raises(WorkflowFailed):
                    await handle.result()

            await here.client.signal("wf-1", "news")
            await here.client.cancel("wf-1")

        asked = {(exchange.method, exchange.path) for exchange in proxy.exchanges}
        assert ("GET", f"/api/workflows/wf-1/runs/{handle.run_id}/history") in asked
        assert ("GET", "/api/workflows/wf-1") not in asked
