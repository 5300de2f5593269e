"""A program of the official SDK, unmodified, run by `test_sdk_sticky`: two workers with a sticky cache, and a client.

It prints one JSON object: the counters of each worker, by itself and as the server shows them, and what became of the
runs. Usage: sdk_sticky.py URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Generator
from typing import Any

from durable_workflow import Client, Worker, workflow

QUEUE = "sticky"
RECORDED: list[int] = []


def record(number: int) -> int:
    """Make a value and remember that it was made."""
    RECORDED.append(number)
    return number


@workflow.defn(name="phases")
class Phases:
    """Record a batch of values in each of the first two phases, and wait for a signal after each phase."""

    def __init__(self) -> None:
        self.advanced = 0

    @workflow.signal("advance")
    def advance(self) -> None:
        """Let the next phase begin."""
        self.advanced += 1

    def run(self, ctx: Any, phases: int, batch: int) -> Generator[Any, Any, int]:
        """Give the sum of all recorded values."""
        total = 0
        for phase in range(phases):
            for number in range(batch if phase < 2 else 0):
                total += yield ctx.side_effect(lambda number=number: record(number))
            yield ctx.wait_condition(lambda phase=phase: self.advanced > phase, key=f"phase-{phase}")
        return total


class Cached:
    """A running worker, and what there is to see of it."""

    def __init__(self, client: Client, name: str, capacity: int) -> None:
        self.client = client
        self.worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Phases],
            activities=[],
            worker_id=name,
            build_id="one",
            sticky_cache_capacity=capacity,
            poll_timeout=5.0,
        )
        self.running = asyncio.create_task(self.worker.run())

    async def counters(self) -> dict[str, Any]:
        """Give the worker's own counters and those the server shows."""
        shown = await self.client.describe_worker(self.worker.worker_id)
        claimed = (shown.process_metrics or {}).get("sticky_cache")
        return {"own": self.worker.sticky_cache_metrics(), "claimed": claimed}

    async def stop(self) -> int:
        """Stop the worker and give how many histories it still keeps."""
        await self.worker.stop()
        await asyncio.gather(self.running, return_exceptions=True)
        return self.worker.sticky_cache_metrics()["entries"]


async def waits(client: Client, name: str, phases: int) -> None:
    """Return when a run waits in this phase."""
    while True:
        run_id = str((await client.describe_workflow(name)).run_id)
        events: list[dict[str, Any]] = []
        token = None
        while True:
            page = await client.get_history(name, run_id, page_size=1_000, next_page_token=token)
            events += page["events"]
            token = page.get("next_page_token")
            if token is None:
                break
        if sum(event["event_type"] == "ConditionWaitOpened" for event in events) >= phases:
            return
        await asyncio.sleep(0.05)


async def start(client: Client, name: str, phases: int, batch: int) -> None:
    """Start a run and return when it waits in its first phase."""
    await client.start_workflow(
        workflow_type="phases", workflow_id=name, task_queue=QUEUE, input=[phases, batch], execution_timeout_seconds=300
    )
    await waits(client, name, 1)


async def main(url: str) -> None:
    """Hit, miss, evict, force; then page."""
    seen: dict[str, Any] = {}
    async with Client(url) as client:
        first = Cached(client, "first", capacity=1)
        await start(client, "a", 3, 2)
        seen["miss"] = await first.counters()
        await client.signal_workflow("a", "advance")
        await waits(client, "a", 2)
        seen["hit"] = await first.counters()
        await start(client, "b", 1, 2)
        seen["evicted"] = await first.counters()
        await client.signal_workflow("a", "advance")
        await waits(client, "a", 3)
        seen["forced"] = await first.counters()
        seen["left"] = await first.stop()

        # Both runs are the first worker's by affinity, so its successor is told to replay them cold.
        second = Cached(client, "second", capacity=2)
        await client.signal_workflow("a", "advance")
        await client.signal_workflow("b", "advance")
        seen["results"] = [await client.get_workflow_handle(name).result(timeout=60.0) for name in ("a", "b")]
        seen["taken over"] = await second.counters()
        seen["small recorded"] = len(RECORDED)

        await start(client, "paged", 3, 600)
        for phase in (2, 3):
            await client.signal_workflow("paged", "advance")
            await waits(client, "paged", phase)
        seen["before the last page"] = await second.counters()
        await client.describe_worker("second")  # the mark behind which the test counts requests
        await client.signal_workflow("paged", "advance")
        seen["results"].append(await client.get_workflow_handle("paged").result(timeout=60.0))
        seen["paged"] = second.worker.sticky_cache_metrics()
        seen["large recorded"] = len(RECORDED) - seen["small recorded"]
        await second.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
