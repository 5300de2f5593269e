"""A worker dies in the middle of an update; the other one answers it, and the history is that of an undisturbed run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from interop.both import Run, comparable, ended, official_worker, our_worker, server
from news import await_events
from portable_files import definitions, load
from proctor.client import Client
from proctor.core import codec
from proctor.core.replay.offline import task_of_history, verify
from proctor.handle import WorkflowHandle
from proctor.harness import DropRequest, ServerFaults, open_fault_proxy

Side = Callable[[str, str], AbstractAsyncContextManager[Any]]
OURS = definitions(load("live"))


class _Killed(Exception):
    """Takes a worker away in the middle of what it does."""


@asynccontextmanager
async def killed(worker: Side, url: str, queue: str) -> AsyncIterator[None]:
    """Run a worker that is gone at the end of the block, without finishing or saying anything."""
    try:
        async with worker(url, queue):
            yield
            raise _Killed
    except* _Killed:
        pass


async def ask(client: Client, handle: WorkflowHandle, amount: int, **options: Any) -> dict[str, Any]:
    """Ask for an update, always under the same request id for one amount."""
    return await client.update(handle.workflow_id, "add", [amount], request_id=f"add {amount}", **options)


async def finish(client: Client, handle: WorkflowHandle) -> Run:
    """Let the update of 2 be answered, or hear again what it was, then end the run with another one."""
    told = [await ask(client, handle, amount, wait_timeout_seconds=60) for amount in (2, 3)]
    assert [one["result"] for one in told] == [{"amount": 2}, {"amount": 5}]
    return await ended(client, handle)


# Ours, when it is cancelled, still gives its tasks back; the process of the official one is killed.
@pytest.mark.parametrize(
    ("first", "second", "leaves_its_lease"),
    [(our_worker, official_worker, False), (official_worker, our_worker, True)],
)
async def test_the_other_worker_answers_an_update_that_was_begun(
    first: Side, second: Side, leaves_its_lease: bool
) -> None:
    async with server(faults=True, workflow_task_lease_seconds=60) as (url, client):
        handle = await client.start_workflow("live.told", [], task_queue="shared", workflow_id="shared.live.told")
        async with open_fault_proxy(url) as proxy, killed(first, proxy.url, "shared"):
            await await_events(client, handle.workflow_id, "ConditionWaitOpened")
            answer = proxy.add(DropRequest(), "complete_workflow_task", times=None)
            accepted = await ask(client, handle, 2, wait_for="accepted")
            assert accepted["update_status"] == "accepted"
            lost = await answer.acted()
        task_id = lost.path.rsplit("/", 2)[1]
        if leaves_its_lease:
            await ServerFaults(url).expire_lease(task_id=task_id)
        async with second(url, "shared"):
            seen = await finish(client, handle)
        async with second(url, "alone"):
            alone = await client.start_workflow("live.told", [], task_queue="alone", workflow_id="alone.live.told")
            await await_events(client, alone.workflow_id, "ConditionWaitOpened")
            undisturbed = await finish(client, alone)

    assert seen["result"] == undisturbed["result"] == [True, 10]
    assert comparable(seen) == comparable(undisturbed)
    kinds = [event["event_type"] for event in seen["history"]]
    assert [kinds.count(kind) for kind in ("UpdateAccepted", "UpdateApplied", "UpdateCompleted")] == [2, 2, 2]
    verify(OURS["live.told"], task_of_history(seen["history"], workflow_type="live.told", arguments=codec.envelope([])))
