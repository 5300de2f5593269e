"""The life of a child from the fork to its exit: set up, wait for one task, run it, deliver, leave.

Owns the child's descriptors, signals and exit. The handler runs in the main thread. The process leaves by
``os._exit``: no exit hook, finalizer or thread of a handler can hold a result back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from proctor_supervisor import attempt, frames
from proctor_supervisor.board import Board, Phase
from proctor_supervisor.child import failures, handlers
from proctor_supervisor.platform import linux

_OUT, _ERR, _TASK, _BEAT, _DUMP = 1, 2, 3, 4, 5
_BROKEN_SETUP = 70  # EX_SOFTWARE of sysexits.h


@dataclass(frozen=True, slots=True)
class Channels:
    """The child's ends of its channels, as descriptors."""

    task: int
    beat: int
    out: int
    err: int
    dump: int


def enter(channels: Channels, board: Board, *, zygote: int, max_payload_bytes: int) -> NoReturn:
    """Live the child's life; the process ends inside. Called by the zygote directly after the fork."""
    try:
        linux.die_with_parent(zygote)
        os.setsid()
        linux.become_subreaper()
        linux.set_name("proctor-child")
        _arrange_descriptors(channels)
        _reset_signals()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # each line is shown as it is written
        linux.prefer_as_oom_victim()
        faulthandler.register(linux.DUMP_SIGNAL, file=_DUMP, all_threads=True, chain=False)
        _Life(board, max_payload_bytes).live()
    except BaseException:  # noqa: BLE001 - nothing may travel up into the zygote's loop, whose stack this still is
        traceback.print_exc()
    finally:
        os._exit(_BROKEN_SETUP)


def _arrange_descriptors(channels: Channels) -> None:
    """Put the channels on fixed numbers and close everything else that was inherited."""
    wanted = (channels.out, channels.err, channels.task, channels.beat, channels.dump)
    spare = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in wanted]
    for source, target in zip(spare, (_OUT, _ERR, _TASK, _BEAT, _DUMP), strict=True):
        os.dup2(source, target, inheritable=target in (_OUT, _ERR))
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _DUMP:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(int(name))


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python program has it
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class _Life:
    """One attempt's steps, with what they share."""

    def __init__(self, board: Board, limit: int) -> None:
        self._board = board
        self._limit = limit
        self._socket = socket.socket(fileno=_TASK)
        self._socket.setblocking(True)
        self._raised = False
        self._pid = os.getpid()

    def live(self) -> NoReturn:
        """Wait for the task, run it, deliver, exit."""
        body = self._receive()
        self._board.enter(Phase.RUNNING)
        kind, outcome = self._perform(body)
        if os.getpid() != self._pid:
            os._exit(0)  # a process that the handler forked has come back here; the outcome is not its to deliver
        self._flush_output()
        self._deliver(kind, outcome)
        os._exit(0)

    def _receive(self) -> bytes:
        reader = frames.FrameReader(limit=self._limit + 1024 * 1024)
        while True:
            data = self._socket.recv(max(65536, min(reader.missing, 8 * 1024 * 1024)))
            if not data:
                os._exit(0)  # the owner let this standby child go
            for kind, body in reader.feed(data):
                if kind is frames.Kind.TASK:
                    return body

    def _perform(self, body: bytes) -> tuple[frames.Kind, bytes]:
        """Run the handler and give the frame to deliver; nothing a handler raises escapes."""
        try:
            header, (pickled, context, payload) = frames.split_parts(body)
            current = attempt.Attempt(attempt_id=header["attempt_id"], context=context, beat=_BEAT, board=self._board)
            attempt.begin(current)
            codec = handlers.resolve(header["codec"])
            handler = handlers.load(header["handler"], pickled)
        except Exception as exc:  # noqa: BLE001 - importing runs foreign code; whatever it raises is the outcome
            return frames.Kind.FAILURE, failures.describe(exc, kind="unloadable")
        try:
            signal.signal(linux.RAISE_SIGNAL, self._on_raise)
            current.raise_if_stopped()
            try:
                args, kwargs = codec.decode_arguments(payload)
                value = handlers.call(handler, args, kwargs)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {linux.RAISE_SIGNAL})
        except BaseException as exc:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are outcomes, too
            return frames.Kind.FAILURE, failures.describe(exc, kind="raised")
        try:
            result = codec.encode_result(value)
            if len(result) > self._limit:
                raise frames.FrameError(  # noqa: TRY301 - refused exactly like a value without a wire form
                    f"the result of {len(result)} bytes is over the limit of {self._limit} bytes"
                )
        except Exception as exc:  # noqa: BLE001 - encoding walks foreign objects; whatever it raises is the outcome
            return frames.Kind.FAILURE, failures.describe(exc, kind="result_refused")
        return frames.Kind.RESULT, result

    def _on_raise(self, _signal: int, _frame: FrameType | None) -> None:
        reason = self._board.stop
        if reason is not None and not self._raised:
            self._raised = True
            raise attempt.AttemptCancelled(reason)

    def _deliver(self, kind: frames.Kind, outcome: bytes) -> None:
        data = frames.pack(kind, outcome, limit=max(self._limit, len(outcome)))
        current = attempt.current()
        pending = current.take_pending() if current is not None else None
        if pending is not None:
            data = frames.pack(frames.Kind.BEAT, pending, limit=frames.BEAT_LIMIT) + data
        with contextlib.suppress(OSError):  # an owner that is gone needs no outcome; the supervisor knows
            self._socket.setblocking(True)  # a handler may have played with the descriptor it found
            self._socket.sendall(data)
        self._board.enter(Phase.DELIVERED)

    @staticmethod
    def _flush_output() -> None:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(Exception):  # a handler may have closed or replaced it with anything
                if stream is not None:
                    stream.flush()
