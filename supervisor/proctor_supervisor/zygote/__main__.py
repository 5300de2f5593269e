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
    datagram = control.recv(messages.SIZE_LIMIT)
    if not datagram:
        os._exit(0)  # the owner is gone already
    opening = messages.decode(datagram)
    if not isinstance(opening, messages.Open):
        raise SystemExit(f"the first message must be Open, not {type(opening).__name__}")
    sys.path[:] = opening.sys_path
    if not opening.exec_children:
        linux.die_with_peer(control)  # an import can take for ever
        try:
            preloading.preload(opening.preload, control)
            linux.live_without_peer(control)
        except preloading.PreloadFailed as exc:
            try:
                linux.live_without_peer(control)
                control.send(messages.encode(messages.Refused(exc.unsafe, str(exc)[:_TEXT_LIMIT], exc.module)))
            except OSError:
                print(exc, file=sys.__stderr__, flush=True)  # it is the socket that the module has closed
            trees.end_all()  # what a module has started
            os._exit(0)  # a module's threads and exit hooks could hold an ordinary exit up
        preloading.silence()
    life = entry.Life(entry.Bounds(opening.max_payload_bytes, opening.reuse_growth_bytes))
    nursery: forking.Nursery
    if opening.exec_children:
        nursery = forking.ExecNursery(opening)
    else:
        life.rehearse()
        nursery = forking.ForkNursery(life, bottom=__file__)
    preloading.freeze()
    control.setblocking(False)
    zygote = loop.Zygote(control, nursery, owner=int(sys.argv[2]))
    control.send(messages.encode(messages.Ready(os.getpid())))
    zygote.run()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main()
