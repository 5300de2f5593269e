"""Entry of an exec'd child: ``python -I …/child/__main__.py``, where forking from the preloaded zygote is unsafe.

The zygote made it a child before the exec; descriptors 6 and 7 hold its notice board and how to begin. What such a
child preloads is paid once per child, ahead of need.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback


def main() -> None:
    """Read how to begin, import what is to be preloaded, and live a child's life."""
    from proctor_supervisor.board import Board
    from proctor_supervisor.child import entry, setup

    with os.fdopen(setup.FIRST_EXTRA + 1, "rb") as file:
        file.seek(0)
        beginning = json.loads(file.read())
    board = Board(setup.FIRST_EXTRA)
    os.close(setup.FIRST_EXTRA)
    for descriptor in (setup.TASK, setup.BEAT, setup.DUMP):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a new interpreter sets its own
    sys.path[:] = beginning["sys_path"]
    for name in beginning["preload"]:
        try:
            __import__(name)
        except Exception:  # noqa: BLE001 - if a handler needs it, that attempt says so; others go on
            traceback.print_exc()
    entry.Life(entry.Bounds(beginning["payload_bytes"], beginning["growth_bytes"])).live(board)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main()
