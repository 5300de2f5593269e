"""Probe: what many parked long polls cost the server in memory."""

from __future__ import annotations

from contextlib import ExitStack

from proctor.bench import processes
from proctor.bench.server import service, traffic

_TIMEOUT_SECONDS = 60


def memory(*, polls: int) -> dict[str, list[float]]:
    """Give the series ``idle`` and ``above_idle``: resident bytes without polls, and what `polls` of them add."""
    with service.server() as server, ExitStack() as lines:
        first = lines.enter_context(traffic.Line(server.url))
        first.register()
        idle = server.memory
        for _ in range(polls):
            lines.enter_context(traffic.Line(server.url)).send(
                "POST",
                "/worker/workflow-tasks/poll",
                {"worker_id": traffic.WORKER, "task_queue": traffic.QUEUE, "timeout_seconds": _TIMEOUT_SECONDS},
            )
        first.ask("GET", "/workers")  # sent after the polls, so they have been read by now
        held = processes.sockets_of(server.pid) - 1
        if held < polls:
            raise RuntimeError(f"the server holds {held} connections, fewer than the {polls} that were opened")
        return {"idle": [float(idle)], "above_idle": [float(server.memory - idle)]}
