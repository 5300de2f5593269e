"""Before code is deployed it is replayed against the histories of runs that are open: what fits, what does not.

    python examples/replay_before_deploy.py

A run is recorded, its history saved, and replayed (`proctor replay`) with the code that made it, with a careless change
and with the same change behind a patch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

from one_machine import QUEUE, one_machine
from proctor import activity, workflow

RECORDED = """
from proctor import workflow

@workflow.defn(name="invoice")
class Invoice:
    async def run(self, ctx, customer):
        return await ctx.local_activity("send", [customer])
"""
CARELESS = RECORDED.replace("        return", '        await ctx.local_activity("check", [customer])\n        return')
PATCHED = RECORDED.replace(
    "        return",
    '        if await ctx.patched("check"):\n            await ctx.local_activity("check", [customer])\n        return',
)


@activity.defn(name="send")
def send(customer: str) -> str:
    """Send the invoice."""
    return f"sent to {customer}"


@workflow.defn(name="invoice")
class Invoice:
    """What is deployed today."""

    async def run(self, ctx: workflow.WorkflowContext, customer: str) -> Any:
        """Send one invoice."""
        return await ctx.local_activity("send", [customer])


async def record() -> list[dict[str, Any]]:
    """Run the workflow once and give its history."""
    async with one_machine([Invoice], [send]) as client:
        handle = await client.start_workflow("invoice", ["Ada"], task_queue=QUEUE)
        print("result:", await handle.result())
        return await handle.history()


def replay(history: Path, name: str, source: str) -> None:
    """Replay the history with one version of the code and print what is said."""
    (history.parent / f"{name}.py").write_text(source)
    command = [sys.executable, "-m", "proctor", "replay", history.name, "--module", name, "--workflow", "invoice"]
    done = subprocess.run(command, cwd=history.parent, capture_output=True, text=True, check=False)
    print(f"{name}: exit {done.returncode}, {(done.stdout or done.stderr).strip()}")


def main() -> None:
    """Record, then replay three versions."""
    events = trio.run(record)
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder, "invoice-1.json")
        history.write_text(json.dumps({"events": events, "input": ["Ada"]}))
        for name, source in (("recorded", RECORDED), ("careless", CARELESS), ("patched", PATCHED)):
            replay(history, name, source)


if __name__ == "__main__":
    main()
