"""A program of the official SDK, unmodified, run by `test_tokens_and_namespaces`: a worker and a client in a namespace.

Usage: sdk_tokens.py URL NAMESPACE; the tokens come from WORKER_TOKEN and CONTROL_TOKEN. Prints the result as JSON, or
the type of the error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Generator
from typing import Any

from durable_workflow import Client, Worker, activity, workflow


@activity.defn(name="double")
def double(number: int) -> int:
    """Give twice a number."""
    return 2 * number


@workflow.defn(name="doubling")
class Doubling:
    """One queued activity."""

    def run(self, ctx: Any, number: int) -> Generator[Any, Any, Any]:
        """Double it."""
        return (yield ctx.schedule_activity("double", [number]))


async def main(url: str, namespace: str) -> Any:
    """Run the workflow once."""
    tokens: dict[str, Any] = {"worker_token": os.environ["WORKER_TOKEN"], "control_token": os.environ["CONTROL_TOKEN"]}
    async with Client(url, namespace=namespace, **tokens) as client:
        worker = Worker(client, task_queue="q", workflows=[Doubling], activities=[double])
        running = asyncio.create_task(worker.run())
        try:
            starting = client.start_workflow(
                workflow_type="doubling", workflow_id="shared-name", task_queue="q", input=[21]
            )
            return await (await starting).result(timeout=60.0)
        finally:
            await worker.stop()
            await asyncio.gather(running, return_exceptions=True)


try:
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
except Exception as error:  # noqa: BLE001 - which error the SDK raises is what the test asks
    print(json.dumps(type(error).__name__))
