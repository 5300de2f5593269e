"""Running an ``async def`` handler under Trio; the only module of the child that imports it, and only on need.

A stop reaches such a handler as Trio cancellation: the raise step's signal cancels the scope round the handler, since
an exception raised inside Trio's own loop would break it.
"""

from __future__ import annotations

import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any

import trio

from proctor_supervisor import attempt
from proctor_supervisor.platform import linux


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run `coroutine` to its end. Raises AttemptCancelled when a stop cancelled it."""
    return trio.run(_supervised, coroutine)


async def _supervised(coroutine: Coroutine[Any, Any, Any]) -> Any:
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def on_raise(_signal: int, _frame: FrameType | None) -> None:
            token.run_sync_soon(scope.cancel)  # safe in a signal handler by Trio's own promise

        before = signal.signal(linux.RAISE_SIGNAL, on_raise)
        try:
            return await coroutine
        finally:
            signal.signal(linux.RAISE_SIGNAL, before)
    current = attempt.current()
    if current is not None:
        current.raise_if_stopped()
    raise RuntimeError("the handler's cancel scope was cancelled, but no stop was posted")
