"""How a long-running command ends: signals, and the end of standard input."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import trio

_STDIN = 0
_READ = 4096


async def on_stop_request(
    first: Callable[[], None],
    second: Callable[[], None],
    *,
    until_eof: bool,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `first` at the first SIGTERM, SIGINT or end of input, and `second` at the next signal. Never returns."""
    asked = False

    def ask() -> None:
        nonlocal asked
        (second if asked else first)()
        asked = True

    async with trio.open_nursery() as nursery:
        if until_eof:
            nursery.start_soon(_watch_input, lambda: None if asked else ask())
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            task_status.started()
            async for _ in received:
                ask()


async def _watch_input(at_end: Callable[[], None]) -> None:
    os.set_blocking(_STDIN, False)
    while True:
        await trio.lowlevel.wait_readable(_STDIN)
        if not os.read(_STDIN, _READ):
            break
    at_end()
