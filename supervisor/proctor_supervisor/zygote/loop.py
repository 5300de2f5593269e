"""The zygote's event loop: messages from the owner, deadlines, deaths, and the ladder of each stop.

Owns the table of children; what is known of each is in `child`. One thread, one epoll set, no call that blocks. When
the owner's socket ends, the owner is gone: every tree is killed and this process exits.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from math import inf

from proctor_supervisor import messages
from proctor_supervisor.deadman import Watch
from proctor_supervisor.ladder import Action, Ladder
from proctor_supervisor.platform import linux
from proctor_supervisor.reasons import StopReason
from proctor_supervisor.zygote import forking, stacks, trees
from proctor_supervisor.zygote.child import Child, policy_of

_MEMORY_CHECK_SECONDS = 0.025
_LOOK_SECONDS = 0.0002
"""How often to look for the end of a stack dump; to be woken by each of its hundred small writes would delay it."""
_WAIT_MOST_SECONDS = 3600.0


class Zygote:
    """The supervisor process behind `control`, its datagram socket to the process `owner`."""

    def __init__(self, control: socket.socket, nursery: forking.Nursery, *, owner: int) -> None:
        self._control = control
        self._owner = owner
        self._nursery = nursery
        self._bottom = nursery.bottom.encode()
        self._pid = os.getpid()
        self._children: dict[int, Child] = {}
        self._by_pid: dict[int, Child] = {}  # those that are not reaped yet
        self._buffer = memoryview(bytearray(messages.SIZE_LIMIT))
        self._own = linux.OwnChildren()
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], object]] = {}
        self._owner_is_gone = False
        self._owner_pidfd = -1
        self._awaits_room = False
        self._memory_check_at = 0.0
        self._kept: set[int] = set()
        self._oom_kills = linux.oom_kills()

    def run(self) -> None:
        """Serve until the owner is gone and every tree below this process is, too."""
        wakeup = self._watch_children()
        self._read_on(self._control.fileno(), self._read_control)
        self._read_on(wakeup, lambda: self._reap(wakeup))
        self._watch_owner()
        while not (self._owner_is_gone and not self._children):
            for descriptor, _ in self._wait(self._enforce()):
                reader = self._readers.get(descriptor)
                if reader is not None:
                    reader()

    def _wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Wait for a message, a death or a dump, at most `seconds`, and give what is readable."""
        if seconds is None:
            return self._epoll.poll()
        select.select([self._epoll], (), (), seconds)  # epoll itself would round up to a whole millisecond
        return self._epoll.poll(0)

    @staticmethod
    def _watch_children() -> int:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only the wake-up matters
        return read

    def _read_on(self, descriptor: int, reader: Callable[[], object]) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._readers[descriptor] = reader

    def _read_no_more(self, descriptor: int) -> None:
        del self._readers[descriptor]
        self._epoll.unregister(descriptor)

    # -- the owner ------------------------------------------------------------------------------------------

    def _watch_owner(self) -> None:
        """See the owner's death also where a fork of the owner holds the other end of the control socket open."""
        try:
            self._owner_pidfd = os.pidfd_open(self._owner)
        except ProcessLookupError:
            self._lose_owner()
            return
        self._read_on(self._owner_pidfd, self._lose_owner)
        if os.getppid() != self._owner:  # it had died before, and the number may be another process's by now
            self._lose_owner()

    def _read_control(self) -> None:
        """Take one message; if there are more, the next round finds them."""
        if self._outbox:
            self._flush()
        try:
            size = self._control.recv_into(self._buffer)
        except BlockingIOError:
            return  # there was only room to write
        except OSError:
            size = 0
        if size:
            self._obey(messages.decode(self._buffer[:size]))
        else:
            self._lose_owner()

    def _obey(self, message: messages.Message) -> None:
        match message:
            case messages.Fork(child=number):
                self._fork(number)
            case messages.Arm():
                self._arm(message)
            case messages.Authority(child=number, authority_at=at):
                child = self._children.get(number)
                if child is not None and child.watch is not None:
                    child.watch = child.watch._replace(authority_at=at)
            case messages.Disarm(child=number):
                child = self._children.get(number)
                if child is not None:
                    child.watch, child.memory_bytes = None, 0
            case messages.Ping():
                self._send(messages.Pong())
            case messages.Stop():
                child = self._children.get(message.child)
                if child is not None:
                    self._obey_stop(child, message)
            case _:
                raise AssertionError(f"the owner never sends {type(message).__name__}")

    def _arm(self, order: messages.Arm) -> None:
        child = self._children.get(order.child)
        if child is None or child.ladder is not None:
            return  # it died or is being stopped for an earlier attempt; its settlement is on the way back
        child.attempt = order.attempt
        child.policy = policy_of(order)
        child.memory_bytes = order.memory_bytes
        child.keep_descendants = order.keep_descendants
        child.watch = Watch(
            order.started_at, order.attempt_at, order.total_at, order.authority_at, order.heartbeat_timeout
        )

    def _obey_stop(self, child: Child, order: messages.Stop) -> None:
        if child.ladder is None:
            child.attempt = order.attempt
            child.policy = policy_of(order)
        self._stop(child, StopReason(order.reason), order.detail, at_once=order.at_once)

    def _lose_owner(self) -> None:
        if self._owner_is_gone:
            return
        self._owner_is_gone = True
        if self._owner_pidfd >= 0:
            self._read_no_more(self._owner_pidfd)
            os.close(self._owner_pidfd)
        self._read_no_more(self._control.fileno())
        self._drop_outbox()
        for child in list(self._children.values()):
            self._stop(child, StopReason.OWNER_DEATH, "the owner is gone, or its control socket ended")

    def _send(self, message: messages.Message, descriptors: list[int] | None = None) -> None:
        """Queue a message; descriptors are closed here once they are on their way, or the owner is gone."""
        if self._owner_is_gone:
            _close_all(descriptors or [])
            return
        self._outbox.append((messages.encode(message), descriptors or []))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            datagram, descriptors = self._outbox[0]
            try:
                if descriptors:
                    passed = struct.pack(f"{len(descriptors)}i", *descriptors)
                    self._control.sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
                else:
                    self._control.send(datagram)
            except BlockingIOError:
                break
            except OSError:
                # The owner is gone; the end of its socket is read next, and everything is killed there.
                self._drop_outbox()
                return
            self._outbox.popleft()
            _close_all(descriptors)
        if self._awaits_room != bool(self._outbox) and not self._owner_is_gone:
            self._awaits_room = bool(self._outbox)
            events = select.EPOLLIN | (select.EPOLLOUT if self._awaits_room else 0)
            self._epoll.modify(self._control.fileno(), events)

    def _drop_outbox(self) -> None:
        for _, descriptors in self._outbox:
            _close_all(descriptors)
        self._outbox.clear()

    def _fork(self, number: int) -> None:
        try:
            born = forking.start_child(self._nursery, self._pid)
        except OSError as exc:
            self._send(messages.ForkFailed(number, f"{exc.strerror or exc} (fork of a child)"))
            return
        child = Child(number, born.pid, born.board, born.dump)
        self._children[number] = self._by_pid[born.pid] = child
        self._send(messages.Forked(number, born.pid), born.for_owner)

    # -- deadlines and stops --------------------------------------------------------------------------------

    def _enforce(self) -> float | None:
        """Do all that is due, and give the seconds until something will be; None when nothing is in sight."""
        now = time.monotonic()
        earliest = inf
        watched = False
        for child in list(self._children.values()):
            if child.exit is not None:
                if child.reported_unconfirmed:
                    continue
                if now >= child.settle_by:
                    self._report_unconfirmed(child)
                else:
                    earliest = min(earliest, child.settle_by)
                continue
            while child.watch is not None:
                due = child.watch.first_due(child.board.last_beat, now)
                if due is None:
                    break
                if due[0] > now:
                    earliest = min(earliest, due[0])
                    break
                self._stop(child, due[1], "")  # leaves only the end of authority to watch for, or nothing
            self._read_dump(child, now)
            while child.ladder is not None and now >= child.ladder.wakes_at:
                self._take(child, *child.ladder.advance(now))
            if child.capture is not None:  # also one that was begun just now
                earliest = min(earliest, now + _LOOK_SECONDS)
            if child.ladder is not None:
                earliest = min(earliest, child.ladder.wakes_at)
            elif child.memory_bytes:
                watched = True
        if watched:
            if now >= self._memory_check_at:
                self._check_memory()
                self._memory_check_at = time.monotonic() + _MEMORY_CHECK_SECONDS
            earliest = min(earliest, self._memory_check_at)
        if earliest == inf:
            return None
        # No call waits longer than some weeks; to wake up now and then for a farther deadline costs nothing.
        return min(max(0.0, earliest - time.monotonic()), _WAIT_MOST_SECONDS)

    def _check_memory(self) -> None:
        for child in list(self._children.values()):
            if not child.memory_bytes or child.ladder is not None or child.exit is not None:
                continue
            resident = sum(linux.resident_bytes(pid) for pid in (child.pid, *linux.below(child.pid)))
            if resident > child.memory_bytes:
                text = f"{resident} bytes resident, over the limit of {child.memory_bytes} bytes"
                self._stop(child, StopReason.MEMORY, text, at_once=True)

    def _stop(self, child: Child, reason: StopReason, detail: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if child.exit is not None:
            return
        if child.ladder is None:
            stat = linux.read_stat(child.pid)
            child.started_at = stat.started_at if stat is not None else 0
            at_once = at_once or child.board.begun != child.attempt  # a handler that has not begun needs no notice
            self._take(child, *Ladder.begin(reason, detail, child.policy, now, at_once=at_once))
            if child.watch is not None:  # of all deadlines only the end of authority can still hasten the stop
                child.watch = Watch(child.watch.started_at, authority_at=child.watch.authority_at)
        elif reason.is_immediate or at_once:
            self._take(child, *child.ladder.grace_ended(now))
        if reason.is_immediate:
            child.watch = None  # nothing graver can come

    def _take(self, child: Child, ladder: Ladder, actions: tuple[Action, ...]) -> None:
        steps_before = len(child.ladder.steps) if child.ladder is not None else 0
        child.ladder = ladder
        for action in actions:
            match action:
                case Action.NOTICE:
                    child.board.post_stop(ladder.reason)
                case Action.CAPTURE:
                    child.capture = stacks.StackCapture(child.pid, child.dump, self._bottom)
                case Action.RAISE:
                    self._end_capture(child)
                    child.board.post_stop(ladder.reason)
                    stacks.raise_in_handler(child.pid)
                case Action.KILL:
                    self._end_capture(child)
                    child.victims.add(trees.kill_tree(child.pid))
                case Action.REPORT_UNCONFIRMED:
                    self._report_unconfirmed(child)
        for step in ladder.steps[steps_before:]:
            self._send(messages.Stepped(child.number, step.at, step.step))

    def _read_dump(self, child: Child, now: float) -> None:
        if child.capture is not None and child.capture.look() and child.ladder is not None:
            self._take(child, *child.ladder.captured(now))

    def _end_capture(self, child: Child) -> None:
        if child.capture is not None:
            child.capture.look()
            child.stack = child.capture.text or child.stack
            child.capture = None

    def _report_unconfirmed(self, child: Child) -> None:
        child.reported_unconfirmed = True
        self._send(messages.Unconfirmed(child.number, child.pid))

    # -- deaths ---------------------------------------------------------------------------------------------

    def _reap(self, wakeup: int) -> None:
        os.read(wakeup, 4096)  # if there is more, the next round reads it
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                continue  # a handler made this process its tracer; that it stands still is no end
            self._kept.discard(pid)
            child = self._by_pid.pop(pid, None)
            if child is not None:
                self._end_capture(child)
                child.exit = (status, usage)
                child.settle_by = time.monotonic() + child.policy.kill_budget
        self._settle()

    def _settle(self) -> None:
        """Report each dead child below whose former place nothing lives any more."""
        dead = [child for child in self._children.values() if child.exit is not None]
        if not dead:
            return
        for child in dead:
            if child.keep_descendants and child.ladder is None:
                # The list is a claim: it may name what is the child's own only.
                orphans = trees.orphaned_here(self._own.look(), self._by_pid.__contains__)
                child.kept = sorted(orphans.intersection(child.board.kept))
                self._kept.update(child.kept)
        over = [child for child in dead if child.victims.have_ended()]
        # Whoever is a child of this process, and was not forked here, was orphaned by a child that is gone.
        strays = trees.kill_strays(
            self._own.look(),
            lambda pid: (
                pid in self._by_pid or pid in self._kept or any(child.victims.wait_for(pid) for child in dead)
            ),  # the end of one that is waited for wakes this process again
        )
        for child in dead:
            child.victims.add(strays)
        if not strays:
            for child in over:
                self._report_settled(child)

    def _oom_killed_since(self) -> bool:
        """Whether the kernel killed for memory since the last unexplained SIGKILL; one such kill explains one death."""
        before, self._oom_kills = self._oom_kills, linux.oom_kills()
        return self._oom_kills > before

    def _report_settled(self, child: Child) -> None:
        self._send(child.settled(oom_killed=self._oom_killed_since))
        del self._children[child.number]
        os.close(child.dump)
        child.board.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
