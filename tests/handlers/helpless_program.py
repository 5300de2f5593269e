"""An owner whose supervisor process may not kill a process of another user, as after ``sudo`` in a handler.

Prints what came of it, one line each. Only root can run it: it takes the right to kill off its future children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess

import trio

from handlers import blocking
from proctor_supervisor import Heartbeat, StopPolicy, StopUnconfirmed, SupervisorOptions, Task, attempt, open_supervisor

_PR_CAPBSET_DROP = 24
_CAP_KILL = 5
_NOBODY = 65534


def start_another_users() -> None:
    running = attempt.current()
    assert running is not None
    other = subprocess.Popen(["sleep", "600"], user=_NOBODY)
    running.heartbeat(b"%d" % other.pid)


async def main() -> None:
    others: list[int] = []
    stop = StopPolicy(kill_budget=0.2)
    async with open_supervisor(SupervisorOptions(children=2, stop=stop)) as supervisor:
        zygote = supervisor.pid

        def note(beat: Heartbeat) -> None:
            others.append(int(beat.payload))

        try:
            await supervisor.run(Task(handler=start_another_users), on_heartbeat=note)
        except StopUnconfirmed:
            print("unconfirmed", supervisor.running, flush=True)
        neighbour = await supervisor.run(Task.call(blocking.pid))
        print(type(neighbour).__name__, supervisor.pid == zygote, flush=True)
        os.kill(others[0], signal.SIGKILL)
        while supervisor.running:
            await trio.lowlevel.checkpoint()
        print("proven", flush=True)


if __name__ == "__main__":
    if ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_KILL, 0, 0, 0) != 0:
        raise SystemExit("this needs root")
    trio.run(main)
