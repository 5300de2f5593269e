"""The demo's handlers: an honest one, one that C code holds, one that resists, and one that fails once.

Each is an ordinary blocking function. None of them helps its own stop.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any, NoReturn

from proctor import activity
from proctor_supervisor.options import StopPolicy

CATASTROPHE = r"^(.+.?)+\x00$"
"""On any line without a zero character this tries every way to cut the line up before it gives up."""


@activity.defn(name="demo.digest")
def digest(paths: list[str]) -> dict[str, Any]:
    """Digest and compress each file; a heartbeat after each tells how far it is, and the next attempt goes on there."""
    done: dict[str, Any] = activity.last_heartbeat_details() or {"files": 0, "bytes": 0, "compressed": 0, "sha256": ""}
    for path in paths[done["files"] :]:
        content = Path(path).read_bytes()
        done = {
            "files": done["files"] + 1,
            "bytes": done["bytes"] + len(content),
            "compressed": done["compressed"] + len(zlib.compress(content, 6)),
            "sha256": hashlib.sha256(done["sha256"].encode() + content).hexdigest(),
        }
        activity.heartbeat(done)
    return done


# The matching loop never runs Python code between two signals, so raising in it would be no help.
@activity.defn(name="demo.match", stop=StopPolicy(notice_grace=0.1, raise_grace=0))
def match(path: str, line_number: int, line: str) -> dict[str, Any]:
    """Match a line the dangerous way; if an earlier attempt died of it, take the safe way."""
    earlier = activity.last_heartbeat_details()
    where = {"path": path, "line": line_number}
    if earlier is not None and earlier.get("way") == "backtracking":
        return {**where, "way": "safe", "matches": line.endswith("\x00")}
    activity.heartbeat({**where, "way": "backtracking"})
    found = re.match(CATASTROPHE, line)
    return {**where, "way": "backtracking", "matches": found is not None}


@activity.defn(name="demo.stubborn")
def stubborn() -> NoReturn:
    """Ignore SIGTERM, swallow every exception, and start a process that does the same in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' TERM INT HUP; while :; do sleep 60; done"], start_new_session=True
    )
    with contextlib.suppress(activity.Cancelled):
        activity.heartbeat({"grandchild": grandchild.pid})
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001, S112 - this is the point: it resists
            continue


@activity.defn(name="demo.flaky")
def flaky() -> str:
    """Fail the first time, as networks do."""
    if activity.info().attempt_number == 1:
        raise ConnectionError("the first connection was reset")
    return "succeeded on the second attempt"
