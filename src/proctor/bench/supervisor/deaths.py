"""Probe: the owner's process is SIGKILLed at random instants; how long until nothing of it lives.

What is timed ends when a look at the process table finds nobody: an upper bound, which includes that look. A second
look confirms it, for a process shows no mark in the instant of an exec. Nothing here sleeps and asks again: ends are
awaited by pidfd.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
import uuid

from proctor.bench import processes
from proctor_supervisor.platform import linux

_MARK = "PROCTOR_BENCH_OWNER"
_START_MS = 30_000
_GONE_MS = 30_000
_LATEST = 0.06  # seconds after readiness within which the kill falls


def orphans(kills: int, seed: int) -> dict[str, list[float]]:
    """Kill `kills` owners; give the time until all was gone, what one look costs, and how many processes there were."""
    linux.become_subreaper()  # orphans come here, so that they can be reaped and leave no zombies
    chance = random.Random(seed)
    gone, looks, killed = [], [], []
    for _ in range(kills):
        seconds, look, number = _kill_one(chance.uniform(0.0, _LATEST))
        gone.append(seconds)
        looks.append(look)
        killed.append(float(number))
    return {"gone": gone, "look": looks, "processes": killed}


def _kill_one(delay: float) -> tuple[float, float, int]:
    mark = uuid.uuid4().hex
    owner = subprocess.Popen(
        [sys.executable, "-m", "proctor.bench.supervisor.owner"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, _MARK: mark},
    )
    watch = _Watch()
    try:
        assert owner.stdout is not None
        with owner.stdout:
            _await_line(owner.stdout.fileno())
        watch.add(processes.marked(_MARK, mark))
        time.sleep(delay)  # the random instant itself
        killed_at = time.monotonic()
        owner.kill()
        watch.await_all()
        while True:
            begun = time.monotonic()
            later = processes.marked(_MARK, mark)
            ended = time.monotonic()
            if not later and not processes.marked(_MARK, mark):
                break
            watch.add(later)
            watch.await_all()
        return ended - killed_at, ended - begun, watch.total
    finally:
        watch.close()
        owner.kill()
        owner.wait()
        _reap()


def _await_line(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_START_MS) or not os.read(descriptor, 64).startswith(b"ready"):
        raise RuntimeError("the owner program did not become ready; its message is on stderr")


class _Watch:
    """The processes seen so far, by pidfd; those that ended are closed."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._open: set[int] = set()
        self.total = 0

    def add(self, pids: list[int]) -> None:
        """Watch `pids`; those that are gone already need no watching."""
        for pid in pids:
            descriptor = processes.open_pidfd(pid)
            if descriptor is not None:
                self._open.add(descriptor)
                self._poll.register(descriptor, select.POLLIN)
                self.total += 1

    def await_all(self) -> None:
        """Wait until every watched process has ended. Raises RuntimeError when one lives on for 30 s."""
        while self._open:
            ended = self._poll.poll(_GONE_MS)
            if not ended:
                raise RuntimeError(f"{len(self._open)} process(es) outlived their owner by {_GONE_MS / 1000:g} s")
            for descriptor, _ in ended:
                self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._open.discard(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Give all descriptors back."""
        for descriptor in list(self._open):
            self._forget(descriptor)


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
