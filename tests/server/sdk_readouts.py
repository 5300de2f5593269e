"""A program of the official SDK's client, unmodified, run by `test_sdk_readouts`: it reads what operators read.

It prints one JSON object. Usage: sdk_readouts.py URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Generator
from typing import Any

from durable_workflow import Client, Worker, workflow

QUEUE = "read/outs"
MANIFEST: dict[str, dict[str, Any]] = {
    name: {"supported": False, "minimum_protocol_version": "1.18", "reason": "not needed"}
    for name in ("local_activities", "worker_sessions", "sticky_execution")
}


@workflow.defn(name="short")
class Short:
    """Say yes."""

    def run(self, ctx: Any, name: str) -> Generator[Any, Any, str]:
        """Record one thing and end."""
        yield ctx.side_effect(lambda: 1)
        return f"yes {name}"


async def main(url: str) -> None:
    """Read the queue without and with a worker, the worker, and the run that it finished."""
    seen: dict[str, Any] = {}
    async with Client(url) as client:
        handle = await client.start_workflow(
            workflow_type="short", workflow_id="short", task_queue=QUEUE, input=["Ada"]
        )
        waiting = await client.describe_task_queue(QUEUE)
        assert waiting.admission is not None
        seen["waiting"] = [waiting.name, waiting.namespace, waiting.stats, waiting.pollers, waiting.current_leases]
        seen["idle"] = vars(waiting.admission.workflow_tasks)
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Short],
            activities=[],
            worker_id="reader/one",
            max_concurrent_workflow_tasks=7,
            poll_timeout=2.0,
        )
        running = asyncio.create_task(worker.run())
        seen["result"] = await handle.result(timeout=60.0)
        (listed,) = (await client.list_task_queues()).task_queues
        assert listed.admission is not None
        seen["listed"] = [listed.name, vars(listed.admission.workflow_tasks), vars(listed.admission.query_tasks)]
        workers = await client.list_workers(task_queue=QUEUE, status="active")
        seen["workers"] = [workers.namespace, workers.stale_after_seconds, [row.worker_id for row in workers.workers]]
        seen["stale"] = len((await client.list_workers(status="stale")).workers)
        described = await client.describe_worker("reader/one")
        seen["worker"] = [described.task_queue, described.status, described.max_concurrent_workflow_tasks]
        seen["bundle"] = await client.export_history("short", str(handle.run_id))
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)
        await client.register_worker(
            worker_id="left", task_queue=QUEUE, supported_workflow_types=["short"], capability_manifest=MANIFEST
        )
        seen["removed"] = await client.deregister_worker("left")
        seen["after"] = len((await client.list_workers()).workers)
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
