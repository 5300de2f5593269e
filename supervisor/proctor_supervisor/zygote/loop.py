"""The zygote's event loop: messages from the owner, deadlines, deaths, and the ladder of each stop.

Owns the table of children. One thread, one selector, no call that blocks. When the owner's socket ends, the owner is
gone: every tree is killed and this process exits.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from proctor_supervisor import messages
from proctor_supervisor.board import Board
from proctor_supervisor.deadman import Watch
from proctor_supervisor.ladder import Action, Ladder
from proctor_supervisor.options import StopPolicy
from proctor_supervisor.outcome import StopReason
from proctor_supervisor.platform import linux
from proctor_supervisor.zygote import forking, stacks, trees

_MEMORY_CHECK_SECONDS = 0.025
_WAIT_MOST_SECONDS = 3600.0
_DESCENDANTS_TOLD = 500
"""Most killed descendants that are named; all are counted. A message has a bound, a fork bomb has none."""
_GRACELESS = StopPolicy(notice_grace=0, raise_grace=0, stack_budget=0)


@dataclass(slots=True)
class _Child:
    """One child from fork to settlement."""

    number: int
    pid: int
    board: Board
    dump: int
    attempt: int = 0
    watch: Watch | None = None
    memory_bytes: int | None = None
    keep_descendants: bool = False
    policy: StopPolicy = _GRACELESS
    ladder: Ladder | None = None
    capture: stacks.StackCapture | None = None
    stack: str = ""
    started_at: int = 0
    victims: trees.Victims = field(default_factory=trees.Victims)
    kept: list[int] = field(default_factory=list)
    exit: tuple[int, Any] | None = None  # wait status and rusage, once reaped
    settle_by: float = math.inf
    reported_unconfirmed: bool = False


class Zygote:
    """The supervisor process behind `control`, its datagram socket to the owner."""

    def __init__(self, control: socket.socket, nursery: forking.Nursery) -> None:
        self._control = control
        self._nursery = nursery
        self._bottom = nursery.bottom.encode()
        self._children: dict[int, _Child] = {}
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._selector = selectors.DefaultSelector()
        self._owner_is_gone = False
        self._memory_check_at = 0.0
        self._kept: set[int] = set()
        self._oom_kills = linux.oom_kills()

    def run(self) -> None:
        """Serve until the owner is gone and every tree below this process is, too."""
        wakeup = self._watch_children()
        self._selector.register(self._control, selectors.EVENT_READ, self._read_control)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._reap(wakeup))
        while not (self._owner_is_gone and not self._children):
            for key, _ in self._selector.select(self._wait_seconds()):
                key.data()
            self._enforce(time.monotonic())

    @staticmethod
    def _watch_children() -> int:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only the wake-up matters
        return read

    # -- the owner ------------------------------------------------------------------------------------------

    def _read_control(self) -> None:
        self._flush()
        while True:
            try:
                datagram = self._control.recv(messages.SIZE_LIMIT)
            except BlockingIOError:
                return
            except OSError:
                datagram = b""
            if not datagram:
                self._lose_owner()
                return
            self._obey(messages.decode(datagram))

    def _obey(self, message: messages.Message) -> None:
        match message:
            case messages.Fork(child=number):
                self._fork(number)
            case messages.Arm():
                self._arm(message)
            case messages.Authority(child=number, authority_at=at):
                child = self._children.get(number)
                if child is not None and child.watch is not None:
                    watch = child.watch
                    child.watch = Watch(watch.started_at, watch.attempt_at, watch.total_at, at, watch.heartbeat_timeout)
            case messages.Disarm(child=number):
                child = self._children.get(number)
                if child is not None:
                    child.watch = child.memory_bytes = None
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
        child.policy = _policy(order)
        child.memory_bytes = order.memory_bytes
        child.keep_descendants = order.keep_descendants
        child.watch = Watch(
            order.started_at, order.attempt_at, order.total_at, order.authority_at, order.heartbeat_timeout
        )

    def _obey_stop(self, child: _Child, order: messages.Stop) -> None:
        if child.ladder is None:
            child.attempt = order.attempt
            child.policy = _policy(order)
        self._stop(child, StopReason(order.reason), order.detail, at_once=order.at_once)

    def _lose_owner(self) -> None:
        self._owner_is_gone = True
        self._selector.unregister(self._control)
        self._drop_outbox()
        for child in list(self._children.values()):
            self._stop(child, StopReason.OWNER_DEATH, "the owner's control socket ended")

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
                socket.send_fds(self._control, [datagram], descriptors)
            except BlockingIOError:
                break
            except OSError:
                # The owner is gone; the end of its socket is read next, and everything is killed there.
                self._drop_outbox()
                return
            self._outbox.popleft()
            _close_all(descriptors)
        if not self._owner_is_gone:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            with contextlib.suppress(KeyError):
                if self._selector.get_key(self._control).events != events:
                    self._selector.modify(self._control, events, self._read_control)

    def _drop_outbox(self) -> None:
        for _, descriptors in self._outbox:
            _close_all(descriptors)
        self._outbox.clear()

    def _fork(self, number: int) -> None:
        try:
            born = forking.start_child(self._nursery)
        except OSError as exc:
            self._send(messages.ForkFailed(number, f"{exc.strerror or exc} (fork of a child)"))
            return
        self._children[number] = _Child(number, born.pid, born.board, born.dump)
        self._send(messages.Forked(number, born.pid), born.for_owner)

    # -- deadlines and stops --------------------------------------------------------------------------------

    def _wait_seconds(self) -> float | None:
        now = time.monotonic()
        earliest = math.inf
        for child in self._children.values():
            if child.exit is not None:
                earliest = min(earliest, child.settle_by)
                continue
            if child.ladder is not None:
                earliest = min(earliest, child.ladder.wakes_at)
            if child.memory_bytes is not None and child.ladder is None:
                earliest = min(earliest, self._memory_check_at)
            due = child.watch.first_due(child.board.last_beat, now) if child.watch is not None else None
            if due is not None and (child.ladder is None or due[1] is StopReason.AUTHORITY_LOST):
                earliest = min(earliest, due[0])
        # A selector takes no more than some weeks; to wake up now and then for a farther deadline costs nothing.
        return None if earliest == math.inf else min(max(0.0, earliest - now), _WAIT_MOST_SECONDS)

    def _enforce(self, now: float) -> None:
        if now >= self._memory_check_at:
            self._check_memory()
            self._memory_check_at = time.monotonic() + _MEMORY_CHECK_SECONDS
        for child in list(self._children.values()):
            if child.exit is not None:
                if now >= child.settle_by and not child.reported_unconfirmed:
                    self._report_unconfirmed(child)
                continue
            due = child.watch.first_due(child.board.last_beat, now) if child.watch is not None else None
            if due is not None and due[0] <= now:
                self._stop(child, due[1], "")
            if child.ladder is not None and now >= child.ladder.wakes_at:
                self._take(child, *child.ladder.advance(now))

    def _check_memory(self) -> None:
        for child in list(self._children.values()):
            if child.memory_bytes is None or child.ladder is not None or child.exit is not None:
                continue
            resident = sum(linux.resident_bytes(pid) for pid in (child.pid, *linux.below(child.pid)))
            if resident > child.memory_bytes:
                text = f"{resident} bytes resident, over the limit of {child.memory_bytes} bytes"
                self._stop(child, StopReason.MEMORY, text, at_once=True)

    def _stop(self, child: _Child, reason: StopReason, detail: str, *, at_once: bool = False) -> None:
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

    def _take(self, child: _Child, ladder: Ladder, actions: tuple[Action, ...]) -> None:
        steps_before = len(child.ladder.steps) if child.ladder is not None else 0
        child.ladder = ladder
        for action in actions:
            match action:
                case Action.NOTICE:
                    child.board.post_stop(ladder.reason)
                case Action.CAPTURE:
                    child.capture = stacks.StackCapture(child.pid, child.dump, self._bottom)
                    self._selector.register(child.dump, selectors.EVENT_READ, lambda: self._read_dump(child))
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
            self._send(messages.Stepped(child.number, step.step, step.at))

    def _read_dump(self, child: _Child) -> None:
        if child.capture is not None and child.capture.on_readable() and child.ladder is not None:
            self._take(child, *child.ladder.captured(time.monotonic()))

    def _end_capture(self, child: _Child) -> None:
        if child.capture is not None:
            child.capture.on_readable()
            child.stack = child.capture.text or child.stack
            child.capture = None
            self._selector.unregister(child.dump)

    def _report_unconfirmed(self, child: _Child) -> None:
        child.reported_unconfirmed = True
        self._send(messages.Unconfirmed(child.number, child.pid))

    # -- deaths ---------------------------------------------------------------------------------------------

    def _reap(self, wakeup: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(wakeup, 4096):
                pass
        by_pid = {child.pid: child for child in self._children.values()}
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
            child = by_pid.get(pid)
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
        living = {child.pid for child in self._children.values() if child.exit is None}
        for child in dead:
            if child.keep_descendants and child.ladder is None:
                # The list is a claim: it may name what is the child's own only.
                child.kept = sorted(trees.orphaned_here(living.__contains__).intersection(child.board.kept))
                self._kept.update(child.kept)
        over = [child for child in dead if child.victims.have_ended()]
        spared = living | self._kept
        strays = trees.kill_strays(
            lambda pid: pid in spared or any(child.victims.wait_for(pid) for child in dead)  # their end wakes us again
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

    def _report_settled(self, child: _Child) -> None:
        assert child.exit is not None
        status, usage = child.exit
        exit_code, by_signal = stacks.killed_by(status)
        ladder = child.ladder
        stop = None
        if ladder is not None:
            stop = {
                "attempt": child.attempt,
                "reason": ladder.reason,
                "detail": ladder.detail,
                "begun_at": ladder.begun_at,
                "steps": [[step.step, step.at] for step in ladder.steps],
                "stack": child.stack,
                "started_at": child.started_at,
            }
        ours = ladder is not None and (
            ladder.killing if by_signal == stacks.DEATH_BY_US else by_signal in stacks.STEP_SIGNALS
        )
        self._send(
            messages.Settled(
                child=child.number,
                exit_code=exit_code,
                signal=by_signal,
                sent_by_us=ours,
                begun=child.board.begun,
                beats=child.board.beats,
                dropped=child.board.dropped,
                user_seconds=usage.ru_utime,
                system_seconds=usage.ru_stime,
                max_rss_bytes=usage.ru_maxrss * 1024,
                settled_at=time.monotonic(),
                oom_suspected=by_signal == stacks.DEATH_BY_US and not ours and self._oom_killed_since(),
                kept=child.kept,
                descendants=[[one.pid, one.started_at] for one in islice(child.victims.everyone, _DESCENDANTS_TOLD)],
                descendants_count=len(child.victims.everyone),
                stop=stop,
            )
        )
        del self._children[child.number]
        os.close(child.dump)
        child.board.close()


def _policy(order: messages.Arm | messages.Stop) -> StopPolicy:
    return StopPolicy(
        notice_grace=order.notice_grace,
        raise_grace=order.raise_grace,
        stack_budget=order.stack_budget,
        kill_budget=order.kill_budget,
    )


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
