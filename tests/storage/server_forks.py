"""A program that forks servers quickly: it imports everything once, then starts one server for each line it reads.

Each line of input is a JSON object of options; each line of output is one with the pid and the URL of a listening
server, or with the refusal. A line ``{"reap": pid}`` waits for that server's end. Ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio

from proctor.errors import StorageError
from proctor.server import ServerOptions, serve


async def _run(options: ServerOptions, out: int) -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, options)
        os.write(out, json.dumps({"pid": os.getpid(), "url": url}).encode() + b"\n")


def _serve(asked: dict[str, Any], out: int) -> None:
    try:
        trio.run(_run, ServerOptions(database=Path(asked.pop("database")), **asked), out)
    except* StorageError as group:
        os.write(out, json.dumps({"refused": str(group.exceptions[0])}).encode() + b"\n")


def main() -> None:
    """Serve the lines."""
    out = os.dup(1)
    os.dup2(2, 1)  # where the servers log
    for line in sys.stdin:
        asked = json.loads(line)
        if "reap" in asked:
            os.waitpid(asked["reap"], 0)
            os.write(out, b"{}\n")
        elif os.fork() == 0:
            try:
                _serve(asked, out)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
