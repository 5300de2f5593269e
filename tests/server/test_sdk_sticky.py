"""The official SDK's worker with its sticky cache on the embedded server: its own counters are the judge."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio

from proctor.harness import open_fault_proxy
from proctor.server import ServerOptions, serve

PROGRAM = Path(__file__).with_name("sdk_sticky.py")


async def test_its_sticky_cache_hits_misses_evicts_and_is_forced() -> None:
    seen, history_requests = await _run()

    def counted(step: str) -> tuple[int, ...]:
        own, claimed = seen[step]["own"], seen[step]["claimed"]
        counters = ("hit", "miss", "eviction", "forced_cold_replay")
        if claimed is not None:
            # The claim is made with the completion, before the next load is counted.
            assert claimed == {name: own[name] for name in counters}
        return tuple(own[name] for name in (*counters, "entries"))

    assert counted("miss") == (0, 1, 0, 0, 1)
    assert counted("hit") == (1, 1, 0, 0, 1)
    assert counted("evicted") == (1, 2, 1, 0, 1)
    assert counted("forced") == (1, 3, 2, 1, 1)
    assert seen["left"] == 0
    assert seen["results"] == [2, 1, 2 * sum(range(600))]
    assert counted("taken over") == (0, 2, 0, 2, 0)
    assert seen["small recorded"] == 2 * 2 + 2

    assert counted("before the last page")[:4] == (2, 3, 0, 2)
    assert seen["paged"]["hit"] == 3
    assert seen["paged"]["entries"] == 0
    # Nothing that is recorded was made again, by whichever worker.
    assert seen["large recorded"] == 2 * 600
    # The pages that the worker kept are not asked for again: it goes on from the token of its last one.
    assert len(history_requests) == 1


async def _run() -> tuple[dict[str, Any], list[str]]:
    """Run the program through a proxy, and give what it saw and the history requests of the last turn."""
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, ServerOptions(workflow_task_lease_seconds=90))
        async with open_fault_proxy(url) as proxy:
            with trio.fail_after(110):
                done = await trio.run_process(
                    [sys.executable, str(PROGRAM), proxy.url], capture_stdout=True, capture_stderr=True, check=False
                )
            exchanges = [(exchange.method, exchange.path) for exchange in proxy.exchanges]
        nursery.cancel_scope.cancel()
    assert done.returncode == 0, done.stderr.decode()
    seen: dict[str, Any] = json.loads(done.stdout)
    marks = [index for index, exchange in enumerate(exchanges) if exchange == ("GET", "/api/workers/second")]
    return seen, [
        path for _, path in exchanges[marks[-1] :] if path.endswith("/history") and "/workflow-tasks/" in path
    ]
