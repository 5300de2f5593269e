"""A program that owns a supervisor and is killed by `deaths`. Prints ``ready`` once its attempts run.

One attempt holds the interpreter lock beside the processes it started; the other slot goes through short attempts
that start processes, too, so that a random instant falls into forking, dispatching, sweeping and reaping alike.
"""

from __future__ import annotations

import trio

from proctor_supervisor import SupervisorOptions, Task, open_supervisor

_HANDLERS = "proctor.bench.handlers"


async def main() -> None:
    """Run attempts until killed."""
    options = SupervisorOptions(children=2, standby=1, preload=[_HANDLERS])
    async with open_supervisor(options) as supervisor, trio.open_nursery() as nursery:
        busy = trio.Event()

        async def hold() -> None:
            task = Task(handler=f"{_HANDLERS}:raise_family_and_backtrack")
            await supervisor.run(task, on_heartbeat=lambda _: busy.set())

        nursery.start_soon(hold)
        await busy.wait()
        await supervisor.run(Task(handler=f"{_HANDLERS}:raise_family"))
        print("ready", flush=True)
        while True:
            await supervisor.run(Task(handler=f"{_HANDLERS}:raise_family"))


if __name__ == "__main__":
    trio.run(main)
