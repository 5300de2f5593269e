"""An owner that runs out of descriptors and gets them back; prints what each attempt came to."""

from __future__ import annotations

import os
import resource

import trio

from handlers import blocking
from proctor_supervisor import Completed, Failed, SupervisorOptions, Task, open_supervisor


async def main() -> None:
    async with open_supervisor(SupervisorOptions(children=2)) as supervisor:

        async def attempt() -> None:
            outcome = await supervisor.run(Task.call(blocking.echo, "x" * 400_000))
            print(type(outcome).__name__, outcome.kind if isinstance(outcome, Failed) else "", flush=True)
            assert isinstance(outcome, Completed | Failed)

        await attempt()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for _ in range(2):
            held = []
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            for _ in range(3):
                await attempt()
            print("released", flush=True)
            for descriptor in held:
                os.close(descriptor)
            await attempt()


if __name__ == "__main__":
    trio.run(main)
