"""Handlers of the ordinary profile's tests: plain ones for children, ``async def`` ones for the worker's own loop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel

from proctor import activity


@activity.defn(name="flaky")
def flaky(mark: str) -> dict[str, Any]:
    """Fail once, then say what the first attempt left behind."""
    seen = activity.last_heartbeat_details()
    activity.heartbeat({"attempt": activity.info().attempt_number})
    if activity.info().attempt_number == 1:
        raise OSError("no disk yet")
    Path(mark).write_text("done")
    return {"attempt": activity.info().attempt_number, "seen": seen}


@activity.defn(name="hang")
def hang(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(3600)


@activity.defn(name="inline")
async def inline(value: Any) -> dict[str, Any]:
    activity.heartbeat({"at": "start"})
    await trio.lowlevel.checkpoint()
    return {"value": value, "pid": os.getpid(), "attempt": activity.info().attempt_number}


@activity.defn(name="inline_hang")
async def inline_hang(mark: str) -> None:
    try:
        await trio.sleep_forever()
    finally:
        Path(mark).write_text("cleaned up")


@activity.defn(name="inline_break")
async def inline_break() -> None:
    raise ValueError("no such page")


ALL: list[Any] = [flaky, hang, inline, inline_hang, inline_break]
