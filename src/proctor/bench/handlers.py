"""What the children of a benchmark run, and the codec that hands bytes through. Standard library only.

Also run by the peers, so that everybody calls the same functions.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from proctor_supervisor import attempt

_FOR_AGES = 64  # 2 to the power of this many steps of backtracking


def noop() -> None:
    """Do nothing, and give nothing."""


def echo(data: bytes) -> bytes:
    """Give the argument back."""
    return data


def backtrack() -> None:
    """Hold the interpreter lock in one C call that does not end: nothing in this process can interrupt it."""
    re.match(r"(a+)+$", "a" * _FOR_AGES + "b")


def raise_family_and_backtrack() -> None:
    """Start a plain and a daemonised process, tell the owner, and then hold the interpreter lock."""
    raise_family()
    current = attempt.current()
    assert current is not None
    current.heartbeat(b"busy")
    backtrack()


def raise_family() -> None:
    """Start a plain process and a daemonised one, and return while both live."""
    if os.fork() == 0:
        _wait_forever()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _wait_forever()
        os._exit(0)


def _wait_forever() -> None:
    while True:
        signal.pause()


class RawCodec:
    """One argument of bytes in, bytes out: what is measured is the transport."""

    def decode_arguments(self, payload: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Give the payload as the only argument."""
        return (payload,), {}

    def encode_result(self, value: object) -> bytes:
        """Give the bytes themselves. Raises TypeError for anything else."""
        if not isinstance(value, bytes):
            raise TypeError(f"this handler returns bytes, not {type(value).__name__}")
        return value


RAW = RawCodec()
