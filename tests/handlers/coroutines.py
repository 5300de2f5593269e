"""Handlers that are ``async def``; apart from the others, since importing Trio costs a child most of its start."""

from __future__ import annotations

from pathlib import Path

import trio

from handlers.blocking import started


async def add_async(left: int, right: int) -> int:
    await trio.lowlevel.checkpoint()
    return left + right


async def sleep_async(path: str) -> None:
    try:
        started(path)
        await trio.sleep_forever()
    finally:
        Path(path).write_text("cleaned up")
