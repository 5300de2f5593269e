"""A long CPU job that loses its process goes on where its last heartbeat said it was.

    python examples/cpu_job_that_resumes.py

The first attempt dies in the middle (here: by its own hand, as if the kernel had killed it for want of memory).
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import trio

from one_machine import QUEUE, one_machine
from proctor import activity, workflow

UNITS = 40
DIES_AT = 25


@activity.defn(name="grind")
def grind(seed: str) -> dict[str, Any]:
    """Do all units from the recorded offset on. What a unit does to the outside world must be safe to do twice."""
    known = activity.last_heartbeat_details() or {"offset": 0, "digest": seed}
    first, digest = known["offset"], known["digest"]
    for offset in range(first, UNITS):
        digest = hashlib.sha256(digest.encode() * 2000).hexdigest()
        time.sleep(0.02)
        activity.heartbeat({"offset": offset + 1, "digest": digest})
        if offset == DIES_AT and activity.info().attempt_number == 1:
            time.sleep(0.8)  # the worker sends heartbeats at a rate of its own; this one arrives
            os.kill(os.getpid(), signal.SIGKILL)
    return {"resumed_at": first, "units": UNITS, "digest": digest[:8]}


@workflow.defn(name="grinding")
class Grinding:
    """Three attempts; each must show a sign of life every two seconds."""

    async def run(self, ctx: Any, seed: str) -> Any:
        return await ctx.local_activity(
            "grind",
            [seed],
            start_to_close_timeout=60,
            heartbeat_timeout=2,
            retry_policy=workflow.RetryPolicy(max_attempts=3),
        )


async def main() -> None:
    """Run the workflow once."""
    async with one_machine([Grinding], [grind]) as client:
        handle = await client.start_workflow("grinding", ["seed"], task_queue=QUEUE)
        print("result:", await handle.result())


if __name__ == "__main__":
    trio.run(main)
