"""Probes: how others run a function in another process. Each is called the way its own documentation has it.

Peers for Trio are awaited under Trio; pools of futures are called blocking, which is the fastest they can be. The
imports are inside the functions: a peer's worker processes import this program's modules again, and pay for nothing
but their own library.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from proctor.bench.handlers import echo, noop

_BATCH = 50
_WORKERS = 2


def anyio_latency(calls: int, warmup: int) -> dict[str, list[float]]:
    """Time ``anyio.to_process.run_sync`` under Trio."""
    import anyio.to_process
    import trio

    return {"round_trip": trio.run(_time_awaits, lambda: anyio.to_process.run_sync(noop), calls, warmup)}


def anyio_rate(seconds: float) -> dict[str, list[float]]:
    """Count calls of ``anyio.to_process.run_sync`` per second, two at a time."""
    import anyio.to_process
    import trio

    return {"per_second": [trio.run(_count_awaits, lambda: anyio.to_process.run_sync(noop), seconds)]}


def trio_parallel_latency(calls: int, warmup: int) -> dict[str, list[float]]:
    """Time ``trio_parallel.run_sync``."""
    import trio
    import trio_parallel  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return {"round_trip": trio.run(_time_awaits, lambda: trio_parallel.run_sync(noop), calls, warmup)}


def trio_parallel_rate(seconds: float) -> dict[str, list[float]]:
    """Count calls of ``trio_parallel.run_sync`` per second, two at a time."""
    import trio
    import trio_parallel

    return {"per_second": [trio.run(_count_awaits, lambda: trio_parallel.run_sync(noop), seconds)]}


async def _time_awaits(call: Callable[[], Awaitable[object]], calls: int, warmup: int) -> list[float]:
    samples = []
    for number in range(warmup + calls):
        begun = time.perf_counter()
        await call()
        if number >= warmup:
            samples.append(time.perf_counter() - begun)
    return samples


async def _count_awaits(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    import trio

    count = 0

    async def warm_up() -> None:
        await call()

    async def keep_busy() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await call()
            count += 1

    async with trio.open_nursery() as nursery:
        for _ in range(_WORKERS):
            nursery.start_soon(warm_up)
    begun = time.perf_counter()
    until = begun + seconds
    async with trio.open_nursery() as nursery:
        for _ in range(_WORKERS):
            nursery.start_soon(keep_busy)
    return count / (time.perf_counter() - begun)


def executor_latency(calls: int, warmup: int) -> dict[str, list[float]]:
    """Time ProcessPoolExecutor with the start method forkserver."""
    with _executor() as pool:
        return {"round_trip": _time_futures(pool, calls, warmup)}


def executor_rate(seconds: float) -> dict[str, list[float]]:
    """Count calls per second of ProcessPoolExecutor with the start method forkserver."""
    with _executor() as pool:
        return {"per_second": [_count_futures(pool, seconds)]}


def executor_payload(size: int, calls: int) -> dict[str, list[float]]:
    """Time calls of ProcessPoolExecutor whose argument and result are `size` bytes each."""
    import random

    data = random.Random(size).randbytes(size)
    samples = []
    with _executor() as pool:
        for number in range(calls + 1):
            begun = time.perf_counter()
            result = pool.submit(echo, data).result()
            ended = time.perf_counter()
            if result != data:
                raise RuntimeError("the result is not the argument")
            del result
            if number:
                samples.append(ended - begun)
    return {"round_trip": samples}


def _executor() -> Any:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(_WORKERS, mp_context=multiprocessing.get_context("forkserver"))


def pebble_latency(calls: int, warmup: int) -> dict[str, list[float]]:
    """Time pebble's ProcessPool with its default start method."""
    with _pebble() as pool:
        return {"round_trip": _time_futures(pool, calls, warmup)}


def pebble_rate(seconds: float) -> dict[str, list[float]]:
    """Count calls per second of pebble's ProcessPool."""
    with _pebble() as pool:
        return {"per_second": [_count_futures(pool, seconds)]}


class _Pebble:
    """pebble's pool behind the interface of an executor."""

    def __init__(self) -> None:
        import pebble  # type: ignore[import-not-found,unused-ignore]

        self._pool: Any = pebble.ProcessPool(max_workers=_WORKERS)

    def __enter__(self) -> _Pebble:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._pool.join()

    def submit(self, function: Callable[[], object]) -> Any:
        return self._pool.schedule(function)


def _pebble() -> _Pebble:
    return _Pebble()


def loky_latency(calls: int, warmup: int) -> dict[str, list[float]]:
    """Time loky's executor."""
    import loky  # type: ignore[import-untyped,import-not-found,unused-ignore]

    with loky.ProcessPoolExecutor(_WORKERS) as pool:
        return {"round_trip": _time_futures(pool, calls, warmup)}


def loky_rate(seconds: float) -> dict[str, list[float]]:
    """Count calls per second of loky's executor."""
    import loky

    with loky.ProcessPoolExecutor(_WORKERS) as pool:
        return {"per_second": [_count_futures(pool, seconds)]}


def _time_futures(pool: Any, calls: int, warmup: int) -> list[float]:
    samples = []
    for number in range(warmup + calls):
        begun = time.perf_counter()
        pool.submit(noop).result()
        if number >= warmup:
            samples.append(time.perf_counter() - begun)
    return samples


def _count_futures(pool: Any, seconds: float) -> float:
    """Keep a queue of calls before the workers: these pools hand on the next one without asking the caller."""
    for future in [pool.submit(noop) for _ in range(_BATCH)]:
        future.result()
    count = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for future in [pool.submit(noop) for _ in range(_BATCH)]:
            future.result()
        count += _BATCH
    return count / (time.perf_counter() - begun)


def durable_workflow_latency(calls: int) -> dict[str, list[float]]:
    """Time the per-attempt process supervisor of the official SDK, from construction to outcome."""
    import asyncio

    return {"round_trip": asyncio.run(_time_callbacks(calls))}


async def _time_callbacks(calls: int) -> list[float]:
    from durable_workflow._activity_process import CallbackInvocation, SupervisedCallback
    from durable_workflow.activity import ActivityInfo

    async def ignore(_: dict[str, Any] | None) -> None:
        return

    info = ActivityInfo(
        task_id="1", activity_type="noop", activity_attempt_id="1", attempt_number=1, task_queue="q", worker_id="w"
    )
    samples = []
    for _ in range(calls):
        begun = time.perf_counter()
        callback = SupervisedCallback(CallbackInvocation(handler=noop, args=(), info=info, task={}))
        await callback.start()
        outcome = await callback.result(ignore)
        samples.append(time.perf_counter() - begun)
        if outcome.failure is not None:
            raise RuntimeError(f"the attempt failed: {outcome.failure}")
    return samples
