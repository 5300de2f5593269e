"""Activities for the integration tests: what children of a real worker run. Imports only what handlers may
import.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proctor import activity


@activity.defn(name="echo")
def echo(value: Any) -> Any:
    return value


@activity.defn(name="repeat")
def repeat(text: str, times: int) -> str:
    return text * times


@activity.defn(name="where")
def where() -> dict[str, Any]:
    info = activity.info()
    return {
        "pid": os.getpid(),
        "attempt": info.attempt_number,
        "token_seen": "DURABLE_WORKFLOW_AUTH_TOKEN" in os.environ,
        "loaded": sorted(name for name in ("trio", "httpx2", "structlog") if name in sys.modules),
    }


@activity.defn(name="block")
def block(mark: str) -> None:
    """Say who blocks, then never look at a stop again."""
    Path(mark).write_text(str(os.getpid()))
    while True:
        time.sleep(3600)


@activity.defn(name="stuck_at_first")
def stuck_at_first(mark: str) -> dict[str, Any]:
    """Block in the first attempt, tell in the second what the first left behind."""
    activity.heartbeat({"offset": activity.info().attempt_number})
    if activity.info().attempt_number == 1:
        block(mark)
    return {"attempt": activity.info().attempt_number, "seen": activity.last_heartbeat_details()}


@activity.defn(name="break")
def break_() -> None:
    raise ValueError("no such page")


@activity.defn(name="unencodable")
def unencodable() -> object:
    return {1, 2, 3}


@activity.defn(name="die")
def die() -> None:
    os._exit(7)


@activity.defn(name="beat_until_told")
def beat_until_told(mark: str) -> str:
    Path(mark).write_text(str(os.getpid()))
    while True:
        activity.heartbeat({"at": 1})
        time.sleep(0.02)


@activity.defn(name="nap")
def nap(seconds: float) -> None:
    """Take some time."""
    time.sleep(seconds)


@activity.defn(name="tell_and_wait")
def tell_and_wait(mark: str, seconds: float) -> int:
    """Say who works, work for a while, give the pid."""
    Path(mark).write_text(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()


ALL: list[Callable[..., Any]] = [
    echo,
    repeat,
    where,
    block,
    stuck_at_first,
    break_,
    unencodable,
    die,
    beat_until_told,
    nap,
    tell_and_wait,
]
