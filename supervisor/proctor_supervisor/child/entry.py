"""The life of a child from the fork to its exit: set up, wait for a task, run it, deliver, leave.

Owns the order of steps and the exit; becoming a child is the work of `setup`. The handler runs in the main thread.
The process leaves by ``os._exit``: no exit hook, finalizer or thread of a handler can hold a result back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

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
BROKEN_SETUP = 70  # EX_SOFTWARE of sysexits.h


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest result in bytes, and how far a reused child's peak memory may grow, in bytes."""

    payload_bytes: int
    growth_bytes: int


def enter(channels: setup.Channels, board: Board, *, zygote: int, bounds: Bounds) -> NoReturn:
    """Live the child's life; the process ends inside. Called by the zygote directly after the fork."""
    try:
        setup.become_child(channels, zygote=zygote)
        begin(board, bounds)
    except BaseException:  # noqa: BLE001 - nothing may travel up into the zygote's loop, whose stack this still is
        traceback.print_exc()
    finally:
        _exit(BROKEN_SETUP)


def begin(board: Board, bounds: Bounds) -> NoReturn:
    """Live the life of a process that was made a child already."""
    gc.enable()  # the zygote has it off
    setup.show_lines_as_written()
    faulthandler.register(linux.DUMP_SIGNAL, file=setup.DUMP, all_threads=True, chain=False)
    _Life(board, bounds).live()


# Serial number 0 is that of no attempt: afterwards the child still has not begun one.
_WARM_UP = frames.TaskBody(
    0, 0, 0, 0, "builtins:len", "proctor_supervisor.child.codecs:JSON", "", b"", b"", b'[[""],{}]'
)


class _Life:
    """The attempts of one child, one after the other, with what they share."""

    def __init__(self, board: Board, bounds: Bounds) -> None:
        self._board = board
        self._limit = bounds.payload_bytes
        self._socket = socket.socket(fileno=setup.TASK)
        self._socket.setblocking(True)
        self._reader = frames.FrameReader(limit=self._limit + _TASK_HEADER_ROOM)
        self._may_raise = False
        signal.signal(linux.RAISE_SIGNAL, self._on_raise)
        self._pid = os.getpid()
        self._signals = _dispositions()
        self._mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._channel = os.fstat(setup.TASK).st_ino
        self._threads = threading.active_count()
        self._peak_most = _peak_bytes() + bounds.growth_bytes

    def live(self) -> NoReturn:
        """Wait for a task, run it, deliver; exit after the last one, or when an attempt left its traces."""
        self._warm_up()
        while True:
            task = self._receive()
            kind, outcome = self._perform(task.body)
            if os.getpid() != self._pid:
                _exit(0)  # a process that the handler forked came back here; the outcome is not its to deliver
            self._flush_output()
            last = bool(task.flags & frames.LAST) or kind is not frames.Kind.RESULT or self._has_traces()
            if last:
                with contextlib.suppress(OSError):  # a handler may have used up all descriptors
                    self._board.keep(linux.below(self._pid))  # heeded only where the owner said that they may live on
            self._deliver(kind, outcome, last=last)
            if last:
                _exit(0)
            limits.lift()

    def _warm_up(self) -> None:
        """Go the way of an attempt once while nobody waits, so that its pages are this child's own by then."""
        self._perform(_WARM_UP.pack())
        self._has_traces()
        self._flush_output()

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

    def _perform(self, body: bytes) -> tuple[frames.Kind, bytes]:
        """Run the handler and give the frame to deliver; nothing a handler raises escapes."""
        try:
            task = frames.TaskBody.unpack(body)
            current = attempt.Attempt(
                attempt_id=task.attempt_id, context=task.context, beat=setup.BEAT, board=self._board
            )
            attempt.begin(current)
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
        if now != self._signals:
            for number, ours, theirs in zip(_WATCHED_SIGNALS, self._signals, now, strict=True):
                if theirs != ours:
                    signal.signal(number, signal.SIG_IGN)

    def _on_raise(self, _signal: int, _frame: FrameType | None) -> None:
        reason = self._board.stop
        if reason is not None and self._may_raise:
            self._may_raise = False  # once is enough: a second exception could hit a `finally` block
            raise attempt.AttemptCancelled(reason)

    def _has_traces(self) -> bool:
        """Whether the attempt left behind what the next one must not meet."""
        try:
            descendants = os.waitpid(-1, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            descendants = False
        return (
            descendants
            or threading.active_count() > self._threads
            or _dispositions() != self._signals
            or signal.getitimer(signal.ITIMER_REAL) != _NO_TIMER
            or _signal.pthread_sigmask(signal.SIG_BLOCK, ()) != self._mask
            or _peak_bytes() > self._peak_most
        )

    def _deliver(self, kind: frames.Kind, outcome: bytes, *, last: bool) -> None:
        flags, beats, dropped = frames.LAST if last else 0, self._board.beats, self._board.dropped
        shared = _put(outcome) if len(outcome) > bulk.THRESHOLD else None
        if shared is not None:
            data = frames.pack_shared(kind, len(outcome), flags=flags, beats=beats, dropped=dropped)
        else:
            limit = max(self._limit, len(outcome))
            data = frames.pack(kind, outcome, limit=limit, flags=flags, beats=beats, dropped=dropped)
        current = attempt.current()
        pending = current.take_pending() if current is not None else None
        with contextlib.suppress(OSError):  # an owner that is gone needs no outcome; the supervisor knows
            if os.fstat(setup.TASK).st_ino != self._channel:
                return  # the handler put something of its own in the channel's place, which is not ours to write to
            self._socket.setblocking(True)  # a handler may have played with the descriptor it found
            if pending is not None:
                self._socket.sendall(frames.pack(frames.Kind.BEAT, pending, limit=frames.BEAT_LIMIT))
            if shared is not None:
                socket.send_fds(self._socket, [data], [shared])
            else:
                self._socket.sendall(data)
        if shared is not None:
            os.close(shared)

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


def _put(outcome: bytes) -> int | None:
    try:
        return bulk.put(outcome)
    except OSError:
        return None  # no shared memory to be had, or a limit of the task: the socket does it, too


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# The C module below `signal` does not wrap each answer into an enum; this runs after each attempt of a reused child.
_signal = importlib.import_module("_signal")
_getsignal = _signal.getsignal


def _dispositions() -> list[object]:
    """What Python does on each ordinary signal, and on ours; costs no system call."""
    return [_getsignal(number) for number in _WATCHED_SIGNALS]
