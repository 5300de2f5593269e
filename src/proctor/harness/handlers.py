"""The handler that kill tests use when they are given none: it blocks, beats, and starts processes of every kind."""

from __future__ import annotations

import contextlib
import subprocess
import time

from proctor import activity


def family(seconds: float = 0.3) -> str:
    """Start a process in the same group and one in a session of its own, then block for `seconds`."""
    with (
        subprocess.Popen(["/bin/sh", "-c", "sleep 60"]) as near,
        subprocess.Popen(["/bin/sh", "-c", "sleep 60"], start_new_session=True) as far,
    ):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(activity.Cancelled):
                activity.heartbeat({"left": until - time.monotonic()})
            time.sleep(min(0.05, seconds))
        near.kill()
        far.kill()
    return "done"
