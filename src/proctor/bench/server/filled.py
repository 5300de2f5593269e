"""Probe: what a poll and a describe cost on a file with few runs, and again on one with many; and the memory between.

The runs are filled in over several connections, as fast as the server takes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from proctor.bench.server import service, traffic

_CONNECTIONS = 8
_FIRST = 50
_WARM = 500  # runs after which the server's memory counts as that of a server at work
_GATE = threading.Lock()


def latencies(*, runs: int, calls: int) -> dict[str, list[float]]:
    """Give the series ``poll_empty``, ``poll_filled``, ``describe_empty``, ``describe_filled`` in seconds, and
    ``memory_warm`` and ``memory_filled`` in bytes. A server's first requests are slow, and not counted.
    """
    with service.server() as server:
        with traffic.Line(server.url) as line:
            line.register()
            _measure(line, "first", min(_FIRST, calls))
            found = _measure(line, "empty", calls)
        warm = min(_WARM, runs // 2)
        fill(server.url, "warm", warm)
        found["memory_warm"] = [float(server.memory)]
        fill(server.url, "more", runs - warm)
        found["memory_filled"] = [float(server.memory)]
        with traffic.Line(server.url) as line:  # a new one: the server closes connections that long say nothing
            return found | _measure(line, "filled", calls)


def _measure(line: traffic.Line, state: str, calls: int) -> dict[str, list[float]]:
    polls, looks = [], []
    for number in range(calls):
        workflow_id = f"{state}-{number}"
        line.start(workflow_id, "filling", traffic.QUEUE, [number])
        seconds, task = traffic.timed(line.poll)
        polls.append(seconds)
        line.complete(task)
        looks.append(traffic.timed(lambda workflow_id=workflow_id: line.describe(workflow_id))[0])
    return {f"poll_{state}": polls, f"describe_{state}": looks}


def fill(url: str, name: str, runs: int) -> None:
    """Bring `runs` runs from start to end."""
    numbers = iter(range(runs))

    def fill() -> None:
        with traffic.Line(url) as line:
            while (number := _next(numbers.__next__)) is not None:
                line.start(f"{name}-{number}", "filling", traffic.QUEUE, [number])
                line.complete(line.poll())

    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        for future in [threads.submit(fill) for _ in range(_CONNECTIONS)]:
            future.result()


def _next(give: Callable[[], int]) -> int | None:
    with _GATE:
        try:
            return give()
        except StopIteration:
            return None
