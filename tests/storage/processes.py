"""Servers as processes for tests that end them: started in milliseconds by `server_forks`, spoken to over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import trio

from server.wire import Reply
from storage.ledger import Gone

_PROGRAM = Path(__file__).with_name("server_forks.py")


class Forks:
    """A running `server_forks`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._buffer = b""
        self._living: set[int] = set()

    async def start(self, database: Path, **options: Any) -> tuple[int, str]:
        """Start a server on the file and give its pid and URL."""
        answer = await self._ask({"database": str(database), **options})
        assert "pid" in answer, answer
        self._living.add(answer["pid"])
        return answer["pid"], answer["url"]

    async def kill(self, pid: int) -> None:
        """Kill a server and return when it is gone."""
        os.kill(pid, signal.SIGKILL)
        await self._ask({"reap": pid})
        self._living.discard(pid)

    async def kill_all(self) -> None:
        """Kill the servers that still run."""
        for pid in tuple(self._living):
            await self.kill(pid)

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        await self._process.stdin.send_all(json.dumps(asked).encode() + b"\n")
        while b"\n" not in self._buffer:
            chunk = await self._process.stdout.receive_some()
            assert chunk, "the forking program ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def server_forks() -> AsyncIterator[Forks]:
    """Run the forking program; what it started is killed at the end."""
    paths = os.pathsep.join(filter(None, (str(_PROGRAM.parents[1]), os.environ.get("PYTHONPATH"))))
    process = await trio.lowlevel.open_process(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    forks = Forks(process)
    async with process.stdin, process.stdout:
        try:
            yield forks
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(10):
                with suppress(trio.BrokenResourceError, AssertionError):
                    await forks.kill_all()
                await process.stdin.aclose()
                await process.wait()


class HttpFace:
    """A server behind its URL, for `ledger.work`; raises Gone when it does not answer."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def worker(
        self, path: str, body: Any = None, *, version: str = "1.20", method: str = "POST", left: None = None
    ) -> Reply:
        """Make a request of the worker plane."""
        return await self._request(method, f"/worker{path}", body, {"X-Durable-Workflow-Protocol-Version": version})

    async def control(self, method: str, path: str, body: Any = None) -> Reply:
        """Make a request of the control plane."""
        return await self._request(method, path, body, {"X-Durable-Workflow-Control-Plane-Version": "2"})

    async def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
        try:
            reply = await self._client.request(method, path, json=body, headers=headers)
        except httpx2.TransportError as exc:
            raise Gone from exc
        return Reply(reply.status_code, reply.headers, reply.json() if reply.content else {})


@asynccontextmanager
async def http_face(url: str) -> AsyncIterator[HttpFace]:
    """Open a client of a server."""
    async with httpx2.AsyncClient(base_url=f"{url}/api", timeout=30, verify=False) as client:
        yield HttpFace(client)
