"""Makes owners to be killed: each is a fork of this warm process that opens a supervisor and keeps it busy.

A line ``MARK SECONDS`` on stdin starts an owner whose supervisor and children carry MARK in their environment, lets it
live for SECONDS, kills it with SIGKILL, and answers ``killed``.
"""

from __future__ import annotations

import os
import select
import signal
import sys

import trio

from handlers import blocking, hostile
from processes import MARK
from proctor_supervisor import SupervisorOptions, Task, open_supervisor


async def own() -> None:
    async with open_supervisor(SupervisorOptions(children=2)) as supervisor, trio.open_nursery() as nursery:

        async def keep_busy() -> None:
            while True:
                await supervisor.run(Task.call(blocking.echo, "x" * 300_000))

        nursery.start_soon(supervisor.run, Task.call(hostile.family))
        nursery.start_soon(keep_busy)


def main() -> None:
    for line in sys.stdin:
        mark, seconds = line.split()
        pid = os.fork()
        if pid == 0:
            os.environ[MARK] = mark
            trio.run(own)
        pidfd = os.pidfd_open(pid)
        ended = select.select([pidfd], [], [], float(seconds))[0]
        os.close(pidfd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print("ended by itself" if ended else "killed", flush=True)


if __name__ == "__main__":
    main()
