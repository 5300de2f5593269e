"""`open_supervisor` and `Supervisor.run`: slots, standby children, and the way of one attempt through them.

Owns capacity: a slot is given back when the child's processes are proven gone, and never before. Leaves the race
between result and stop to `settling`, pipes to `streams`, and the supervisor process to `link`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from proctor_supervisor.errors import StartRefused, StopUnconfirmed, SupervisorClosed, TaskRefused
from proctor_supervisor.options import SupervisorOptions, Task
from proctor_supervisor.outcome import Failed, FailureInfo, Outcome, Step, StopReason
from proctor_supervisor.owner import settling
from proctor_supervisor.owner.control import AttemptControl
from proctor_supervisor.owner.events import EventHub, EventKind, EventStream
from proctor_supervisor.owner.exchange import Exchange
from proctor_supervisor.owner.link import Child, Link
from proctor_supervisor.owner.orders import Orders
from proctor_supervisor.owner.sending import Parcel, pack_task
from proctor_supervisor.owner.streams import Heartbeat, OutputLine, Streams
from proctor_supervisor.platform import require_supported

_log = logging.getLogger("proctor_supervisor")
_STEP_EVENTS: dict[Step, EventKind] = {Step.NOTICE: "notice", Step.RAISE: "raised", Step.KILL: "killed"}
_CALM_SECONDS = 10.0
_DISPATCHES = 3
"""How many children may die under an attempt before they begin it."""
_PROOF_MARGIN = 5.0
"""Seconds beyond the whole stop budget after which a silent supervisor process counts as broken."""


class _NoChild(Exception):
    """No child could be forked."""


class _Waiter:
    """A task that waits for a child: it gets one, or the reason why not."""

    __slots__ = ("child", "error", "ready")

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.child: Child | None = None
        self.error: str | None = None


@asynccontextmanager
async def open_supervisor(options: SupervisorOptions | None = None) -> AsyncIterator[Supervisor]:
    """Open a supervisor; on leaving, every attempt is stopped with proof and the supervisor process is gone.

    Raises UnsupportedPlatform, StartRefused, and on leaving StopUnconfirmed when a child could not be proven gone.
    """
    require_supported()
    supervisor = Supervisor(options or SupervisorOptions())
    failure: BaseException | None = None
    try:
        first = await supervisor._start_link()
        # A cancellation from outside reaches the caller's block only: these go on until the last stop is proven.
        serving, reading = trio.CancelScope(shield=True), trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_in, serving, supervisor._serve, first)
            nursery.start_soon(_run_in, reading, supervisor._streams.run)
            try:
                yield supervisor
            except BaseException as exc:  # noqa: BLE001 - raised again below, outside the nursery that would wrap it
                failure = exc
            with trio.CancelScope(shield=True):
                await supervisor._close()
            serving.cancel()
            reading.cancel()
    except BaseExceptionGroup as group:
        # Only the restart of the supervisor process can fail in there, and only once.
        raise group.exceptions[0] from group
    finally:
        supervisor._streams.close()
    if failure is not None:
        raise failure
    supervisor._raise_if_unconfirmed()


async def _run_in(scope: trio.CancelScope, function: Callable[..., Awaitable[None]], *args: object) -> None:
    with scope:
        await function(*args)


class Supervisor:
    """Runs attempts in children of a supervisor process. Made by `open_supervisor`."""

    def __init__(self, options: SupervisorOptions) -> None:
        self._options = options
        self._slots = trio.CapacityLimiter(options.children)
        self._streams = Streams()
        self._idle: deque[Child] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._running: dict[Child, AttemptControl] = {}
        self._hub = EventHub()
        self._exec_children = False
        self._unsafe_module: str | None = None
        self._serial = 0
        self._forking = 0
        self._standby_least = self._standby = min(options.standby, options.children)
        self._standby_changed_at = 0.0
        self._link: Link | None = None
        self._link_changed = trio.Event()
        self._closing = False
        self._closed = trio.Event()

    @property
    def pid(self) -> int | None:
        """The process id of the supervisor process; None while it is being started again."""
        return self._link.pid if self._link is not None else None

    @contextmanager
    def events(self, *, limit: int = 1000) -> Iterator[EventStream]:
        """Subscribe to what happens here: ``with supervisor.events() as stream: async for event in stream``.

        At most `limit` events wait for the reader; when there are more the oldest are dropped and counted.
        """
        with self._hub.subscribe(limit) as stream:
            yield stream

    @property
    def forks(self) -> bool:
        """Whether children are forked from the preloaded supervisor process; False where that is unsafe."""
        return not self._exec_children

    @property
    def unsafe_module(self) -> str | None:
        """The preloaded module that made forking unsafe; None where children are forked."""
        return self._unsafe_module

    @property
    def running(self) -> int:
        """How many slots are taken, by attempts and by children that are not proven gone."""
        return self._slots.borrowed_tokens

    async def run(
        self,
        task: Task,
        *,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
        on_output: Callable[[OutputLine], None] | None = None,
        control: AttemptControl | None = None,
    ) -> Outcome:
        """Run one attempt and give its outcome: when its processes are gone, or when it returned in a reused child.

        Waits for a free slot first. The callbacks are called in this program's loop and must return at once. Of lines
        that come by the hundred thousand a second `on_output` gets a part, and how many were left out.
        Cancelling the caller stops the attempt (reason ``cancelled``), waits for the proof, and then lets the
        cancellation go on.

        Raises TaskRefused before anything is sent, SupervisorClosed, StopUnconfirmed when the child cannot be proven
        gone (its slot stays taken then), and whatever a callback raised: the attempt is killed then.
        """
        limits = task.limits or self._options.limits
        try:
            parcel = pack_task(task, limits=limits, limit=self._options.max_payload_bytes)
        except TaskRefused as exc:
            self._hub.tell("refused", task.attempt_id, why=str(exc))
            raise
        control = control if control is not None else AttemptControl()
        for _ in range(_DISPATCHES):
            slot = object()
            try:
                self._slots.acquire_on_behalf_of_nowait(slot)
            except trio.WouldBlock:
                await self._slots.acquire_on_behalf_of(slot)
            try:
                child = await self._take_child()
            except _NoChild as exc:
                self._slots.release_on_behalf_of(slot)
                return _start_failed(f"no child could be started: {exc}")
            except BaseException:
                self._slots.release_on_behalf_of(slot)
                raise
            child.slot = slot
            try:
                outcome = await self._attempt(child, task, parcel, on_heartbeat, on_output, control)
            finally:
                if child.is_gone:
                    self._discard(child)
            if outcome is not None:
                self._tell_outcome(task.attempt_id, outcome)
                return outcome
        return _start_failed(f"{_DISPATCHES} children died before they began the attempt")

    # -- one attempt ----------------------------------------------------------------------------------------

    async def _attempt(
        self,
        child: Child,
        task: Task,
        parcel: Parcel,
        on_heartbeat: Callable[[Heartbeat], None] | None,
        on_output: Callable[[OutputLine], None] | None,
        control: AttemptControl,
    ) -> Outcome | None:
        """Run `task` on `child`; None when the child died before anything of the task ran."""
        assert self._link is not None
        self._serial += 1
        serial = self._serial
        child.attempts += 1
        policy = task.stop or self._options.stop
        limits = task.limits or self._options.limits
        orders = Orders(
            self._link, child, serial, task.deadlines, policy,
            memory_bytes=limits.memory_bytes, keep_descendants=task.descendants == "keep",
        )  # fmt: skip
        exchange = Exchange(
            child, serial, self._options, task.attempt_id, on_heartbeat, on_output,
            on_breach=lambda why: orders.stop(StopReason.CANCELLED, why, at_once=True),
            on_beat=lambda: self._hub.tell("heartbeat", task.attempt_id, child.pid),
        )  # fmt: skip
        last = self._options.isolation == "fresh" or child.attempts >= self._options.attempts_per_child
        self._running[child] = control
        child.attempt_id = task.attempt_id
        orders.take_up(control)
        exchange.begin()
        self._hub.tell("started", task.attempt_id, child.pid)
        try:
            if control.stop_requested is None and not orders.are_overdue:
                await exchange.send(parcel.body(serial), last=last)
            await exchange.receive()
            stays = exchange.returned and control.stop_requested is None and not child.ended.is_set()
            if stays and orders.leave():
                self._streams.read_all()  # what the attempt still said, by one call for all pipes
                self._give_back(child)
                return exchange.conclude(asked=None)
            self._refill()
            if exchange.delivery is not None:
                child.let_go()
            await child.ended.wait()
        except BaseException:
            control.request_stop(StopReason.CANCELLED, "the task that awaited the attempt was cancelled")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + policy.total + _PROOF_MARGIN):
                await child.ended.wait()
            if not child.is_gone:
                raise self._unconfirmed(child) from None
            raise
        finally:
            control.release()
            exchange.end()
        if not child.is_gone:
            raise self._unconfirmed(child)
        if exchange.delivery is None and not settling.has_begun(serial, child.settlement):
            return None
        return exchange.conclude(asked=control.stop_requested)

    def _unconfirmed(self, child: Child) -> StopUnconfirmed:
        return StopUnconfirmed(
            f"child {child.pid} was killed but is not proven gone; its slot stays taken. Look at "
            f"/proc/{child.pid}/status: a process in state D waits for a device or a file system.",
            pid=child.pid,
        )

    # -- children -------------------------------------------------------------------------------------------

    async def _take_child(self) -> Child:
        while True:
            if self._closing:
                raise SupervisorClosed("the supervisor is closing; no new attempt can start")
            if self._link is None:
                await self._link_changed.wait()
                continue
            while self._idle:
                child = self._idle.pop()  # the one used last is the warmest
                if not child.ended.is_set():
                    return child
            self._note_miss()
            waiter = _Waiter()
            self._waiters.append(waiter)
            if self._forking < len(self._waiters):
                self._fork()
            try:
                await waiter.ready.wait()
            except trio.Cancelled:
                if waiter.child is not None:
                    self._idle.append(waiter.child)
                else:
                    self._waiters.remove(waiter)
                raise
            if waiter.error is not None:
                raise _NoChild(waiter.error)
            if waiter.child is not None and not waiter.child.ended.is_set():
                return waiter.child

    def _refill(self) -> None:
        """Ask for standby children, after a reply rather than before it: a fork competes for the same cores."""
        if self._link is not None and not self._closing:
            self._note_calm()
            for _ in range(self._standby - len(self._idle) - self._forking):
                self._fork()

    def _note_miss(self) -> None:
        """An attempt found no standby child: keep one more ahead, up to the number of slots."""
        self._standby = min(self._standby + 1, self._options.children)
        self._standby_changed_at = trio.current_time()

    def _note_calm(self) -> None:
        """After a while without a miss keep one less ahead, down to what was asked for."""
        if trio.current_time() - self._standby_changed_at > _CALM_SECONDS and self._standby > self._standby_least:
            self._standby -= 1
            self._standby_changed_at = trio.current_time()

    def _fork(self) -> None:
        assert self._link is not None
        self._forking += 1
        self._link.fork()

    def _idle_most(self) -> int:
        return self._options.children if self._options.isolation == "reuse" else max(1, self._standby)

    def _give_back(self, child: Child) -> None:
        """Take back the slot of a reused child that stays, and offer the child to the next attempt."""
        del self._running[child]
        self._slots.release_on_behalf_of(child.slot)
        child.slot = None
        self._offer(child)

    def _offer(self, child: Child) -> None:
        if self._waiters:
            waiter = self._waiters.popleft()
            waiter.child = child
            waiter.ready.set()
        elif self._closing:
            child.let_go()
        else:
            self._idle.append(child)
            if len(self._idle) > self._idle_most():
                self._idle.popleft().let_go()

    def _discard(self, child: Child) -> None:
        self._streams.remove_child(child)
        child.close()

    def on_forked(self, child: Child) -> None:
        """Take in a standby child (for `link`)."""
        self._forking -= 1
        self._streams.add_child(child)
        self._offer(child)

    def on_fork_failed(self, error: str) -> None:
        """Tell whoever waited that there is no child (for `link`)."""
        self._forking -= 1
        if self._waiters:
            waiter = self._waiters.popleft()
            waiter.error = error
            waiter.ready.set()

    def on_ended(self, child: Child) -> None:
        """Give the slot back: the child is proven gone (for `link`)."""
        if self._running.pop(child, None) is not None:
            self._slots.release_on_behalf_of(child.slot)
            if child.unconfirmed:
                self._discard(child)  # proven after all, when nobody waits any more
        else:
            if child in self._idle:
                self._idle.remove(child)
            child.ended.set()
            self._discard(child)

    def on_stepped(self, child: Child, step: Step) -> None:
        """Hand a ladder step on (for `link`)."""
        self._hub.tell(_STEP_EVENTS[step], child.attempt_id, child.pid)

    def _tell_outcome(self, attempt_id: str, outcome: Outcome) -> None:
        if outcome.descendants:
            pids = [below.pid for below in outcome.descendants]
            self._hub.tell("descendants", attempt_id, outcome.pid, pids=pids)
        self._hub.tell("reaped", attempt_id, outcome.pid, outcome=type(outcome).__name__, duration=outcome.duration)

    def on_unconfirmed(self, child: Child) -> None:
        """Keep the slot: the child may still live (for `link`)."""

    # -- the supervisor process -----------------------------------------------------------------------------

    async def _start_link(self) -> Link:
        try:
            link = await Link.start(self._options, self, exec_children=self._exec_children)
        except StartRefused as refused:
            if not refused.unsafe or self._options.strict:
                raise
            _log.warning("%s Children are started by exec from now on, which costs more.", refused)
            self._exec_children = True
            self._unsafe_module = refused.module
            link = await Link.start(self._options, self, exec_children=True)
        self._link = link
        self._link_changed.set()
        self._refill()
        return link

    async def _serve(self, link: Link) -> None:
        """Serve `link`, and the next process whenever one dies, until closing."""
        while True:
            try:
                await link.serve()
            finally:
                self._link = None
                self._link_changed = trio.Event()
                self._idle.clear()
                self._forking = 0
                self._send_waiters_back()
                with trio.CancelScope(shield=True):
                    await link.close()
            if self._closing:
                break
            link = await self._start_link()
            self._hub.tell("restarted", pid=link.pid)
        self._closed.set()

    def _send_waiters_back(self) -> None:
        while self._waiters:
            self._waiters.popleft().ready.set()  # neither child nor error: it tries again with the next process

    async def _close(self) -> None:
        self._closing = True
        for control in list(self._running.values()):
            control.request_stop(StopReason.SHUTDOWN, "the supervisor is closing")
        with trio.move_on_after(self._options.stop.total + _PROOF_MARGIN):
            for child in list(self._running):
                await child.ended.wait()
        if self._link is not None:
            self._link.hang_up()
            with trio.move_on_after(self._options.stop.total + _PROOF_MARGIN):
                await self._closed.wait()
        self._link_changed.set()

    def _raise_if_unconfirmed(self) -> None:
        for child in self._running:
            raise self._unconfirmed(child)


def _start_failed(text: str) -> Failed:
    info = FailureInfo("StartFailed", "proctor_supervisor", text)
    return Failed(failure=info, kind="start_failed", pid=0, duration=0.0)
