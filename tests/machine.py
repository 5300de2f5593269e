"""Sharing the machine between test processes: most tests run beside each other, some need it for themselves.

A peer that gives its own processes a fixed time to start keeps it only on a machine that is not busy; to stretch that
time would be to test another peer. Folders are locked, not files: nothing is left behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TESTS = Path(__file__).parent


class _Machine:
    def __init__(self) -> None:
        # Whoever wants the machine for himself waits at the gate, and nobody passes him there.
        self._gate = os.open(_TESTS, os.O_RDONLY | os.O_CLOEXEC)
        self._place = os.open(_TESTS / "portable", os.O_RDONLY | os.O_CLOEXEC)

    def enter(self, how: int) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._place, how)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._place, fcntl.LOCK_UN)


_MACHINE = _Machine()


@contextmanager
def beside_others() -> Iterator[None]:
    """Run a test while nobody has the machine for himself."""
    _MACHINE.enter(fcntl.LOCK_SH)
    try:
        yield
    finally:
        _MACHINE.leave()


@contextmanager
def alone() -> Iterator[None]:
    """Wait until the tests of all other processes stand between two tests, and keep them there; inside of a test."""
    _MACHINE.leave()  # two that wait for each other's end would wait for ever
    _MACHINE.enter(fcntl.LOCK_EX)
    try:
        yield
    finally:
        _MACHINE.leave()
        _MACHINE.enter(fcntl.LOCK_SH)
