"""The client for faults inside a real server: each call does what it says, and its failures are typed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from proctor.errors import ServerRefused, ServerUnreachable, UsageError
from proctor.harness import ServerFaults
from proctor.server import ServerOptions, serve


@asynccontextmanager
async def server(**options: Any) -> AsyncIterator[str]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve, ServerOptions(**options))
            nursery.cancel_scope.cancel()


async def test_what_is_asked_for_is_done_and_recorded() -> None:
    async with server(faults=True, control_token="c", worker_token="w") as url:
        faults = ServerFaults(url, token="c")
        assert (await faults.advance_clock(3600))["number"] == 1
        assert (await faults.refuse_admission("storage_admission_unavailable"))["retry_after_seconds"] == 1
        assert (await faults.show())["refusing"]["reason"] == "storage_admission_unavailable"
        await faults.admit()
        shown = await faults.show()

        assert shown["clock_ahead_seconds"] == 3600.0
        assert [entry["fault"] for entry in shown["record"]] == ["advance-clock", "refuse-admission", "admit"]
        with pytest.raises(ServerRefused, match="no lease of 'w' is running") as refused:
            await faults.expire_lease(worker_id="w")
        assert refused.value.reason == "nothing_leased"
        with pytest.raises(ServerRefused) as denied:
            await ServerFaults(url, token="w").show()
        assert denied.value.status == 403


async def test_a_server_without_faults_says_how_to_get_one() -> None:
    async with server() as url:
        with pytest.raises(UsageError, match="proctor server --faults"):
            await ServerFaults(url).advance_clock(1)
    with pytest.raises(ServerUnreachable):
        await ServerFaults(url).show()
