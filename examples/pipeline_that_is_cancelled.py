"""A pipeline of subprocesses is cancelled in mid-run: the handler cleans up, and every process below it is gone.

python examples/pipeline_that_is_cancelled.py
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import trio

from one_machine import QUEUE, one_machine
from proctor import activity, workflow
from proctor.errors import WorkflowFailed


@activity.defn(name="compress")
def compress(folder: str) -> str:
    """Feed an endless stream through two processes; the partial file is removed when the attempt is stopped."""
    partial = Path(folder, "stream.gz.partial")
    try:
        with partial.open("wb") as out:
            source = subprocess.Popen(["yes", "row"], stdout=subprocess.PIPE)
            Path(folder, "started").write_text("yes")
            # Waiting here is blocking Python code: a stop raises activity.Cancelled out of it, so `finally` runs.
            subprocess.run(["gzip", "-1"], stdin=source.stdout, stdout=out, check=True)
        return str(partial.rename(Path(folder, "stream.gz")))
    finally:
        partial.unlink(missing_ok=True)


@workflow.defn(name="archive")
class Archive:
    """One attempt without a short timeout; only a cancellation ends it."""

    async def run(self, ctx: Any, folder: str) -> Any:
        return await ctx.local_activity(
            "compress",
            [folder],
            start_to_close_timeout=3600,
            # The run learns of its cancellation only after the handler is proven gone.
            cancellation_policy=workflow.CancellationPolicy.WAIT_CANCELLATION_COMPLETED,
        )


async def main() -> None:
    """Run the workflow, cancel it once the pipeline runs, and look at what is left."""
    with tempfile.TemporaryDirectory() as folder:
        started = Path(folder, "started")
        os.mkfifo(started)
        async with one_machine([Archive], [compress]) as client:
            handle = await client.start_workflow("archive", [folder], task_queue=QUEUE)
            await trio.to_thread.run_sync(started.read_text)  # a named pipe: returns when the handler has written
            await client.request_cancellation(handle.workflow_id, reason="not needed any more")
            try:
                await handle.result()
            except WorkflowFailed as failed:
                print("run:", failed.status)
        left = sorted(path.name for path in await trio.Path(folder).iterdir())
    print("files left:", [name for name in left if name != "started"])


if __name__ == "__main__":
    trio.run(main)
