"""Entry of the supervisor process: ``python -I …/zygote/__main__.py CONTROL_FD``.

Run by path in isolated mode, so that nothing of the environment is imported before the owner has said what to import.
Its outermost frame is how a complete stack dump is recognised (`proctor_supervisor.zygote.stacks`).
"""

from __future__ import annotations

import os
import sys

_TEXT_LIMIT = 8192  # a message has a bound


def main() -> None:
    """Read the opening message, preload, report, and serve until the owner is gone."""
    import json
    import resource
    import signal
    import socket

    from proctor_supervisor import messages
    from proctor_supervisor.child import entry
    from proctor_supervisor.platform import linux
    from proctor_supervisor.zygote import forking, loop, preloading, trees

    for number in linux.settable_signals() - linux.IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # whatever the owner ignores, its children do not inherit
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its life is tied to the owner's socket, not to a terminal
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # an owner that blocks SIGCHLD would deafen this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux.set_name("proctor-superv")
    linux.become_subreaper()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    opening = messages.decode(control.recv(messages.SIZE_LIMIT))
    if not isinstance(opening, messages.Open):
        raise SystemExit(f"the first message must be Open, not {type(opening).__name__}")
    sys.path[:] = opening.sys_path
    try:
        preloading.preload([] if opening.exec_children else opening.preload)
    except preloading.PreloadFailed as exc:
        control.send(messages.encode(messages.Refused(str(exc)[:_TEXT_LIMIT], exc.module, exc.unsafe)))
        trees.kill_strays(lambda _pid: False)  # what a module has started
        os._exit(0)  # a module's threads and exit hooks could hold an ordinary exit up
    bounds = entry.Bounds(opening.max_payload_bytes, opening.reuse_growth_bytes)
    nursery = forking.Nursery(bounds, bottom=__file__)
    if opening.exec_children:
        beginning = json.dumps(
            {
                "sys_path": opening.sys_path,
                "preload": opening.preload,
                "payload_bytes": bounds.payload_bytes,
                "growth_bytes": bounds.growth_bytes,
            }
        )
        nursery = forking.Nursery(bounds, bottom=forking.EXEC_ENTRY, beginning=beginning.encode())
    control.setblocking(False)
    control.send(messages.encode(messages.Ready(os.getpid())))
    loop.Zygote(control, nursery).run()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main()
