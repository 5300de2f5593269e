"""Becoming a child: from the instant after the fork to a process that is nobody's copy any more.

Owns which descriptor stands where in every child, and its signals, session and place in the tree. All of it outlives
an exec, so forked and exec'd children begin alike. The zygote prepares what it can, once, because whatever a child
does here it does for each attempt: every page it writes to is a page the kernel must copy.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from proctor_supervisor.platform import linux

OUT, ERR, TASK, BEAT, DUMP = 1, 2, 3, 4, 5
FIRST_EXTRA = 6
"""Where further descriptors stand, which an exec'd child is given to begin with."""
_FIRST_FREE = 8


class Channels(NamedTuple):
    """The child's ends of its channels, as descriptors."""

    task: int
    beat: int
    out: int
    err: int
    dump: int


class Birth(NamedTuple):
    """What becoming a child changes; a rehearsal goes the same way and changes nothing."""

    death_signal: int = signal.SIGKILL
    session: bool = True
    name: bytes = linux.CHILD_NAME
    first_closed: int = FIRST_EXTRA
    signals: tuple[int, ...] = ()
    oom_score: bytes = b"500"


def plan_birth() -> Birth:
    """Say how children of this process are to be born: called once, when everything is preloaded.

    The signals to restore are those that the zygote and the preloaded modules have set; SIGCHLD, which the zygote's
    loop is about to set, too. The one that raises in a handler is the child's own.
    """
    changed = (
        number
        for number in linux.settable_signals() - {linux.RAISE_SIGNAL, signal.SIGCHLD}
        if linux.disposition_of(number) != linux.plain_disposition(number)
    )
    return Birth(signals=(signal.SIGCHLD, *changed))


def reserve_descriptors() -> None:
    """Occupy the numbers that stand for something in a child, so that no channel is opened on one of them."""
    while os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) < _FIRST_FREE:
        pass


def rehearse() -> None:
    """Go the way of `become_child` in the zygote, before it has signals of its own."""
    spare = _FIRST_FREE  # the null device, as all the numbers from TASK on
    channels = Channels(spare, spare, OUT, ERR, spare)
    nothing = Birth(0, False, linux.ZYGOTE_NAME, 1 << 30, (signal.SIGCHLD,), linux.oom_score())
    become_child(channels, os.getppid(), nothing)


def become_child(channels: Channels, zygote: int, birth: Birth, extra: Sequence[int] = ()) -> None:
    """Turn the forked copy of the zygote into a child with `channels`, and `extra` descriptors that outlive an exec.

    The zygote has called `reserve_descriptors`, so no source is overwritten before its turn.
    """
    linux.die_with_parent(zygote, birth.death_signal)
    if birth.session:
        os.setsid()
    linux.become_subreaper()
    linux.set_name(birth.name)
    os.dup2(channels.out, OUT)
    os.dup2(channels.err, ERR)
    kept = bool(extra)
    os.dup2(channels.task, TASK, kept)
    os.dup2(channels.beat, BEAT, kept)
    os.dup2(channels.dump, DUMP, kept)
    for target, source in enumerate(extra, start=FIRST_EXTRA):
        os.dup2(source, target)
    linux.close_from(birth.first_closed + len(extra))
    signal.set_wakeup_fd(-1)
    for number in birth.signals:
        linux.restore(number)
    linux.unblock_signals()
    linux.set_oom_score(birth.oom_score)


def show_lines_as_written() -> None:
    """Have `print` hand on each line at once: stdout and stderr are pipes in a child.

    A preloaded module may have put anything in their places; what it chose is kept.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(line_buffering=True)
