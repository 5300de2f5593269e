"""A program that owns a supervisor; tests kill or freeze it. Prints a line for each attempt that runs."""

from __future__ import annotations

import sys

import trio

from handlers import hostile
from proctor_supervisor import Deadlines, SupervisorOptions, Task, open_supervisor


async def main(authority: float | None) -> None:
    async with open_supervisor(SupervisorOptions(children=3, standby=2)) as supervisor, trio.open_nursery() as nursery:

        async def run() -> None:
            until = None if authority is None else trio.current_time() + authority
            await supervisor.run(
                Task(handler=hostile.family, deadlines=Deadlines(authority=until)),
                on_heartbeat=lambda beat: print("running", beat.payload.decode(), flush=True),
            )

        for _ in range(2):
            nursery.start_soon(run)


if __name__ == "__main__":
    trio.run(main, float(sys.argv[1]) if len(sys.argv) > 1 else None)
