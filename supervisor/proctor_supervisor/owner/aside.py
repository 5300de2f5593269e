"""Doing what takes long beside the event loop, and in it where the system has no thread left.

A process that may start no more threads is short of room, not broken: to be slow for a moment is better than to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

_T = TypeVar("_T")


async def run(function: Callable[[], _T]) -> _T:
    """Call `function` in a thread, or here where no thread can be started. Once begun it is waited for in any case."""
    begun = False

    def call() -> _T:
        nonlocal begun
        begun = True
        return function()

    try:
        return await trio.to_thread.run_sync(call)
    except RuntimeError:
        if begun:
            raise
    return function()
