"""A run that one worker began is finished by the other, and its history is that of a run nobody interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from interop.both import comparable, drive, ended, official_worker, our_worker, server
from news import await_events
from portable import live

Side = Callable[[str, str], AbstractAsyncContextManager[Any]]


@pytest.mark.parametrize(("first", "second"), [(our_worker, official_worker), (official_worker, our_worker)])
async def test_the_other_worker_finishes_the_run(first: Side, second: Side) -> None:
    async with server() as (url, client):
        handle = await client.start_workflow(
            "live.conditions", [], task_queue="shared", workflow_id="shared.live.conditions"
        )
        async with first(url, "shared"):
            await await_events(client, handle.workflow_id, "ConditionWaitOpened")
        await client.signal(handle.workflow_id, "add", [2])
        async with second(url, "shared"):
            await await_events(client, handle.workflow_id, "ConditionWaitOpened", 2)
            await client.signal(handle.workflow_id, "add", [3])
            seen = await ended(client, handle)
        async with second(url, "alone"):
            with trio.fail_after(30):
                alone = await drive(client, "live.conditions", "alone")

    assert seen["result"] == alone["result"] == [True, 4, True, False, 5]
    assert comparable(seen) == comparable(alone)


@pytest.mark.parametrize(("first", "second"), [(our_worker, official_worker), (official_worker, our_worker)])
async def test_the_other_worker_finds_what_was_stored_outside(first: Side, second: Side) -> None:
    [(_, _, _, told)] = live.MOVES["live.large"]
    async with server(external_threshold_bytes=2_000) as (url, client):
        handle = await client.start_workflow(
            "live.large", live.ARGUMENTS["live.large"], task_queue="shared", workflow_id="shared.live.large"
        )
        async with first(url, "shared"):
            await await_events(client, handle.workflow_id, "ConditionWaitOpened")
        await client.signal(handle.workflow_id, "add", told)
        async with second(url, "shared"):
            seen = await ended(client, handle)

    text = (live.ARGUMENTS["live.large"][0] + "!") * 4
    assert seen["result"] == [told, text + "small."]
    assert len(seen["stored"]) >= 8
