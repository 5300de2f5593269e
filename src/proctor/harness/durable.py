"""``python -m proctor.harness.durable server FILE PORT`` and ``… worker URL SUBJECT``: the two sides of a durable run.

The workflow calls the handler once, with retries. Both programs say one JSON object a line.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import structlog
import trio

from proctor import workflow
from proctor.client import Client
from proctor.harness.subject import Subject
from proctor.server import ServerOptions, serve
from proctor.worker import Worker
from proctor_supervisor import SupervisorOptions

QUEUE = "kill-test"
LEASE_SECONDS = 2.0
ATTEMPTS = 10


@workflow.defn(name="proctor.kill_test")
class KillTest:
    """One call of the handler under test."""

    async def run(self, ctx: workflow.WorkflowContext, name: str, arguments: list[Any], timeout: float) -> Any:
        """Call it; an attempt that was lost is made again."""
        return await ctx.local_activity(
            name,
            arguments,
            start_to_close_timeout=max(1, round(timeout)),
            retry_policy=workflow.RetryPolicy(max_attempts=ATTEMPTS),
        )


async def run_server(file: Path, port: int) -> None:
    """Run the embedded server on `file` until killed."""
    options = ServerOptions(database=file, port=port, workflow_task_lease_seconds=LEASE_SECONDS)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, options)
        _say({"listening": url})


async def run_worker(url: str, subject: Subject) -> None:
    """Run a worker with the handler until killed."""
    worker = Worker(
        Client(url),
        task_queue=QUEUE,
        workflows=[KillTest],
        activities=[subject.function],
        supervisor=SupervisorOptions(children=1, preload=[subject.module]),
        on_event=_tell,
    )
    await worker.run()


def _tell(event: dict[str, Any]) -> None:
    # Nobody reads on for long, and a full pipe would stop the worker.
    if event["event"] == "registered" or (event["event"], event.get("attempt")) == ("attempt_started", 1):
        _say({"event": event["event"]})


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),  # lost connections are what is tested
    )
    if sys.argv[1] == "server":
        trio.run(run_server, Path(sys.argv[2]), int(sys.argv[3]))
    else:
        trio.run(run_worker, sys.argv[2], Subject.from_json(sys.argv[3]))
