"""Real processes: ``proctor server`` and ``proctor worker`` as a user starts them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from processes import MARK, await_none, new_mark, wait_for_exit
from proctor import Client
from proctor.errors import WorkflowFailed

TESTS = Path(__file__).resolve().parent
QUEUE = "e2e"

Variables = Mapping[str, str] | None


class Stage:
    """A folder, a database, and the processes that work on it; all of them carry one mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "proctor.db"
        self.mark = new_mark()
        self.url = ""
        self.port = 0
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {MARK: self.mark, "PYTHONPATH": str(TESTS), "DURABLE_WORKFLOW_SERVER_URL": self.url}

    def start(self, *arguments: str, variables: Variables = None) -> subprocess.Popen[str]:
        """Start ``proctor`` with `arguments`; its stdout is a pipe."""
        process = subprocess.Popen(
            [sys.executable, "-m", "proctor", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment | dict(variables or {}),
            cwd=self.folder,
        )
        self._processes.append(process)
        return process

    def call(
        self, *arguments: str, within: float = 60, variables: Variables = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``proctor`` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "proctor", *arguments],
            capture_output=True,
            text=True,
            env=self.environment | dict(variables or {}),
            cwd=self.folder,
            timeout=within,
            check=False,
        )

    def start_server(
        self, *arguments: str, lease_seconds: float = 2.0, variables: Variables = None
    ) -> subprocess.Popen[str]:
        """Start the server on the stage's database; a second call takes the same port."""
        server = self.start(
            "server", "--port", str(self.port), "--db", str(self.database),
            "--lease-seconds", str(lease_seconds), *arguments, variables=variables,
        )  # fmt: skip
        line = read_line(server, within=20)
        assert line.startswith("listening on "), line
        self.url = line.removeprefix("listening on ").strip()
        self.port = int(self.url.rpartition(":")[2])
        return server

    def start_worker(self, *arguments: str, variables: Variables = None) -> subprocess.Popen[str]:
        """Start a worker that runs `handlers.runs`, and wait until it is registered."""
        worker = self.start(
            "worker", "handlers.runs", "--queue", QUEUE, "--children", "2", "--json", *arguments, variables=variables
        )
        await_event(worker, "registered", within=20)
        return worker

    def start_run(self, workflow: str, *values: Any, workflow_id: str) -> None:
        started = self.call(
            "start", workflow, "--queue", QUEUE, "--id", workflow_id, "--args", json.dumps(list(values))
        )
        assert started.returncode == 0, started.stderr

    def history(self, workflow_id: str) -> list[dict[str, Any]]:
        shown = self.call("history", workflow_id, "--json")
        assert shown.returncode == 0, shown.stderr
        events: list[dict[str, Any]] = json.loads(shown.stdout)["events"]
        return events

    def await_closed(self, workflow_id: str, *, within: float) -> tuple[str, Any]:
        """Wait until the run is closed; give its status, and its result or the text of its failure."""

        async def wait() -> tuple[str, Any]:
            with trio.fail_after(within):
                async with Client(self.url) as client:
                    try:
                        return "completed", await client.handle(workflow_id).result()
                    except WorkflowFailed as failed:
                        return failed.status, str(failed)

        return trio.run(wait)

    def notes(self) -> list[tuple[str, int, int, str]]:
        """What the handlers of `handlers.runs` wrote down: what, step, attempt, attempt id."""
        path = self.folder / "notes"
        if not path.exists():
            return []
        lines = [line.split() for line in path.read_text().splitlines()]
        return [(what, int(number), int(attempt), identity) for what, number, attempt, identity in lines]

    def close(self) -> None:
        """Stop everything; what carries the mark and still lives afterwards is a failure."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            if not wait_for_exit(process.pid, within=10):
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        left = await_none(self.mark, within=2.0)
        assert left == [], f"left behind: {left}"


def read_line(process: subprocess.Popen[str], *, within: float) -> str:
    """Read one line of a process's stdout, or fail after `within` seconds."""
    assert process.stdout is not None
    # Lines are read one by one from the descriptor, so that nothing is hidden in a buffer from the next poll.
    descriptor, line, deadline = process.stdout.fileno(), b"", time.monotonic() + within
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            pytest.fail(f"'{process.args!r}' said nothing within {within} s (so far {line!r})")
        byte = os.read(descriptor, 1)
        if not byte:
            pytest.fail(f"'{process.args!r}' ended with {process.wait()} (so far {line!r})")
        line += byte
    return line.decode()


def await_event(worker: subprocess.Popen[str], name: str, *, within: float) -> dict[str, Any]:
    """Read a worker's --json lines up to the event `name`; give it."""
    deadline = time.monotonic() + within
    while True:
        event: dict[str, Any] = json.loads(read_line(worker, within=deadline - time.monotonic()))
        if event.get("event") == name:
            return event
