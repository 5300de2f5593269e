"""Processes that a kill test starts, and the proof from the process table that none of them is left.

Everything below a marked process inherits the mark in its environment; one that cleared its environment is not seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

MARK = "PROCTOR_KILL_TEST_MARK"


def new_mark() -> str:
    """Give a value for the environment variable `MARK`."""
    return uuid.uuid4().hex


@contextmanager
def marking(mark: str) -> Iterator[None]:
    """Let processes that are started in this block carry `mark`."""
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


def living(mark: str, variable: str = MARK) -> dict[int, str]:
    """Give the living processes that carry `mark`, this one excepted: their pids and command lines."""
    needle = f"{variable}={mark}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        place = Path("/proc") / name
        with contextlib.suppress(OSError):
            if needle in (place / "environ").read_bytes().split(b"\0"):
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found[int(name)] = command.strip()
    return found


async def left_over(
    mark: str, *, within: float, spared: frozenset[int] = frozenset(), variable: str = MARK
) -> list[str]:
    """Wait at most `within` seconds until no process carries `mark` but those spared; give those that still do."""
    with trio.move_on_after(within):
        while left := living(mark, variable).keys() - spared:
            await gone(min(left))
    return [f"{pid} {command}" for pid, command in living(mark, variable).items() if pid not in spared]


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


class Program:
    """A running Python program of the test, which says one JSON object a line. Made by `program`."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    async def says(self) -> dict[str, Any] | None:
        """Read the next JSON object that it says, past lines that are none; None when it ended."""
        assert self.process.stdout is not None
        while True:
            while b"\n" not in self._rest:
                chunk = await self.process.stdout.receive_some()
                if not chunk:
                    return None
                self._rest += bytes(chunk)
            line, _, self._rest = self._rest.partition(b"\n")
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict):
                    return said

    async def kill(self) -> None:
        """Kill it with SIGKILL and wait for its end."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def program(module: str, *arguments: str, mark: str) -> AsyncIterator[Program]:
    """Run ``python -m module`` with our import path; at the end of the block it is killed if it still lives."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {MARK: mark, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )
    try:
        yield Program(process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()
