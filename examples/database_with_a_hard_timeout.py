"""A blocking database driver call that never comes back is killed at its timeout; the next attempt asks less.

    python examples/database_with_a_hard_timeout.py

The query is one call into C: no exception can interrupt it and no cooperative timeout of Python ever gets its turn.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import trio

from one_machine import QUEUE, one_machine
from proctor import activity, workflow

COUNT = "with recursive n(i) as (select 1 union all select i + 1 from n {limit}) select count(*) from n"


@activity.defn(name="count_rows")
def count_rows() -> dict[str, int]:
    """Count without an end at first; having been killed for it, count with a limit."""
    attempt = activity.info().attempt_number
    limit = "" if attempt == 1 else "limit 100000"
    # Connect inside the handler: an attempt is a process of its own.
    with sqlite3.connect(":memory:") as connection:
        (rows,) = connection.execute(COUNT.format(limit=limit)).fetchone()
    connection.close()
    return {"rows": rows, "attempt": attempt}


@workflow.defn(name="report")
class Report:
    """Two attempts of at most two seconds each."""

    async def run(self, ctx: Any) -> Any:
        retry = workflow.RetryPolicy(max_attempts=2)
        return await ctx.local_activity("count_rows", start_to_close_timeout=2, retry_policy=retry)


async def main() -> None:
    """Run the workflow once."""
    async with one_machine([Report], [count_rows]) as client:
        handle = await client.start_workflow("report", [], task_queue=QUEUE)
        print("result:", await handle.result())


if __name__ == "__main__":
    trio.run(main)
