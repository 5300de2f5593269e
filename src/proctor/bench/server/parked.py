"""Probe: what many parked long polls cost the server in memory."""

from __future__ import annotations

import time
from contextlib import ExitStack

from proctor.bench import processes
from proctor.bench.server import service, traffic

_TIMEOUT_SECONDS = 60
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.05


def memory(*, polls: int) -> dict[str, list[float]]:
    """Give the series ``idle`` and ``above_idle``: resident bytes without polls, and what `polls` of them add."""
    with service.server() as server, ExitStack() as lines:
        first = lines.enter_context(traffic.Line(server.url))
        first.register()
        idle, sockets = server.memory, processes.sockets_of(server.pid)
        for _ in range(polls):
            lines.enter_context(traffic.Line(server.url)).send(
                "POST",
                "/worker/workflow-tasks/poll",
                {"worker_id": traffic.WORKER, "task_queue": traffic.QUEUE, "timeout_seconds": _TIMEOUT_SECONDS},
            )
        _await_held(server.pid, sockets + polls)
        first.ask("GET", "/workers")  # answered after whatever had arrived before it
        return {"idle": [float(idle)], "above_idle": [float(server.memory - idle)]}


def _await_held(pid: int, sockets: int) -> None:
    """Wait until the server `pid` has accepted every connection that was opened."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while (held := processes.sockets_of(pid)) < sockets:
        if time.monotonic() > end:
            raise RuntimeError(f"the server holds {held} sockets, not {sockets}, with all connections opened")
        time.sleep(_LOOK_SECONDS)
