"""Becoming a child: from the instant after the fork to a process that is nobody's copy any more.

Owns which descriptor stands where in every child, and its signals, session and place in the tree. All of it outlives
an exec, so forked and exec'd children begin alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from proctor_supervisor.platform import linux

OUT, ERR, TASK, BEAT, DUMP = 1, 2, 3, 4, 5
FIRST_EXTRA = 6
"""Where further descriptors stand, which an exec'd child is given to begin with."""

# The C module below `signal` does not wrap each answer into an enum; this runs for each child.
_signal = importlib.import_module("_signal")
_SIGNALS = tuple(int(number) for number in linux.settable_signals() - linux.IGNORED_SIGNALS)


@dataclass(frozen=True, slots=True)
class Channels:
    """The child's ends of its channels, as descriptors."""

    task: int
    beat: int
    out: int
    err: int
    dump: int


def become_child(channels: Channels, *, zygote: int, extra: Sequence[int] = ()) -> None:
    """Turn the forked copy of the zygote into a child with `channels`, and `extra` descriptors that outlive an exec."""
    linux.die_with_parent(zygote)
    os.setsid()
    linux.become_subreaper()
    linux.set_name("proctor-child")
    _arrange_descriptors(channels, extra)
    _reset_signals()
    linux.prefer_as_oom_victim()


def show_lines_as_written() -> None:
    """Have `print` hand on each line at once: stdout and stderr are pipes here."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _arrange_descriptors(channels: Channels, extra: Sequence[int]) -> None:
    """Put the channels on fixed numbers and close everything else that was inherited."""
    wanted = (channels.out, channels.err, channels.task, channels.beat, channels.dump, *extra)
    targets = (OUT, ERR, TASK, BEAT, DUMP, *range(FIRST_EXTRA, FIRST_EXTRA + len(extra)))
    spare = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in wanted]
    for source, target in zip(spare, targets, strict=True):
        os.dup2(source, target, inheritable=bool(extra) or target in (OUT, ERR))
    for name in os.listdir("/proc/self/fd"):
        if int(name) > targets[-1]:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(int(name))


def _reset_signals() -> None:
    """Put back what preloaded modules have set, and what the zygote itself ignores."""
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_DFL:  # asking costs no system call
            _signal.signal(number, _signal.SIG_DFL)
    for number in linux.IGNORED_SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
