"""A workflow of short blocking steps, each of which writes down that it ran, and with which attempt."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from proctor import activity, workflow

STEPS = 6


@activity.defn(name="e2e.step")
def step(folder: str, number: int, seconds: float) -> int:
    """Note the start, start a grandchild, work a little, note the end."""
    _note(folder, "start", number)
    with contextlib.suppress(activity.Cancelled):
        activity.heartbeat({"step": number})
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60"], start_new_session=True) as below:
        time.sleep(seconds)
        below.kill()
    _note(folder, "end", number)
    return number * 10


@activity.defn(name="e2e.forever")
def forever(folder: str) -> None:
    """Never end; a file says that it runs."""
    _note(folder, "start", 0)
    activity.heartbeat({})
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


@activity.defn(name="e2e.unencodable")
def unencodable() -> Any:
    return object()


@activity.defn(name="e2e.environment")
def environment() -> dict[str, str]:
    return dict(os.environ)


def _note(folder: str, what: str, number: int) -> None:
    line = f"{what} {number} {activity.info().attempt_number} {activity.info().activity_attempt_id}\n"
    with Path(folder, "notes").open("a") as file:  # O_APPEND: concurrent lines do not mix
        file.write(line)


@workflow.defn(name="e2e.steps")
class Steps:
    async def run(self, ctx: workflow.WorkflowContext, folder: str, seconds: float) -> list[int]:
        return [
            await ctx.local_activity(
                "e2e.step",
                [folder, number, seconds],
                start_to_close_timeout=20,
                retry_policy=workflow.RetryPolicy(max_attempts=20),
            )
            for number in range(STEPS)
        ]


@workflow.defn(name="e2e.stuck")
class Stuck:
    async def run(self, ctx: workflow.WorkflowContext, folder: str) -> None:
        await ctx.local_activity("e2e.forever", [folder], start_to_close_timeout=60)


@workflow.defn(name="e2e.one")
class One:
    """Run one activity by name."""

    async def run(self, ctx: workflow.WorkflowContext, name: str) -> Any:
        return await ctx.local_activity(name, [], start_to_close_timeout=10)
