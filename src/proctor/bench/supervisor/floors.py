"""Probes: the least that any supervisor of warm children can cost, a raw socketpair with an echoing process behind it.

Same style as the owner has it: a non-blocking send, a wait in Trio, a receive.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import NoReturn

import trio

_MESSAGE = b"x" * 128  # about the size of the task frame of a call without arguments
_RECEIVE = 65536


def latency(calls: int, warmup: int, pause: float = 0.0) -> dict[str, list[float]]:
    """Time `calls` round trips one after the other, `pause` seconds apart."""
    with _echoes(1) as (echo,):
        return {"round_trip": trio.run(_time_round_trips, echo, calls, warmup, pause)}


async def _time_round_trips(echo: socket.socket, calls: int, warmup: int, pause: float) -> list[float]:
    samples = []
    for number in range(warmup + calls):
        if pause:
            await trio.sleep(pause)
        begun = time.perf_counter()
        await _exchange(echo)
        if number >= warmup:
            samples.append(time.perf_counter() - begun)
    return samples


def rate(seconds: float, children: int) -> dict[str, list[float]]:
    """Count round trips per second with one task for each of `children` processes."""
    with _echoes(children) as echoes:
        return {"per_second": [trio.run(_count_round_trips, echoes, seconds)]}


async def _count_round_trips(echoes: list[socket.socket], seconds: float) -> float:
    count = 0

    async def keep_busy(echo: socket.socket) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await _exchange(echo)
            count += 1

    for echo in echoes:
        await _exchange(echo)
    begun = time.perf_counter()
    until = begun + seconds
    async with trio.open_nursery() as nursery:
        for echo in echoes:
            nursery.start_soon(keep_busy, echo)
    return count / (time.perf_counter() - begun)


async def _exchange(echo: socket.socket) -> None:
    echo.send(_MESSAGE)
    missing = len(_MESSAGE)
    while missing:
        await trio.lowlevel.wait_readable(echo)
        missing -= len(echo.recv(_RECEIVE))


def fork_rate(seconds: float) -> dict[str, list[float]]:
    """Count turns of a loop of ``os.fork`` and ``os.waitpid`` per second, in this process as it is: with Trio."""
    count = 0
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        count += 1
    return {"per_second": [count / (time.perf_counter() - begun)]}


@contextlib.contextmanager
def _echoes(number: int) -> Iterator[list[socket.socket]]:
    """Fork echoing processes, before Trio runs; they end when their sockets are closed, and are reaped."""
    opened: list[socket.socket] = []
    pids: list[int] = []
    try:
        for _ in range(number):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for end in (ours, *opened):
                    end.close()
                _echo(theirs)
            theirs.close()
            ours.setblocking(False)
            opened.append(ours)
            pids.append(pid)
        yield opened
    finally:
        for end in opened:
            end.close()
        for pid in pids:
            os.waitpid(pid, 0)


def _echo(end: socket.socket) -> NoReturn:
    try:
        while data := end.recv(_RECEIVE):
            end.sendall(data)
    finally:
        os._exit(0)
