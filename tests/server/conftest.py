"""A server in memory for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from server.wire import Wire, Worker, running_server


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with running_server() as running:
        yield running


@pytest.fixture
async def worker(wire: Wire) -> Worker:
    """Give a registered, fully capable worker."""
    registered = Worker(wire)
    await registered.register()
    return registered
