"""What this process says of itself to the server: identity and load, true at the moment of asking (worker.md §1.1)."""

from __future__ import annotations

import platform
import time
from datetime import UTC, datetime
from typing import Any

import psutil

from proctor.core.instants import format_instant

_MAX_HOST = 255


def cpu_percent(*, busy: float, span: float) -> float:
    """Give processor seconds over wall seconds as a percentage; a process of one busy thread is 100."""
    return round(min(100.0, max(0.0, 100.0 * busy / max(span, 0.001))), 2)


class ProcessFacts:
    """Measures the process it is made in. Costs some microseconds per call, so it may be asked in the loop."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._born = self._process.create_time()
        self._identity = {
            "process_id": self._process.pid,
            "host": platform.node()[:_MAX_HOST] or "unknown",
            "process_started_at": format_instant(datetime.fromtimestamp(self._born, UTC)),
        }
        self._sampled_at = self._born
        self._sampled_cpu = 0.0

    def now(self) -> dict[str, Any]:
        """Give identity, uptime in whole seconds, resident bytes, and the processor share since the last call."""
        now = time.time()
        with self._process.oneshot():
            times = self._process.cpu_times()
            memory = self._process.memory_info().rss
        used = times.user + times.system
        share = cpu_percent(busy=used - self._sampled_cpu, span=now - self._sampled_at)
        self._sampled_at, self._sampled_cpu = now, used
        return {
            **self._identity,
            "process_uptime_seconds": max(0, int(now - self._born)),
            "memory_bytes": memory,
            "cpu_percent": share,
        }
