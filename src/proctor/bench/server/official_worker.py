"""The official SDK's worker with the workload, prepared local activities on, until its standard input ends.

Usage: python -m proctor.bench.server.official_worker URL QUEUE
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from proctor.bench.server import workload

_CAPABILITIES = ("cooperative_cancellation", "prepared_local_activities")


async def main(url: str, queue: str) -> None:
    """Work until told to stop."""
    official: Any = importlib.import_module("durable_workflow")
    noop = importlib.import_module("proctor.bench.server.official_noop").noop
    async with official.Client(url) as client:
        worker = official.Worker(
            client,
            task_queue=queue,
            workflows=[workload.sequence(importlib.import_module("durable_workflow.workflow"))],
            activities=[noop],
            capabilities=_CAPABILITIES,
            poll_timeout=5.0,
        )
        running = asyncio.create_task(worker.run())
        told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        await worker.stop()
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
