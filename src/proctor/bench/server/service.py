"""The programs a probe needs, each a process of its own that ends with the probe: the server, and workers on it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from proctor.bench import processes

_END_SECONDS = 60.0
_ANNOUNCED = "listening on "


@dataclass(frozen=True, slots=True)
class Service:
    """A running server: where it listens, and its process."""

    url: str
    pid: int

    @property
    def memory(self) -> int:
        """Its resident memory now, in bytes."""
        return processes.memory_of(self.pid)["Rss"]


@contextmanager
def server() -> Iterator[Service]:
    """Run ``proctor server`` with an empty file of its own."""
    with tempfile.TemporaryDirectory(prefix="proctor-bench-server-") as folder:
        command = ["-m", "proctor", "server", "--port", "0", "--db", str(Path(folder, "bench.db")), "--until-eof"]
        with _program(command) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith(_ANNOUNCED):
                raise RuntimeError(f"the server did not come up: {line!r}; its message is on stderr")
            yield Service(line.removeprefix(_ANNOUNCED).strip(), process.pid)


@contextmanager
def own_worker(url: str, queue: str, isolation: str) -> Iterator[None]:
    """Run our worker, profile ``supervised``, with one child at a time."""
    settings = ["--server", url, "--queue", queue, "--children", "1", "--isolation", isolation]
    with _program(
        ["-m", "proctor", "worker", "proctor.bench.server.workload", *settings, "--until-eof", "--json"], silent=True
    ):
        yield


@contextmanager
def official_worker(url: str, queue: str) -> Iterator[None]:
    """Run the official SDK's worker."""
    with _program(["-m", "proctor.bench.server.official_worker", url, queue], silent=True):
        yield


@contextmanager
def _program(arguments: list[str], *, silent: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program until the block ends. Raises RuntimeError when it failed."""
    out = subprocess.DEVNULL if silent else subprocess.PIPE
    with subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stdout=out, text=True) as process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            if process.wait(_END_SECONDS) != 0:
                raise RuntimeError(f"{' '.join(arguments[:3])} ended with status {process.returncode}")
        finally:
            process.kill()
