"""The life of a child from the fork to its exit: wait for a task, run it, deliver, leave.

Owns the order of steps and the exit; becoming a child is the work of `setup`. The handler runs in the main thread.
The process leaves by ``os._exit``: no exit hook, finalizer or thread of a handler can hold a result back.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import gc
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from types import FrameType
from typing import NamedTuple, NoReturn

from proctor_supervisor import attempt, bulk, frames
from proctor_supervisor.board import Board
from proctor_supervisor.child import codecs as codecs  # loaded ahead of the first task
from proctor_supervisor.child import failures, handlers, limits, setup
from proctor_supervisor.platform import linux

_exit = os._exit  # bound before a handler can replace it
_TASK_HEADER_ROOM = 1024 * 1024
_RECEIVE = 64 * 1024  # larger buffers are mapped anew by the allocator for each call
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)
_WATCHED_SIGNALS = (
    *(number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)),
    linux.RAISE_SIGNAL,
    linux.DUMP_SIGNAL,
)
_NO_TIMER = (0.0, 0.0)
REHEARSALS = 16  # the interpreter has adapted a function's code after 8 calls
BROKEN_SETUP = 70  # EX_SOFTWARE of sysexits.h

# Serial number 0 is that of no attempt: afterwards the child still has not begun one.
_REHEARSAL = frames.pack(
    frames.Kind.TASK,
    frames.TaskBody(
        0, 0, 0, 0, "builtins:len", "proctor_supervisor.child.codecs:JSON", "", b"", b"", b'[[""],{}]'
    ).pack(),
    limit=1024,
)


class Bounds(NamedTuple):
    """The largest result in bytes, and how far a reused child's peak memory may grow, in bytes."""

    payload_bytes: int
    growth_bytes: int


def enter(life: Life, birth: setup.Birth, channels: setup.Channels, board: Board, zygote: int) -> NoReturn:
    """Live the child's life; the process ends inside. Called by the zygote directly after the fork."""
    try:
        setup.become_child(channels, zygote, birth)
        life.live(board)
    except BaseException:  # noqa: BLE001 - nothing may travel up into the zygote's loop, whose stack this still is
        traceback.print_exc()
    finally:
        _exit(BROKEN_SETUP)


