"""A program that owns a supervisor; tests kill or freeze it. Prints a line for each attempt that runs."""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import trio

from handlers import hostile
from proctor_supervisor import Deadlines, SupervisorOptions, Task, open_supervisor


def _outlive() -> None:
    time.sleep(600)
    os._exit(0)


async def main(authority: float | None, *, then_fork: bool) -> None:
    async with open_supervisor(SupervisorOptions(children=3, standby=2)) as supervisor, trio.open_nursery() as nursery:

        async def run() -> None:
            until = None if authority is None else trio.current_time() + authority
            await supervisor.run(
                Task(handler=hostile.family, deadlines=Deadlines(authority=until)),
                on_heartbeat=lambda beat: print("running", beat.payload.decode(), flush=True),
            )

        for _ in range(2):
            nursery.start_soon(run)
        if then_fork and os.fork() == 0:  # a copy that holds whatever this process holds
            _outlive()


if __name__ == "__main__":
    fork = "fork" in sys.argv[1:]
    seconds = [float(text) for text in sys.argv[1:] if text != "fork"]
    trio.run(partial(main, seconds[0] if seconds else None, then_fork=fork))
