"""Something costly that several test processes of one run need: made by the first, read by the others."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import nullcontext

import pytest

import machine


def once_for_all(factory: pytest.TempPathFactory, name: str, make: Callable[[], str], *, alone: bool = False) -> str:
    """Give what `make` gave in whichever process came first; `alone` lets it have the machine for itself."""
    base = factory.getbasetemp()
    # The processes of one parallel run share the parent folder; a run in one process has a folder of its own.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept = shared / f"{name}.kept"
    if not kept.exists():
        # The machine first, then the lock: who waits for the lock must not be in the way of him who has it.
        with machine.alone() if alone else nullcontext(), (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                unfinished = kept.with_suffix(".unfinished")
                unfinished.write_text(make())
                unfinished.rename(kept)
    return kept.read_text()
