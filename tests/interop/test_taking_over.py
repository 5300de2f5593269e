"""A run that one worker began is finished by the other, and its history is that of a run nobody interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from interop.both import comparable, drive, ended, official_worker, our_worker, server, wait_for_event

Side = Callable[[str, str], AbstractAsyncContextManager[Any]]


@pytest.mark.parametrize(("first", "second"), [(our_worker, official_worker), (official_worker, our_worker)])
async def test_the_other_worker_finishes_the_run(first: Side, second: Side) -> None:
    async with server() as (url, client):
        handle = await client.start_workflow(
            "live.conditions", [], task_queue="shared", workflow_id="shared.live.conditions"
        )
        async with first(url, "shared"):
            await wait_for_event(handle, "ConditionWaitOpened")
        await client.signal(handle.workflow_id, "add", [2])
        async with second(url, "shared"):
            await wait_for_event(handle, "ConditionWaitOpened", 2)
            await client.signal(handle.workflow_id, "add", [3])
            seen = await ended(handle)
        async with second(url, "alone"):
            with trio.fail_after(30):
                alone = await drive(client, "live.conditions", "alone")

    assert seen["result"] == alone["result"] == [True, 4, True, False, 5]
    assert comparable(seen) == comparable(alone)
