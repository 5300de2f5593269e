"""Probe, run as a bare script (``-I -S``): the least that any supervisor of fresh children can cost.

A loop of fork and wait in a process with nothing else in it; the child exits at once. One and two children in flight
are tried, and the better rate counts.
"""

from __future__ import annotations

import os
import sys
import time


def rate(seconds: float, in_flight: int) -> float:
    """Count children forked, ended and reaped per second."""
    flying = done = 0
    begun = time.perf_counter()
    until = begun + seconds
    while time.perf_counter() < until or flying:
        while flying < in_flight and time.perf_counter() < until:
            if os.fork() == 0:
                os._exit(0)
            flying += 1
        if flying:
            os.waitpid(-1, 0)
            flying -= 1
            done += 1
    return done / (time.perf_counter() - begun)


def main() -> None:
    """Arguments: seconds, file for the result."""
    seconds, file = float(sys.argv[1]), sys.argv[2]
    rates = [rate(seconds / 2, in_flight) for in_flight in (1, 2)]
    with open(file, "w") as out:
        out.write(f'{{"per_second": [{max(rates)!r}]}}')


if __name__ == "__main__":
    main()
