"""Running probes round by round, each in a fresh interpreter, and leaving no process behind.

Owns order, time limits and the sweep. The order of the probes is turned round in every second round, so that a
machine that grows slower steadily favours nobody.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import trio

from proctor.bench import processes
from proctor.bench.figures import Reading
from proctor.bench.report import Trouble

MARK = "PROCTOR_BENCH_MARK"
_EXIT_SECONDS = 2.0
_ERROR_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One thing to measure.

    Attributes:
        name: its name in figures and messages.
        target: ``module:function``, or the path of a script that is run with ``-I -S`` instead.
        parameters: keywords of the function; a script gets their values as arguments, in order.
        needs: the package that must be importable; without it the probe is left out.
        seeded: pass the keyword ``seed`` as well, a different one in each round.
        patience: seconds after which it counts as broken.
    """

    name: str
    target: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    needs: str | None = None
    seeded: bool = False
    patience: float = 120.0

    @property
    def is_script(self) -> bool:
        """Whether it runs as a bare script."""
        return self.target.endswith(".py")


@dataclass(slots=True)
class Taken:
    """What all rounds gave: the readings by probe, and what went wrong."""

    readings: dict[str, list[Reading | None]]
    troubles: list[Trouble]
    left_behind: dict[str, list[str]]


class _Broken(Exception):
    """A probe gave no reading; the text says why."""


async def take(probes: Sequence[Probe], *, rounds: int, seed: int, show: Callable[[str], None]) -> Taken:
    """Run every probe once in each of `rounds` rounds; `show` is told what runs. Broken probes do not end the run."""
    taken = Taken({probe.name: [None] * rounds for probe in probes}, [], {})
    able = []
    for probe in probes:
        if probe.needs is not None and importlib.util.find_spec(probe.needs) is None:
            taken.troubles.append(
                Trouble(probe=probe.name, round=0, reason=f"package {probe.needs} is not installed", broken=False)
            )
        else:
            able.append(probe)
    for number in range(rounds):
        for probe in able if number % 2 == 0 else reversed(able):
            show(f"round {number + 1}/{rounds}: {probe.name}")
            try:
                async with _swept() as left:
                    taken.readings[probe.name][number] = await _run(probe, mark=left.mark, seed=seed + number)
            except _Broken as exc:
                taken.troubles.append(Trouble(probe=probe.name, round=number + 1, reason=str(exc), broken=True))
            if left.names:
                taken.left_behind.setdefault(probe.name, []).extend(left.names)
    return taken


async def _run(probe: Probe, *, mark: str, seed: int) -> Reading:
    with tempfile.TemporaryDirectory(prefix="proctor-bench-") as folder:
        out, errors = Path(folder, "series.json"), Path(folder, "stderr")
        parameters = {**probe.parameters, **({"seed": seed} if probe.seeded else {})}
        if probe.is_script:
            command = [sys.executable, "-I", "-S", probe.target, *map(str, parameters.values()), str(out)]
        else:
            command = [sys.executable, "-m", "proctor.bench.probe", probe.target, json.dumps(parameters), str(out)]
        # Files, not pipes: a process that a peer leaves behind would hold a pipe open and this program with it.
        with _writable(errors) as sink, trio.move_on_after(probe.patience) as patience:
            finished = await trio.run_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                check=False,
                env={**os.environ, MARK: mark},
                deliver_cancel=_kill,
            )
        if patience.cancelled_caught:
            raise _Broken(f"gave nothing within {probe.patience:g} s")
        if finished.returncode != 0:
            raise _Broken(f"exit status {finished.returncode}: {_end_of(errors)}")
        return _read_series(out)


async def _kill(process: trio.Process) -> None:
    process.kill()


def _writable(file: Path) -> IO[bytes]:
    return file.open("wb")


def _read_series(file: Path) -> Reading:
    series: dict[str, list[float]] = json.loads(file.read_text())
    return series


def _end_of(errors: Path) -> str:
    lines = errors.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-_ERROR_LINES:]) or "no message"


@dataclass(slots=True)
class _Left:
    mark: str
    names: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def _swept() -> AsyncIterator[_Left]:
    """Give a mark; on leaving, no process that carries it lives, and those that had to be killed are named."""
    left = _Left(uuid.uuid4().hex)
    try:
        yield left
    finally:
        with trio.CancelScope(shield=True):
            left.names += await _sweep(left.mark)


async def _sweep(mark: str) -> list[str]:
    """Wait a moment for the processes that carry `mark`, then kill what is left of them; give their command lines."""
    with trio.move_on_after(_EXIT_SECONDS):
        while pids := processes.marked(MARK, mark):
            await _ended(pids)
    killed = []
    while pids := processes.marked(MARK, mark):
        for pid in pids:
            killed.append(processes.name_of(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await _ended(pids)
    return [name for name in killed if name]


async def _ended(pids: Sequence[int]) -> None:
    """Wait until every process of `pids` has ended."""
    with _pidfds(pids) as descriptors:
        for descriptor in descriptors:
            await trio.lowlevel.wait_readable(descriptor)


@contextlib.contextmanager
def _pidfds(pids: Sequence[int]) -> Iterator[list[int]]:
    opened = [descriptor for pid in pids if (descriptor := processes.open_pidfd(pid)) is not None]
    try:
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)
