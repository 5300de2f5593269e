"""Probe: runs of sequential prepared local activities, one run at a time, by our worker and by the official one.

Both work on one server, in turn, each alone. The time of a run is that between its first and its last event by the
server's clock, so that nothing of the probe is in it; the first run of a worker is not counted. Nor is a run of the
official worker that fails: on a busy machine its children do not start within the five seconds it gives them.
"""

from __future__ import annotations

import importlib.util
import time
from contextlib import AbstractContextManager

from proctor.bench.server import service, traffic, workload

_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 100.0


def paces(*, runs: int, official_runs: int, activities: int) -> dict[str, list[float]]:
    """Give the series ``fresh``, ``reuse`` and (where it is installed) ``official``: activities per second of a run."""
    found = {}
    with service.server() as server, traffic.Line(server.url) as line:
        for isolation in ("fresh", "reuse"):
            worker = service.own_worker(server.url, isolation, isolation)
            found[isolation] = _paces(line, isolation, worker, runs, activities)
        if importlib.util.find_spec("durable_workflow") is not None:
            worker = service.official_worker(server.url, "official")
            found["official"] = _paces(line, "official", worker, official_runs, activities)
    return found


def _paces(
    line: traffic.Line, queue: str, worker: AbstractContextManager[None], runs: int, activities: int
) -> list[float]:
    with worker:
        found = [_pace(line, queue, f"{queue}-{number}", activities) for number in range(runs + 1)][1:]
    paces = [pace for pace in found if pace is not None]
    if not paces or (queue != "official" and len(paces) < runs):
        raise RuntimeError(f"{runs - len(paces)} of {runs} runs on queue {queue} failed")
    return paces


def _pace(line: traffic.Line, queue: str, workflow_id: str, activities: int) -> float | None:
    line.start(workflow_id, workload.WORKFLOW_TYPE, queue, [activities])
    end = time.monotonic() + _PATIENCE_SECONDS
    while not (seen := line.describe(workflow_id))["is_terminal"]:
        if time.monotonic() > end:
            raise RuntimeError(f"{workflow_id} did not end within {_PATIENCE_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)  # seldom, so that looking does not slow what is looked at
    if seen["status"] != "completed":
        return None
    events = line.history(workflow_id, seen["run_id"])
    return activities / traffic.seconds_between(events[0], events[-1])
