"""The demo's processes: an embedded server and a supervised worker, each a real ``proctor`` command.

Both stop when their standard input ends, so they cannot outlive the demo. A process that dies while it is needed is
started again on the same database and worker id, and that is told. Everything started below carries a mark in its
environment, by which `leftovers` finds it in the process table.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from proctor.errors import ProctorError
from proctor.harness.processes import left_over, new_mark

MARK = "PROCTOR_DEMO_MARK"
QUEUE = "demo"
CHILDREN = 2
_STARTS_LIMIT = 5
_STOP_SECONDS = 10.0
_LEFTOVER_SECONDS = 2.0

Event = dict[str, Any]


class Household:
    """The two processes of one demo. `url` is the server's address once it listens."""

    def __init__(self, database: Path, *, on_event: Callable[[Event], None], on_notice: Callable[[str], None]) -> None:
        self._database = database
        self._on_event = on_event
        self._on_notice = on_notice
        self._mark = new_mark()
        self._port = 0
        self._stopping = False
        self.url = ""
        self.worker_ready = trio.Event()

    async def keep_server(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the server until `stop`; it keeps its port over restarts."""
        listening = False
        for _ in range(_STARTS_LIMIT):
            arguments = ["server", "--port", str(self._port), "--db", str(self._database), "--lease-seconds", "5"]
            async with self._process(arguments) as process:
                async for line in _lines(process.stdout):
                    prefix, _, url = line.partition("listening on ")
                    if not prefix and url:
                        self.url = url.strip()
                        self._port = int(self.url.rpartition(":")[2])
                        if not listening:
                            listening = True
                            task_status.started()
            if self._stopping:
                return
            if not listening:
                raise ProctorError("the demo's server did not start; what it said stands above")
            self._on_notice(f"the server ended ({_how(process.returncode)}); starting it again on the same file")
        raise ProctorError(f"the demo's server ended {_STARTS_LIMIT} times; its last words stand above")

    async def keep_worker(self) -> None:
        """Run the worker until `stop`."""
        for _ in range(_STARTS_LIMIT):
            arguments = [
                "worker", "proctor.demo.workflows", "--server", self.url, "--queue", QUEUE, "--json",
                "--children", str(CHILDREN), "--worker-id", "demo-worker",
            ]  # fmt: skip
            async with self._process(arguments) as process:
                async for line in _lines(process.stdout):
                    with contextlib.suppress(ValueError):
                        event = json.loads(line)
                        if event.get("event") == "registered":
                            self.worker_ready.set()
                        self._on_event(event)
            if self._stopping:
                return
            self._on_notice(f"the worker ended ({_how(process.returncode)}); starting another")
        raise ProctorError(f"the demo's worker ended {_STARTS_LIMIT} times; its last words stand above")

    def stop(self) -> None:
        """From now on a process that ends is not started again."""
        self._stopping = True

    async def leftovers(self) -> list[str]:
        """Every process of this demo but this one that still lives after 2 s, from the process table itself."""
        return await left_over(self._mark, within=_LEFTOVER_SECONDS, variable=MARK)

    @asynccontextmanager
    async def _process(self, arguments: list[str]) -> AsyncIterator[trio.Process]:
        """Start ``proctor`` with `arguments`; at the end of the block it is stopped, gently first."""
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "proctor", *arguments, "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C of the terminal is ours to pass on, in order
            env=os.environ | {MARK: self._mark},
        )
        try:
            yield process
        finally:
            with trio.CancelScope(shield=True):
                assert process.stdin is not None
                assert process.stdout is not None
                await process.stdin.aclose()
                with trio.move_on_after(_STOP_SECONDS) as patience:
                    await process.wait()
                if patience.cancelled_caught:
                    self._on_notice(f"'proctor {arguments[0]}' did not stop within {_STOP_SECONDS:g} s; killing it")
                    process.kill()
                    await process.wait()
                await process.stdout.aclose()


async def _lines(stream: trio.abc.ReceiveStream | None) -> AsyncIterator[str]:
    assert stream is not None
    rest = b""
    async for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")


def _how(returncode: int | None) -> str:
    if returncode is None:
        return "unknown"
    return f"signal {-returncode}" if returncode < 0 else f"exit {returncode}"
