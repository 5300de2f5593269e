"""The official SDK's worker, unmodified, with the portable workflows, until its stdin ends.

Usage: official_worker.py URL QUEUE [CAPABILITY...]
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tempfile
from pathlib import Path

from durable_workflow import Client, Worker

from portable_files import OFFICIAL, text_of


async def main(url: str, queue: str, capabilities: list[str]) -> None:
    """Work until told to stop."""
    live = importlib.import_module("portable_live")
    loop = asyncio.get_running_loop()
    async with Client(url) as client:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=live.WORKFLOWS,
            activities=live.ACTIVITIES,
            capabilities=capabilities,
            poll_timeout=2.0,
        )
        running = asyncio.create_task(worker.run())
        told = loop.run_in_executor(None, sys.stdin.read)
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the processes of its handlers import the file by name
        Path(folder, "portable_live.py").write_text(text_of("live", OFFICIAL))
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
        asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
