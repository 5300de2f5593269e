"""The official SDK's worker, unmodified, with the portable workflows, until its stdin ends.

Usage: official_worker.py URL QUEUE
"""

from __future__ import annotations

import asyncio
import sys

from durable_workflow import Client, Worker

from portable_files import OFFICIAL, load


async def main(url: str, queue: str) -> None:
    """Work until told to stop."""
    live = load("live", OFFICIAL)
    loop = asyncio.get_running_loop()
    async with Client(url) as client:
        worker = Worker(
            client, task_queue=queue, workflows=live.WORKFLOWS, activities=live.ACTIVITIES, poll_timeout=2.0
        )
        running = asyncio.create_task(worker.run())
        told = loop.run_in_executor(None, sys.stdin.read)
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
