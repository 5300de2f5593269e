"""An owner without standard streams, in surroundings that are odd otherwise; writes what came of it to a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from handlers import blocking
from proctor_supervisor import SupervisorOptions, Task, open_supervisor


async def main(late: bool) -> str:
    if late:  # so that the owner's sockets get the numbers of the streams
        os.closerange(0, 3)
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        spoken = await supervisor.run(Task.call(blocking.say, "out", "err"))
        return f"{type(spoken).__name__} {spoken.output.stdout}{spoken.output.stderr}"


if __name__ == "__main__":
    sys.path.append(Path("/nowhere"))  # type: ignore[arg-type]  # the import system skips what is no string
    found = trio.run(main, sys.argv[2] == "late")
    Path(sys.argv[1]).write_text(found)
