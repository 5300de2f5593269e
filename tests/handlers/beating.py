"""Handlers that beat fast, and say how long it took them."""

from __future__ import annotations

import os
import time

from proctor_supervisor import attempt


def beat_at_a_rate(count: int, per_second: float) -> list[float]:
    """Beat `count` times at a steady rate; give how long it took and how long the slowest beat took, in seconds."""
    running = attempt.current()
    assert running is not None
    start = time.monotonic()
    slowest = 0.0
    for number in range(count):
        before = time.monotonic()
        running.heartbeat(b"%d" % number)
        now = time.monotonic()
        slowest = max(slowest, now - before)
        while time.monotonic() - start < (number + 1) / per_second:
            pass
    return [time.monotonic() - start, slowest]


def beat_while_nobody_reads(count: int, size: int) -> list[float]:
    """Beat `count` times with `size` bytes, as fast as can be; the slowest beat in seconds comes last."""
    return beat_with(count, b"x" * size)


def beat_with(count: int, payload: bytes) -> list[float]:
    running = attempt.current()
    assert running is not None
    start, slowest = time.monotonic(), 0.0
    for _ in range(count):
        before = time.monotonic()
        running.heartbeat(payload)
        slowest = max(slowest, time.monotonic() - before)
    return [time.monotonic() - start, slowest]


def beat_too_large() -> str:
    running = attempt.current()
    assert running is not None
    try:
        running.heartbeat(b"x" * 5000)
    except attempt.HeartbeatTooLarge as exc:
        running.heartbeat(b"small")
        return str(exc)
    return "taken"


def beat_beside_a_large_result() -> str:
    """Have the heartbeat travel beside a result that lies in shared memory, so that both arrive in one piece."""
    running = attempt.current()
    assert running is not None
    os.close(4)  # the heartbeat pipe
    running.heartbeat(b"late")
    return "x" * 400_000
