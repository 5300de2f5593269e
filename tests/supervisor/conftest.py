"""A supervisor per test, and ways to ask the process table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proctor_supervisor import StopPolicy, Supervisor, SupervisorOptions, open_supervisor

QUICK = StopPolicy(notice_grace=0.05, raise_grace=0.05)
PRELOAD = ["handlers.blocking", "handlers.hostile"]  # so that no attempt is busy importing when its time counts


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """Two slots, short graces."""
    async with open_supervisor(SupervisorOptions(children=2, stop=QUICK, preload=PRELOAD)) as opened:
        yield opened
        assert opened.running == 0, "a slot was not given back"
