"""Handlers that use what ordinary programs use; each returns what shows that it worked."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from typing import Any


def _square(value: int) -> int:
    return value * value


def multiprocessing_pool(method: str) -> list[int]:
    context: Any = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        return list(pool.map(_square, range(5)))


def process_pool_executor() -> list[int]:
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return list(pool.map(_square, range(5)))


def thread_pool_executor() -> list[int]:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(_square, range(5)))


def asyncio_run() -> list[int]:
    async def one(value: int) -> int:
        await asyncio.sleep(0)
        return value * value

    async def main() -> list[int]:
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
        return list(await asyncio.gather(*(one(value) for value in range(5))))

    return asyncio.run(main())


def trio_run() -> list[int]:
    import trio

    async def main() -> list[int]:
        found = []

        async def one(value: int) -> None:
            await trio.sleep(0.001 * value)
            found.append(value * value)

        async with trio.open_nursery() as nursery:
            for value in range(5):
                nursery.start_soon(one, value)
        return sorted(found)

    return trio.run(main)


def own_signal_handler() -> list[str]:
    seen: list[str] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(signal.Signals(number).name))
    signal.signal(signal.SIGALRM, lambda number, _frame: seen.append(signal.Signals(number).name))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    signal.pause()
    return seen


def log() -> None:
    logging.getLogger("a.library").warning("by the last resort")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("a.library").info("by a handler of its own")


def ask() -> str:
    try:
        return input("your name? ")
    except EOFError:
        return "nobody there"


def pipeline() -> list[Any]:
    done = subprocess.run(["/bin/sh", "-c", "cat; echo out; echo err >&2; exit 3"], capture_output=True, check=False)
    return [done.returncode, done.stdout.decode(), done.stderr.decode()]


def fork_and_wait() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_the_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def leave_blocking_exit_hook() -> str:
    atexit.register(time.sleep, 600)
    return "returned"


def leave_blocking_finalizer() -> str:
    global _HELD
    _HELD = _Held()
    weakref.finalize(_HELD, time.sleep, 600)
    return "returned"


class _Held:
    def __del__(self) -> None:
        time.sleep(600)


_HELD: _Held | None = None


def leave_busy_threads() -> str:
    """Leave threads that hold the interpreter lock as much as they can, and one that cannot be joined."""

    def spin() -> None:
        while True:
            pass

    for target in (spin, spin, threading.Event().wait):
        threading.Thread(target=target, daemon=False).start()
    return "returned"


def leave_executor() -> str:
    """The module's exit hook would join its worker."""
    global _EXECUTOR
    _EXECUTOR = concurrent.futures.ThreadPoolExecutor(1)
    _EXECUTOR.submit(time.sleep, 600)
    return "returned"


_EXECUTOR: concurrent.futures.ThreadPoolExecutor | None = None


class Callable_:
    """An instance that can be called."""

    def __init__(self, add: int) -> None:
        self.add = add

    def __call__(self, value: int) -> int:
        return value + self.add

    @classmethod
    def of_the_class(cls, value: int) -> str:
        return f"{cls.__name__} {value}"

    @staticmethod
    def static(value: int) -> int:
        return value * 2


class AsyncCallable:
    async def __call__(self, value: int) -> int:
        import trio

        await trio.lowlevel.checkpoint()
        return value + 1


def make_closure(add: int) -> Any:
    def closure(value: int) -> int:
        return value + add

    return closure
