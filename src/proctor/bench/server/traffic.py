"""Plain blocking requests to a server over one kept connection: the least a client can cost, so that the server shows.

Leaves out everything a real client checks; a probe that gets an unexpected answer ends.
"""

from __future__ import annotations

import http.client
import json
import time
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from proctor.core import codec

QUEUE = "bench"
WORKER = "bench-worker"
SIDE_EFFECTS = 7  # with the two events of the start and that of the end, ten in a run

_SECONDS = 60.0
_HEADERS = {
    "Content-Type": "application/json",
    "X-Namespace": "default",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Durable-Workflow-Control-Plane-Version": "2",
}
_OFF = {"supported": False, "minimum_protocol_version": "1.18", "reason": "not_used"}


class Line:
    """One connection to the server at `url`."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Make a request and give its answer. Raises RuntimeError for any status above 299."""
        self.send(method, path, body)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status > 299:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {content[:300]!r}")
        found: dict[str, Any] = json.loads(content)
        return found

    def send(self, method: str, path: str, body: Any = None) -> None:
        """Send a request and leave its answer to come."""
        content = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api{path}", content, _HEADERS)

    def register(self) -> None:
        """Register the worker that `Line.poll` speaks for."""
        self.ask(
            "POST",
            "/worker/register",
            {
                "worker_id": WORKER,
                "task_queue": QUEUE,
                "runtime": "python",
                "supported_workflow_types": ["filling"],
                "supported_activity_types": [],
                "capability_manifest": dict.fromkeys(("worker_sessions", "sticky_execution", "local_activities"), _OFF),
            },
        )

    def start(self, workflow_id: str, workflow_type: str, queue: str, arguments: list[Any]) -> None:
        """Start a run."""
        self.ask(
            "POST",
            "/workflows",
            {
                "workflow_id": workflow_id,
                "workflow_type": workflow_type,
                "task_queue": queue,
                "input": codec.envelope(arguments),
            },
        )

    def describe(self, workflow_id: str) -> dict[str, Any]:
        """Describe the current run of an id."""
        return self.ask("GET", f"/workflows/{workflow_id}")

    def history(self, workflow_id: str, run_id: str) -> list[dict[str, Any]]:
        """Give the first thousand events of a run."""
        events: list[dict[str, Any]] = self.ask(
            "GET", f"/workflows/{workflow_id}/runs/{run_id}/history?page_size=1000"
        )["events"]
        return events

    def poll(self) -> dict[str, Any]:
        """Take the task that is waiting."""
        task = self.ask(
            "POST",
            "/worker/workflow-tasks/poll",
            {"worker_id": WORKER, "task_queue": QUEUE, "timeout_seconds": 30, "history_page_size": 500},
        )["task"]
        if task is None:
            raise RuntimeError("the poll gave no task although a run had been started")
        return dict(task)

    def complete(self, task: dict[str, Any]) -> None:
        """Complete the run of `task` with its side effects."""
        value = codec.encode(7)
        effects = [{"type": "record_side_effect", "result": value} for _ in range(SIDE_EFFECTS)]
        self.ask(
            "POST",
            f"/worker/workflow-tasks/{task['task_id']}/complete",
            {
                "lease_owner": WORKER,
                "workflow_task_attempt": task["workflow_task_attempt"],
                "commands": [*effects, {"type": "complete_workflow", "result": codec.envelope(None)}],
            },
        )


def seconds_between(first: dict[str, Any], last: dict[str, Any]) -> float:
    """Give the time between two events, by the server's clock."""
    return (datetime.fromisoformat(last["timestamp"]) - datetime.fromisoformat(first["timestamp"])).total_seconds()


def timed(call: Any) -> tuple[float, Any]:
    """Give the seconds of one call, and what it gave."""
    begun = time.perf_counter()
    found = call()
    return time.perf_counter() - begun, found
