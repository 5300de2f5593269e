"""The connection to one supervisor process: starting it, talking to it, knowing when it is gone.

Owns the process, its control socket and the children it announced. Decides nothing about attempts; it hands each
child, and later its settlement, to the supervisor object.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from typing import Protocol

import trio

from proctor_supervisor import messages
from proctor_supervisor.errors import StartRefused
from proctor_supervisor.options import SupervisorOptions
from proctor_supervisor.outcome import Step, StopReason
from proctor_supervisor.owner import launch, orphans
from proctor_supervisor.owner.child import Child
from proctor_supervisor.platform import linux

_DESCRIPTORS = 5  # task socket, beat pipe, stdout, stderr, pidfd
_ANCILLARY = socket.CMSG_SPACE(4 * _DESCRIPTORS)
_EXIT_SECONDS = 5.0
_PROOF_SECONDS = 5.0
_PING_SECONDS = 1.0
_SILENCE_SECONDS = 2.5
_LINGER_SECONDS = 1.0
_log = logging.getLogger("proctor_supervisor")


class Listener(Protocol):
    """Who is told what the supervisor process says."""

    def on_forked(self, child: Child) -> None:
        """A standby child is ready."""

    def on_fork_failed(self, error: str) -> None:
        """A standby child could not be forked."""

    def on_stepped(self, child: Child, step: Step) -> None:
        """A ladder step was taken on a child."""

    def on_ended(self, child: Child) -> None:
        """A child is proven gone; its record may be closed once it was read."""

    def on_unconfirmed(self, child: Child) -> None:
        """A child outlived its kill budget; its end may still be reported later."""

    def on_lost(self) -> None:
        """The supervisor process is gone; the ends of its children are proven next."""


class Link:
    """One incarnation of the supervisor process."""

    def __init__(
        self, process: trio.Process, control: socket.socket, listener: Listener, mark: str, *, payload_limit: int
    ) -> None:
        self._process = process
        self._control = control
        self._listener = listener
        self._mark = mark
        self._payload_limit = payload_limit
        self._kept: set[int] = set()
        self._hung_up = False
        self.is_lost = False
        self._children: dict[int, Child] = {}
        self._buffer = [memoryview(bytearray(messages.SIZE_LIMIT))]
        self._outbox: deque[bytes] = deque()
        self._outbox_filled = trio.Event()
        self._answered = trio.Event()
        self._next = 1
        self._forks_awaited = 0
        self.pid = process.pid
        stat = linux.read_stat(process.pid)
        self._started_at = stat.started_at if stat is not None else 0  # kernel ticks since boot

    @classmethod
    async def start(cls, options: SupervisorOptions, listener: Listener, *, exec_children: bool = False) -> Link:
        """Start the process, preload, and wait until it is ready. Raises StartRefused.

        With `exec_children` nothing is preloaded there: each child is a new interpreter.
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            raise _no_room(exc) from exc
        try:
            ours.setblocking(False)
            mark = orphans.new_mark()
            try:
                process = await launch.start_process(theirs, mark, withhold=options.withhold)
            except (OSError, RuntimeError) as exc:  # the latter where there is no thread to be had
                raise _no_room(exc) from exc
            link = cls(process, ours, listener, mark, payload_limit=options.max_payload_bytes)
            try:
                await link._open(options, exec_children=exec_children)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await link.close()
                    await orphans.kill_marked(mark, since=link._started_at, spare=())  # what a module has started
                raise
        except BaseException:
            ours.close()
            raise
        return link

    async def _open(self, options: SupervisorOptions, *, exec_children: bool) -> None:
        opening = messages.Open(
            sys_path=[one for one in sys.path if isinstance(one, str)],  # the import system skips others, too
            preload=list(options.preload),
            max_payload_bytes=options.max_payload_bytes,
            reuse_growth_bytes=options.reuse_growth_bytes,
            exec_children=exec_children,
        )
        size = len(messages.encode(opening))
        if size > messages.SIZE_LIMIT:
            raise StartRefused(
                f"sys.path ({len(opening.sys_path)} entries) and `preload` ({len(opening.preload)} modules) take "
                f"{size} bytes, over the limit of {messages.SIZE_LIMIT}; shorten them"
            )
        self.post(opening)
        try:
            with trio.fail_after(options.start_timeout):
                received = await self._receive()
        except trio.TooSlowError:
            raise StartRefused(
                f"the supervisor process was not ready within {options.start_timeout} s; a module in `preload` may "
                f"do work at import ({', '.join(options.preload) or 'none given'})"
            ) from None
        match received:
            case (messages.Ready(), _):
                return
            case (messages.Refused(message=text, module=module, unsafe=unsafe), _):
                raise StartRefused(text, module=module, unsafe=unsafe)
            case _:
                raise StartRefused(
                    f"the supervisor process ended before it was ready; its message is on stderr. A module in "
                    f"`preload` may have ended it ({', '.join(options.preload) or 'none given'})"
                )

    # -- sending --------------------------------------------------------------------------------------------

    def post(self, message: messages.Message) -> None:
        """Send `message`; when the process is slow to read it waits here, in order, and nobody blocks."""
        datagram = messages.encode(message)
        if not self._outbox:
            try:
                self._control.send(datagram)
            except BlockingIOError:
                pass
            except OSError:
                return  # the process is gone; `serve` learns it from the socket and proves every child gone
            else:
                return
        self._outbox.append(datagram)
        self._outbox_filled.set()

    def fork(self) -> None:
        """Ask for one more standby child."""
        self.post(messages.Fork(self._next))
        self._next += 1
        self._forks_awaited += 1

    async def _write_outbox(self) -> None:
        while True:
            await self._outbox_filled.wait()
            while self._outbox:
                await trio.lowlevel.wait_writable(self._control)
                with contextlib.suppress(BlockingIOError):
                    self._control.send(self._outbox[0])
                    self._outbox.popleft()
            self._outbox_filled = trio.Event()

    async def _watch(self) -> None:
        """Kill a process that runs attempts, or is to fork, and answers no more: it is frozen, and holds no deadline.

        Two questions in a row must stay unanswered, so that a pause of this side is never taken for one of the other.
        """
        unanswered = 0
        while unanswered < 2:
            await trio.sleep(_PING_SECONDS)
            self._kill_lingerers()
            if not self._forks_awaited and all(child.reader is None for child in self._children.values()):
                continue
            self._answered = trio.Event()
            asked_at = time.monotonic()  # the other side lives by the real clock, whatever Trio's may be here
            self.post(messages.Ping())
            with trio.move_on_after(_SILENCE_SECONDS) as patience:
                await self._answered.wait()
            is_silent = patience.cancelled_caught and time.monotonic() - asked_at >= _SILENCE_SECONDS
            unanswered = unanswered + 1 if is_silent else 0
        _log.error("the supervisor process %d answers no more; it is killed, and another one takes over", self.pid)
        self._process.kill()

    def _kill_lingerers(self) -> None:
        """Kill what does not exit although it was let go: a handler can freeze its process after the result is out.

        The stop belongs to no attempt, so that it changes no outcome.
        """
        long_ago = time.monotonic() - _LINGER_SECONDS
        for child in self._children.values():
            if child.let_go_at < long_ago:
                child.let_go_at = math.inf
                self.post(
                    messages.Stop(
                        child=child.number,
                        attempt=0,
                        at_once=True,
                        notice_grace=0,
                        raise_grace=0,
                        stack_budget=0,
                        kill_budget=_PROOF_SECONDS,
                        reason=StopReason.SHUTDOWN,
                        detail="it was let go and did not exit",
                    )
                )

    # -- receiving ------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read what the process says until it is gone, then prove every child of it gone."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_outbox)
                nursery.start_soon(self._watch)
                while (received := await self._receive()) is not None:
                    self._handle(*received)
                nursery.cancel_scope.cancel()
        except* OSError:
            pass  # the socket broke under a write: the same end, seen from the other side
        self.is_lost, was_asked = True, self._hung_up
        self._listener.on_lost()
        left = list(self._children.values())
        async with trio.open_nursery() as nursery:
            for child in left:
                nursery.start_soon(self._await_orphan, child)
        with trio.move_on_after(_EXIT_SECONDS):
            await self._process.wait()
        if not was_asked or self._process.returncode != 0:  # it did not come to kill all that is left
            await orphans.kill_marked(self._mark, since=self._started_at, spare=self._kept)
            orphans.collect_zombies(self.pid, [child.pid for child in left])
        self._children.clear()
        for child in left:
            child.orphaned_at = time.monotonic()
            self._end(child)

    async def _receive(self) -> tuple[messages.Message, list[int]] | None:
        while True:
            try:
                size, ancillary, _, _ = self._control.recvmsg_into(self._buffer, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._control)
                continue
            except ConnectionError:
                return None
            descriptors = [one for _, _, data in ancillary for one in struct.unpack(f"{len(data) // 4}i", data)]
            return (messages.decode(self._buffer[0][:size]), descriptors) if size else None

    def _handle(self, message: messages.Message, descriptors: list[int]) -> None:
        match message:
            case messages.Pong():
                self._answered.set()
            case messages.Forked(child=number, pid=pid):
                self._forks_awaited -= 1
                if len(descriptors) != _DESCRIPTORS:
                    for descriptor in descriptors:
                        os.close(descriptor)  # the child sees the end of its socket, and exits
                    self._listener.on_fork_failed("this process has no descriptors left for a child's channels")
                    return
                child = Child(number, pid, descriptors, payload_limit=self._payload_limit)
                self._children[number] = child
                self._listener.on_forked(child)
            case messages.ForkFailed(error=error):
                self._forks_awaited -= 1
                self._listener.on_fork_failed(error)
            case messages.Stepped(child=number, step=step):
                self._listener.on_stepped(self._children[number], Step(step))
            case messages.Settled(child=number) if number in self._children:
                child = self._children.pop(number)
                child.settlement = message
                self._kept.update(message.kept)
                self._end(child)
            case messages.Unconfirmed(child=number) if number in self._children:
                child = self._children[number]
                child.unconfirmed = True
                self._listener.on_unconfirmed(child)
                child.end()
            case messages.Settled() | messages.Unconfirmed():
                pass  # of a child whose descriptors found no room here
            case _:
                raise AssertionError(f"the supervisor process never sends {type(message).__name__}")

    def _end(self, child: Child) -> None:
        self._listener.on_ended(child)
        child.end()

    async def _await_orphan(self, child: Child) -> None:
        """Wait for the kernel to say that an orphaned child ended.

        It carries a parent-death signal, which a handler can take off; so it is killed from here, too.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        with trio.move_on_after(_PROOF_SECONDS) as patience:
            await trio.lowlevel.wait_readable(child.pidfd)
        if patience.cancelled_caught:
            child.unconfirmed = True
            self._listener.on_unconfirmed(child)
            child.end()
            await trio.lowlevel.wait_readable(child.pidfd)
        orphans.collect(child.pidfd)

    @property
    def has_broken(self) -> bool:
        """Whether the process ended by itself, without having been told to."""
        return (self._process.returncode or 0) not in (0, -signal.SIGKILL, -signal.SIGTERM)

    # -- ending ---------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """Tell the process to kill all that is left and exit; `serve` returns once it has."""
        self._hung_up = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Wait for the process to exit (it is killed after 5 s) and give the socket back.

        Call it after `hang_up`, shielded if a cancelled task must not leave the process behind.
        """
        self.hang_up()
        with trio.move_on_after(_EXIT_SECONDS) as patience:
            await self._process.wait()
        if patience.cancelled_caught:
            self._process.kill()  # its children follow by their parent-death signal
            await self._process.wait()
            await orphans.kill_marked(self._mark, since=self._started_at, spare=self._kept)
        self._control.close()


def _no_room(exc: Exception) -> StartRefused:
    return StartRefused(
        f"the supervisor process could not be started: {exc}. Look at the limits of processes and open files "
        f"(ulimit -u, ulimit -n) and at the memory that is left",
        temporary=True,
    )
