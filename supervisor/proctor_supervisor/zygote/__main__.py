"""Entry of the supervisor process: ``python -I …/zygote/__main__.py CONTROL_FD OWNER_PID``.

Run by path in isolated mode, so that nothing of the environment is imported before the owner has said what to import.
Its outermost frame is how a complete stack dump is recognised (`proctor_supervisor.zygote.stacks`).
"""

from __future__ import annotations

import os
import sys

_TEXT_LIMIT = 8192  # a message has a bound


def main() -> None:
    """Read the opening message, preload, report, and serve until the owner is gone."""
    import resource
    import signal
    import socket

    from proctor_supervisor import messages
    from proctor_supervisor.child import entry, setup
    from proctor_supervisor.platform import linux
    from proctor_supervisor.zygote import forking, loop, preloading, trees

    for number in linux.settable_signals():
        linux.restore(number)  # whatever the owner ignores, its children do not inherit
    os.environ.pop("LD_BIND_NOW", None)  # meant for this process only
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux.set_name(linux.ZYGOTE_NAME)
    linux.become_subreaper()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    setup.reserve_descriptors()
    for _ in range(entry.REHEARSALS):
        setup.rehearse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its life is tied to the owner's socket, not to a terminal
    linux.unblock_signals()  # an owner that blocks SIGCHLD would deafen this process
    opening = messages.decode(control.recv(messages.SIZE_LIMIT))
    if not isinstance(opening, messages.Open):
        raise SystemExit(f"the first message must be Open, not {type(opening).__name__}")
    sys.path[:] = opening.sys_path
    try:
        preloading.preload([] if opening.exec_children else opening.preload)
    except preloading.PreloadFailed as exc:
        control.send(messages.encode(messages.Refused(exc.unsafe, str(exc)[:_TEXT_LIMIT], exc.module)))
        trees.end_all()  # what a module has started
        os._exit(0)  # a module's threads and exit hooks could hold an ordinary exit up
    life = entry.Life(entry.Bounds(opening.max_payload_bytes, opening.reuse_growth_bytes))
    nursery: forking.Nursery
    if opening.exec_children:
        nursery = forking.ExecNursery(opening)
    else:
        life.rehearse()
        nursery = forking.ForkNursery(life, bottom=__file__)
    preloading.freeze()
    control.setblocking(False)
    control.send(messages.encode(messages.Ready(os.getpid())))
    loop.Zygote(control, nursery, owner=int(sys.argv[2])).run()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main()
