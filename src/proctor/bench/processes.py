"""Finding processes by a mark in their environment, and reading what the kernel says of them.

A mark is inherited by everything a process starts, however it detaches itself, so a search for it misses nothing. The
one gap is the instant of an exec, in which a process shows no environment; who needs certainty looks twice.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def marked(variable: str, value: str) -> list[int]:
    """Give every live process whose environment holds `variable` with `value`; zombies show no environment."""
    needle = f"{variable}={value}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def open_pidfd(pid: int) -> int | None:
    """Give a descriptor for the process `pid`, or None when it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def name_of(pid: int) -> str:
    """Give the start of the command line of `pid`, or an empty string when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:120]
    except OSError:
        return ""


def children_of(pid: int) -> list[int]:
    """Give the direct children of the single-threaded process `pid`."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_of(pid: int) -> dict[str, int]:
    """Give the fields of smaps_rollup of `pid` in bytes, such as ``Rss`` and ``Private_Dirty``."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024
    return found


def sockets_of(pid: int) -> int:
    """Give how many sockets `pid` has open."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return count
