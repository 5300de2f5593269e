"""Server, worker and client in one program, so that the examples need nothing else. Not how you deploy it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from proctor import Client, SupervisorOptions, Worker
from proctor.server import ServerOptions, serve

QUEUE = "examples"


@asynccontextmanager
async def one_machine(
    workflows: Sequence[type[Any]], activities: Sequence[Callable[..., Any]], *, queued: int = 0
) -> AsyncIterator[Client]:
    """Run an embedded server and a worker around the block; both are gone, with every child, when it ends.

    `queued` is how many queued activities the worker runs at once, beside its local ones.
    """
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, ServerOptions())
        worker = Worker(
            Client(url),
            task_queue=QUEUE,
            workflows=workflows,
            activities=activities,
            supervisor=SupervisorOptions(children=2),
            queued_activities=queued,
            on_event=tell,
        )
        async with Client(url) as client, trio.open_nursery() as working:
            working.start_soon(worker.run)
            yield client
            worker.drain()
        nursery.cancel_scope.cancel()


def tell(event: dict[str, Any]) -> None:
    """Print what became of each attempt, with the proof of its stop if it was stopped."""
    if event["event"] != "attempt_ended":
        return
    stop = event["stop"] or {}
    proof = ""
    if stop:
        below = len(stop["descendants_killed"])
        proof = f"; stopped ({stop['reason']}), pid {stop['pid']} gone" + (f" with {below} below it" if below else "")
    print(f"  {event['activity']} attempt {event['attempt']}: {event['outcome']}{proof}", flush=True)
