"""Collecting a child's Python stacks: the dump signal goes out, text comes back on a pipe.

`faulthandler` writes from the signal handler itself, so it works while a C call holds the GIL. Nothing marks the end
of a dump, but its last line is known: the main thread is the oldest, so it is printed last, and its outermost frame
is the zygote's own. The text comes from the child and is bounded and only ever shown.
"""

from __future__ import annotations

import contextlib
import os

from proctor_supervisor.child import setup
from proctor_supervisor.platform import linux

LIMIT = 16 * 1024
"""Most bytes kept of one dump; the end is kept, since the main thread comes last."""


class StackCapture:
    """One capture in progress on the pipe `dump` of the child `pid`.

    The child is asked for nothing where its handler has put something of its own in the place of the pipe: the text
    would be written to that.
    """

    __slots__ = ("_bottom", "_dump", "_is_asked", "_text")

    def __init__(self, pid: int, dump: int, bottom: bytes) -> None:
        self._dump = dump
        self._bottom = bottom
        self._text = b""
        self._read()  # what an earlier, late dump left behind
        self._text = b""
        self._is_asked = linux.holds_pipe(pid, setup.DUMP, dump)
        if self._is_asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, linux.DUMP_SIGNAL)

    def look(self) -> bool:
        """Take what has arrived; true when the dump is complete."""
        self._read()
        return self.complete

    @property
    def complete(self) -> bool:
        """Whether the outermost frame of the main thread has been printed; there is nothing to wait for otherwise."""
        if not self._is_asked:
            return True
        if not self._text.endswith(b"\n"):
            return False
        last = self._text.rstrip(b"\n").rpartition(b"\n")[2]
        return last == b"  ..." or (last.startswith(b'  File "' + self._bottom) and last.endswith(b" in <module>"))

    @property
    def text(self) -> str:
        """What was collected so far."""
        return self._text.decode("utf-8", "replace")

    def _read(self) -> None:
        # Never more than this at once: a handler may write to the pipe without end, and others have deadlines, too.
        with contextlib.suppress(BlockingIOError):
            for _ in range(4):
                self._text = (self._text + os.read(self._dump, 65536))[-LIMIT:]


def raise_in_handler(pid: int) -> None:
    """Send the signal on which a child raises in its handler's main thread."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, linux.RAISE_SIGNAL)


STEP_SIGNALS = (linux.RAISE_SIGNAL, linux.DUMP_SIGNAL)
"""What the ladder sends before SIGKILL; it ends a process in which a handler has exec'd another program."""
