"""A worker as a program of its own, to be killed from outside: ``python -m running.worker_program URL
WORKER_ID``.
"""

from __future__ import annotations

import sys

import trio

from proctor.client import Client
from proctor.worker import Worker
from proctor_supervisor import SupervisorOptions
from running import worker_handlers
from running.workflows import ALL


async def main(url: str, worker_id: str) -> None:
    worker = Worker(
        Client(url),
        task_queue="q",
        workflows=ALL,
        activities=worker_handlers.ALL,
        worker_id=worker_id,
        supervisor=SupervisorOptions(children=1, preload=["running.worker_handlers"]),
    )
    await worker.run()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
