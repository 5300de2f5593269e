"""Where a benchmark ran: what a reader needs in order to compare two reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def describe(distributions: Iterable[str]) -> dict[str, Any]:
    """Give interpreter, system, cores, load, and the versions of those `distributions` that are installed."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 2),
    }
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
