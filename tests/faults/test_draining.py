"""A drained worker over real sockets: after the grace its children are gone, and others go on without waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from faults.rig import STOPS, is_alive, pids_from, pipe_in, rig
from proctor_supervisor import SupervisorOptions

LEASE = 300.0
"""Longer than the test: what another worker takes over was released, it has not run out."""


@pytest.mark.parametrize(("kind", "members"), [("local", 1), ("group", 2)])
async def test_after_the_grace_the_children_are_gone_and_the_claim_is_free_for_another(
    kind: str, members: int, tmp_path: Path
) -> None:
    pipe = pipe_in(tmp_path)
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        both = SupervisorOptions(children=2, stop=STOPS, preload=["faults.work"])
        first = await here.start_worker("first", supervisor=both, drain_grace=0.2)
        handle = await here.start(kind, "block_at_first", str(pipe))
        pids = await pids_from(pipe, members)
        await here.start_worker("second", supervisor=both)

        first.drain()
        await here.event("deregistered")
        assert not any(is_alive(pid) for pid in pids), "deregistered before the proof"
        with trio.fail_after(20):
            assert await handle.result() == 2

        history = await here.check(handle)
        stopped = [event for event in here.told if event["event"] == "attempt_ended" and event.get("stop")]
        assert sorted(event["stop"]["pid"] for event in stopped) == sorted(pids)
        assert [event["published"] for event in stopped] == [False] * members
        spoken = [
            seen.operation
            for seen in here.proxy.exchanges
            if seen.worker == "first" and seen.operation in ("outcome", "fail_workflow_task", "complete_workflow_task")
        ]
        assert spoken == []
        kinds = [event["event_type"] for event in history]
        assert kinds.count("ActivityScheduled") == kinds.count("ActivityCompleted") == members


@pytest.mark.parametrize("kind", ["local", "group"])
async def test_what_ends_within_the_grace_is_published_and_completed(kind: str) -> None:
    async with rig(workflow_task_lease_seconds=LEASE) as here:
        both = SupervisorOptions(children=2, stop=STOPS, preload=["faults.work"])
        worker = await here.start_worker("first", supervisor=both, drain_grace=30.0)
        handle = await here.start(kind, "work", "value")
        await here.event("attempt_started")

        worker.drain()
        await here.event("deregistered")

        published = [event["published"] for event in here.told if event["event"] == "attempt_ended"]
        assert published
        assert all(published)
        ended = [event["event_type"] for event in await handle.history()]
        assert ended.count("ActivityCompleted") == len(published)
