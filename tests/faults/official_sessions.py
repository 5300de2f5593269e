"""The official SDK's client, unmodified, as a worker that takes, renews and closes sessions: official_sessions.py URL N

It prints the outcomes of each operation, one list for each of N sessions.
"""

from __future__ import annotations

import asyncio
import json
import sys

from durable_workflow import Client, WorkerSessionOptions

MANIFEST = {
    name: {"supported": name == "worker_sessions", "minimum_protocol_version": "1.18"}
    for name in ("local_activities", "worker_sessions", "sticky_execution")
}


async def main(url: str, count: int) -> list[list[str]]:
    """Give the outcomes."""
    outcomes = []
    async with Client(url) as client:
        await client.register_worker(
            worker_id="w",
            task_queue="q",
            supported_activity_types=["use"],
            capabilities=["worker_sessions"],
            capability_manifest=MANIFEST,
            max_concurrent_worker_sessions=1,
        )
        for number in range(count):
            name = f"session/{number}"
            replies = [
                await client.create_worker_session("w", WorkerSessionOptions(session_id=name)),
                await client.renew_worker_session("w", name, 30),
                await client.close_worker_session("w", name),
            ]
            outcomes.append([reply["outcome"] for reply in replies])
    return outcomes


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