class Life:
    """The attempts of one child, one after the other, with what they share.

    Made and rehearsed before the fork, or in the child itself when that was exec'd; then lived in the child.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._limit = bounds.payload_bytes
        self._growth_bytes = bounds.growth_bytes
        self._socket: socket.socket  # from `live` on
        self._reader = frames.FrameReader(limit=self._limit + _TASK_HEADER_ROOM)
        self._may_raise = False
        self._pid = 0
        # What tells our pipe and socket from those that a handler may put in their places.
        self._pipe = 0
        self._channel = b""
        self._before: _Traces | None = None
        self._board = Board()
        setup.show_lines_as_written()
        faulthandler.register(linux.DUMP_SIGNAL, file=setup.DUMP, all_threads=True, chain=False)
        signal.signal(linux.RAISE_SIGNAL, self._on_raise)
        self._dispositions = _dispositions()

    def rehearse(self) -> None:
        """Go the way of an attempt in the zygote, so that what the interpreter learns on it is learnt for all."""
        for _ in range(REHEARSALS):
            self._rehearse()

    def live(self, board: Board) -> NoReturn:
        """Wait for a task, run it, deliver; exit after the last one, or when an attempt left its traces."""
        self._board = board
        self._pid = os.getpid()
        gc.enable()  # the zygote has it off
        self._dispositions = _dispositions()
        self._rehearse()  # once more here, while nobody waits: its pages are this child's own then
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, setup.TASK)
        self._channel = linux.socket_cookie(self._socket)
        self._pipe = os.fstat(setup.BEAT).st_ino
        while True:
            task = self._receive()
            last = bool(task.flags & frames.LAST)
            if not last and self._before is None:
                self._before = _Traces.now(grown_to=_peak_bytes() + self._growth_bytes)
            kind, outcome = self._perform(task.body)
            if os.getpid() != self._pid:
                _exit(0)  # a process that the handler forked came back here; the outcome is not its to deliver
            self._flush_output()
            last = last or kind != frames.Kind.RESULT or _has_living_children()
            if last and task.flags & frames.KEEP:
                with contextlib.suppress(OSError):  # a handler may have used up all descriptors
                    self._board.keep(linux.below(self._pid))
            delivered = self._deliver(kind, outcome, last=last)
            if last or not delivered or (self._before is not None and self._before.are_exceeded()):
                _exit(0)  # a task that was sent meanwhile has not begun, and goes to another child
            limits.lift()

    def _rehearse(self) -> None:
        owner, self._socket = socket.socketpair()
        with owner, self._socket:
            self._channel = linux.socket_cookie(self._socket)
            owner.sendall(_REHEARSAL)
            kind, outcome = self._perform(self._receive().body)
            self._flush_output()
            self._deliver(kind, outcome, last=True)

    def _receive(self) -> frames.Frame:
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(_RECEIVE, _ONE_DESCRIPTOR)
            if not data:
                _exit(0)  # the owner let this child go
            for frame in self._reader.feed(data):
                if frame.shared:
                    (shared,) = struct.unpack("i", ancillary[0][2])
                    return frame._replace(body=bulk.take(shared, frame.shared))
                return frame

    def _perform(self, body: bytes) -> tuple[int, bytes]:
        """Run the handler and give the frame to deliver; nothing a handler raises escapes."""
        try:
            task = frames.TaskBody.unpack(body)
            current = attempt.begin(task.attempt_id, task.context, beat=setup.BEAT, pipe=self._pipe, board=self._board)
            self._board.begin(task.serial)
            codec = handlers.resolve(task.codec)
            handler = handlers.load(task.handler, task.pickled)
            limits.apply(task)
        except BaseException as exc:  # noqa: BLE001 - importing runs foreign code; whatever it raises is the outcome
            return frames.Kind.FAILURE, failures.describe(exc, kind="unloadable")
        try:
            self._may_raise = True
            current.raise_if_stopped()
            try:
                args, kwargs = codec.decode_arguments(task.payload)
                value = handlers.call(handler, args, kwargs)
            finally:
                self._may_raise = False
                self._silence_signals()
        except BaseException as exc:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are outcomes, too
            limits.lift()  # to tell of a failure takes memory, and the failure may be for want of it
            return frames.Kind.FAILURE, failures.describe(exc, kind="raised")
        try:
            result = codec.encode_result(value)
            if not isinstance(result, bytes):
                raise TypeError(f"the codec gave a {type(result).__name__}, not bytes")  # noqa: TRY301
            if len(result) > self._limit:
                raise frames.FrameError(  # noqa: TRY301 - refused exactly like a value without a wire form
                    f"the result of {len(result)} bytes is over the limit of {self._limit} bytes"
                )
        except BaseException as exc:  # noqa: BLE001 - encoding walks foreign objects; whatever it raises is the outcome
            limits.lift()
            return frames.Kind.FAILURE, failures.describe(exc, kind="result_refused")
        return frames.Kind.RESULT, result

    def _silence_signals(self) -> None:
        """Ignore each signal that the handler has handled: an alarm it forgot must not hit the delivery."""
        now = _dispositions()
        if now != self._dispositions:
            for number, before, after in zip(_WATCHED_SIGNALS, self._dispositions, now, strict=True):
                if after != before:
                    signal.signal(number, signal.SIG_IGN)

    def _on_raise(self, _signal: int, _frame: FrameType | None) -> None:
        reason = self._board.stop
        if reason is not None and self._may_raise:
            self._may_raise = False  # once is enough: a second exception could hit a `finally` block
            raise attempt.AttemptCancelled(reason)

    def _deliver(self, kind: int, outcome: bytes, *, last: bool) -> bool:
        """Send the outcome; False when there is no way to the owner any more, nor will there be one."""
        flags, beats, dropped = frames.LAST if last else 0, self._board.beats, self._board.dropped
        serial = self._board.begun
        shared = _put(outcome) if len(outcome) > bulk.THRESHOLD else None
        if shared is not None:
            data = frames.pack_shared(kind, len(outcome), flags=flags, beats=beats, dropped=dropped, serial=serial)
        else:
            data = frames.pack(
                kind, outcome, limit=len(outcome), flags=flags, beats=beats, dropped=dropped, serial=serial
            )
        current = attempt.current()
        pending = current.take_pending() if current is not None else None
        try:
            if linux.socket_cookie(self._socket) != self._channel:
                return False  # the handler put something of its own in the channel's place; it is not ours to write to
            self._socket.setblocking(True)  # a handler may have played with the descriptor it found
            if pending is not None:
                self._socket.sendall(frames.pack(frames.Kind.BEAT, pending, limit=frames.BEAT_LIMIT, serial=serial))
            if shared is None:
                self._socket.sendall(data)
            else:
                socket.send_fds(self._socket, [data], [shared])
        except OSError:
            return False  # an owner that is gone needs no outcome; the supervisor knows
        finally:
            if shared is not None:
                os.close(shared)
        return True

    @staticmethod
    def _flush_output() -> None:
        streams = [sys.stdout, sys.stderr]
        if sys.__stdout__ is not sys.stdout or sys.__stderr__ is not sys.stderr:
            streams += [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]
        for stream in streams:
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001, S112 - a handler may have closed or replaced it with anything
                continue


class _Traces(NamedTuple):
    """What an attempt may leave behind in its process: threads, dispositions of signals and their mask, memory, and
    where and as whom it works.
    """

    threads: int
    dispositions: list[object]
    mask: set[int]
    grown_to: int
    place: tuple[object, ...]

    @classmethod
    def now(cls, *, grown_to: int) -> _Traces:
        """Note how things stand; memory may grow to a peak of `grown_to` bytes."""
        return cls(_thread._count(), _dispositions(), linux.signal_mask(), grown_to, _place())

    def are_exceeded(self) -> bool:
        """Whether there is more now."""
        return (
            _thread._count() > self.threads
            or _dispositions() != self.dispositions
            or signal.getitimer(signal.ITIMER_REAL) != _NO_TIMER
            or linux.signal_mask() != self.mask
            or _place() != self.place
            or _peak_bytes() > self.grown_to
        )


def _has_living_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue  # one that had ended
    except ChildProcessError:
        return False
    return True


def _dispositions() -> list[object]:
    """What Python does on each ordinary signal, and on ours; costs no system call."""
    return list(map(linux.disposition_of, _WATCHED_SIGNALS))


def _place() -> tuple[object, ...]:
    """The working directory, the user, and the mode mask of new files."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""  # it was removed
    mask = os.umask(0o077)
    os.umask(mask)
    return folder, os.geteuid(), mask


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _put(outcome: bytes) -> int | None:
    try:
        return bulk.put(outcome)
    except OSError:
        return None  # no shared memory to be had, or a limit of the task: the socket does it, too
