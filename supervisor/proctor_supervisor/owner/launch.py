"""Starting the supervisor process: which program, with which descriptors and which environment.

Owns what the process inherits of its owner. What is said to it once it runs is the subject of `link`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Container
from pathlib import Path

import trio

import proctor_supervisor
from proctor_supervisor.owner import orphans

_ENTRY = Path(proctor_supervisor.__file__).parent / "zygote" / "__main__.py"


async def start_process(theirs: socket.socket, mark: str, *, withhold: Container[str]) -> trio.Process:
    """Start it with `theirs` as its control socket, which is closed here, and `mark` in its environment.

    Environment variables named in `withhold` stay here. Raises OSError when the system has no room for it.
    """
    with _above_standard(theirs) as control:
        environment = {name: text for name, text in os.environ.items() if name not in withhold}
        environment[orphans.MARK] = mark
        environment["LD_BIND_NOW"] = "1"  # else each child looks up the C functions it calls all over again
        return await trio.lowlevel.open_process(
            [sys.executable, "-I", str(_ENTRY), str(control.fileno()), str(os.getpid())],
            pass_fds=(control.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if _has_stderr() else subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )


def _above_standard(end: socket.socket) -> socket.socket:
    """Give `end` under a number over 2: an owner without standard streams may have got it under one of theirs."""
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


def _has_stderr() -> bool:
    """Whether descriptor 2 is a stderr to hand on; in an owner without one it is closed, or something private."""
    try:
        return os.get_inheritable(2)
    except OSError:
        return False
