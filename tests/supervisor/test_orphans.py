"""Finding and killing what a dead supervisor process left, also who shows no environment while an exec lasts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import trio

from proctor_supervisor.owner import orphans
from proctor_supervisor.platform import linux

_LONG_EXEC = 0.4  # seconds; more than a busy machine was once given


@pytest.fixture
def mark() -> str:
    return orphans.new_mark()


@contextlib.contextmanager
def started(mark: str | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that blocks: with a mark, or (None) with no environment at all."""
    environment = {} if mark is None else {**os.environ, orphans.MARK: mark}
    with subprocess.Popen(["/bin/sleep", "600"], env=environment) as process:
        try:
            while linux._is_in_exec(process.pid, 0):  # Popen may be back before the exec is through
                time.sleep(0.001)
            yield process
        finally:
            process.kill()


def since(process: subprocess.Popen[bytes]) -> int:
    stat = linux.read_stat(process.pid)
    assert stat is not None
    return stat.started_at


class LongExec:
    """Has one process appear to be in an exec, until some seconds after it was first looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pid: int, seconds: float) -> None:
        self._environment, self._is_in_exec = linux._environment, linux._is_in_exec
        self._pid = pid
        self._seconds = seconds
        self._until: float | None = None
        monkeypatch.setattr(linux, "_environment", self.environment)
        monkeypatch.setattr(linux, "_is_in_exec", self.is_in_exec)

    def _lasts(self, pid: int) -> bool:
        if pid != self._pid:
            return False
        if self._until is None:
            self._until = time.monotonic() + self._seconds
        return time.monotonic() < self._until

    def environment(self, pid: int) -> list[bytes]:
        return [] if self._lasts(pid) else self._environment(pid)

    def is_in_exec(self, pid: int, since: int) -> bool:
        return self._lasts(pid) or self._is_in_exec(pid, since)


def test_a_process_is_found_however_long_its_exec_takes(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(mark) as process:
        LongExec(monkeypatch, process.pid, _LONG_EXEC)

        found = linux.pids_with_environment(f"{orphans.MARK}={mark}".encode(), since=since(process))

        assert found == [process.pid]


def test_no_environment_at_all_is_no_exec() -> None:
    with started(None) as process:
        assert linux._environment(process.pid) == [b""]
        assert not linux._is_in_exec(process.pid, since(process))
    assert not linux._is_in_exec(process.pid, 0)  # a zombie, or gone
    assert not linux._is_in_exec(os.getpid(), 0)


def test_an_exec_is_seen_while_it_lasts() -> None:
    """Of the many looks at starting processes some fall into their execs."""
    seen = 0
    until = time.monotonic() + 60
    while not seen and time.monotonic() < until:
        with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
            while process.poll() is None:
                seen += linux._is_in_exec(process.pid, 0) and not any(linux._environment(process.pid))
    assert seen


async def test_one_that_execs_as_it_is_to_be_killed_is_killed_all_the_same(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_environment = linux.has_environment
    looks = 0

    def not_at_first(pid: int, entry: bytes) -> bool:
        nonlocal looks
        looks += 1
        return looks > 1 and has_environment(pid, entry)

    monkeypatch.setattr(linux, "has_environment", not_at_first)
    with started(mark) as process:
        await orphans.kill_marked(mark, since=since(process), spare=())

        assert looks == 2
        assert linux.read_stat(process.pid) is None


async def test_whom_is_to_be_spared_is_spared(mark: str) -> None:
    with started(mark) as spared, started(mark) as other:
        await orphans.kill_marked(mark, since=since(spared), spare={spared.pid})

        assert linux.read_stat(other.pid) is None
        assert spared.poll() is None


async def test_a_look_that_is_given_up_keeps_no_descriptor(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two will not die: the wait for the first is cancelled, and the descriptor of the second is closed as well."""
    monkeypatch.setattr("signal.pidfd_send_signal", lambda *_: None)
    before = set(os.listdir("/proc/self/fd"))
    with started(mark) as first, started(mark), trio.move_on_after(1) as scope:
        await orphans.kill_marked(mark, since=since(first), spare=())
    assert scope.cancelled_caught
    assert set(os.listdir("/proc/self/fd")) <= before
