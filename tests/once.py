"""Something costly that several test processes of one run need: made by the first, read by the others."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

import pytest


def once_for_all(factory: pytest.TempPathFactory, name: str, make: Callable[[], str]) -> str:
    """Give what `make` gave in whichever process came first."""
    base = factory.getbasetemp()
    # The processes of one parallel run share the parent folder; a run in one process has a folder of its own.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept = shared / f"{name}.kept"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(make())
    return kept.read_text()
