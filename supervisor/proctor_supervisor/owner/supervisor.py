"""`open_supervisor` and `Supervisor.run`: the way of one attempt through a child, and the end of them all.

Leaves slots and standby children to `pool`, the race between result and stop to `settling`, the bytes to `exchange`
and `streams`, and the supervisor process to `link`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from proctor_supervisor import frames
from proctor_supervisor.errors import StartRefused, StopUnconfirmed, TaskRefused
from proctor_supervisor.options import SupervisorOptions, Task
from proctor_supervisor.outcome import Failed, FailureInfo, Outcome, Step, StopReason
from proctor_supervisor.owner import settling
from proctor_supervisor.owner.child import Child
from proctor_supervisor.owner.control import AttemptControl
from proctor_supervisor.owner.events import EventHub, EventKind, EventStream
from proctor_supervisor.owner.exchange import Exchange
from proctor_supervisor.owner.link import Link
from proctor_supervisor.owner.orders import Orders
from proctor_supervisor.owner.pool import NoChild, Pool
from proctor_supervisor.owner.sending import name_task, pack_task
from proctor_supervisor.owner.streams import Heartbeat, OutputLine, Streams
from proctor_supervisor.platform import require_supported

_log = logging.getLogger("proctor_supervisor")
_STEP_EVENTS: dict[Step, EventKind] = {Step.NOTICE: "notice", Step.RAISE: "raised", Step.KILL: "killed"}
_DISPATCHES = 3
"""How many new children may die under an attempt before they begin it; a used one may just be retiring."""
_PROOF_MARGIN = 5.0
"""Seconds beyond the whole stop budget after which a silent supervisor process counts as broken."""
_PAUSE, _PAUSE_MOST = 0.05, 0.8
"""Seconds between two starts of a supervisor process that does not work: the first, and the longest."""


@asynccontextmanager
async def open_supervisor(options: SupervisorOptions | None = None) -> AsyncIterator[Supervisor]:
    """Open a supervisor; on leaving, every attempt is stopped with proof and the supervisor process is gone.

    Raises UnsupportedPlatform, StartRefused, and on leaving StopUnconfirmed when a child could not be proven gone.
    """
    require_supported()
    if not isinstance(options, SupervisorOptions | None):
        raise TypeError(f"options are SupervisorOptions, not a {type(options).__name__}")
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
        self._pool = Pool(options, self._fork)
        self._streams = Streams()
        self._running: dict[Child, AttemptControl] = {}
        self._hub = EventHub()
        self._exec_children = False
        self._unsafe_module: str | None = None
        self._serial = 0
        self._link: Link | None = None
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
        return self._pool.taken

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
        try:
            path, pickled = name_task(task, self._options.max_payload_bytes)
            _check_arguments(on_heartbeat, on_output, control)
            control = control if control is not None else AttemptControl()
            control.take()
        except TaskRefused as exc:
            self._hub.tell("refused", str(getattr(task, "attempt_id", "")), why=str(exc))
            raise
        try:
            limits = task.limits or self._options.limits
            lost = 0
            while lost < _DISPATCHES:
                try:
                    child = self._pool.take_now() or await self._pool.take()
                except NoChild as exc:
                    return _start_failed(f"no child could be started: {exc}")
                link = self._link
                if link is None or link.is_lost:
                    self._pool.free_slot()  # its supervisor process died in the meantime, and it does, too
                    continue
                self._serial = serial = self._serial + 1
                try:
                    body = pack_task(serial, task, path, pickled, limits)
                except BaseException:  # no memory, say
                    self._pool.give_back(child)
                    raise
                policy = task.stop or self._options.stop
                orders = Orders(link, child, serial, task, policy, limits, trio.current_time())
                exchange = Exchange(child, serial, task, self._options, orders, self._hub, on_heartbeat, on_output)
                try:
                    outcome = await self._attempt(child, task, body, orders, exchange, control)
                finally:
                    if child.is_gone:
                        self._discard(child)
                if outcome is not None:
                    if self._hub.is_heard:
                        self._tell_outcome(task.attempt_id, outcome)
                    return outcome
                lost += child.attempts == 1
            return _start_failed(f"{_DISPATCHES} children died before they began the attempt")
        finally:
            control.give_back()

    # -- one attempt ----------------------------------------------------------------------------------------

    async def _attempt(
        self,
        child: Child,
        task: Task,
        body: bytes,
        orders: Orders,
        exchange: Exchange,
        control: AttemptControl,
    ) -> Outcome | None:
        """Run `task` on `child`; None when the child died before anything of the task ran."""
        child.attempts += 1
        child.attempt_id = task.attempt_id
        self._running[child] = control
        try:
            orders.take_up(control.authority_at)
            control.bind(orders)
            if self._hub.is_heard:
                self._hub.tell("started", task.attempt_id, child.pid)
            if control.stop_requested is None and not orders.are_overdue:
                await exchange.send(body, self._flags(child, task))
            await exchange.receive()
            stays = exchange.returned and control.stop_requested is None and not child.ended.is_set()
            if stays and orders.leave():
                self._streams.read_all()  # what the attempt still said, by one call for all pipes
                del self._running[child]
                self._pool.give_back(child)
                return exchange.conclude_alive()
            if exchange.delivery is not None:
                exchange.dismiss()
            if self._pool.taken > 1:
                self._pool.refill()  # others may need a child before this one is reaped
            await child.ended.wait()
            self._pool.refill()
        except BaseException:
            control.request_stop(StopReason.CANCELLED, "the task that awaited the attempt was cancelled")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + orders.stop_budget + _PROOF_MARGIN):
                await child.ended.wait()
            if not child.is_gone:
                raise self._unconfirmed(child) from None
            raise
        finally:
            control.release()
            exchange.end()
        if not child.is_gone:
            raise self._unconfirmed(child)
        if exchange.delivery is None and exchange.breach is None:
            was_refused = exchange.was_refused and child.settlement is None
            if was_refused or not settling.has_begun(exchange.serial, child.settlement):
                return None
        return exchange.conclude(control.stop_requested)

    def _flags(self, child: Child, task: Task) -> int:
        last = self._options.isolation == "fresh" or child.attempts >= self._options.attempts_per_child
        return (frames.LAST if last else 0) | (frames.KEEP if task.descendants == "keep" else 0)

    def _unconfirmed(self, child: Child) -> StopUnconfirmed:
        return StopUnconfirmed(
            f"child {child.pid} was killed, but it and all below it are not proven gone; its slot stays taken. Look "
            f"at /proc/{child.pid}/status: a process in state D waits for a device or a file system. If it is gone, "
            f"a process below it may belong to another user (sudo) and cannot be killed from here.",
            pid=child.pid,
        )

    # -- children -------------------------------------------------------------------------------------------

    def _fork(self) -> bool:
        if self._link is None or self._link.is_lost:
            return False
        self._link.fork()
        return True

    def _discard(self, child: Child) -> None:
        self._streams.remove_child(child)
        child.close()

    def on_forked(self, child: Child) -> None:
        """Take in a standby child (for `link`)."""
        self._streams.add_child(child)
        self._pool.offer(child)

    def on_fork_failed(self, error: str) -> None:
        """Tell whoever waited that there is no child (for `link`)."""
        self._pool.refuse_one(error)

    def on_ended(self, child: Child) -> None:
        """Give the slot back: the child is proven gone (for `link`)."""
        if self._running.pop(child, None) is not None:
            self._pool.free_slot()
            if child.unconfirmed:
                self._discard(child)  # proven after all, when nobody waits any more
        else:
            self._pool.forget(child)
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

    def on_lost(self) -> None:
        """Give out none of its children any more (for `link`)."""
        self._pool.lose_children()

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
        self._pool.refill()
        return link

    async def _serve(self, link: Link) -> None:
        """Serve `link`, and the next process whenever one dies, until closing."""
        pause = 0.0
        while True:
            try:
                await link.serve()
            finally:
                self._link = None
                self._pool.lose_children()
                with trio.CancelScope(shield=True):
                    await link.close()
            if self._closing:
                break
            # One that was killed is replaced at once; one that broke will break again if nobody looks at the reason.
            pause = min(max(_PAUSE, 2 * pause), _PAUSE_MOST) if link.has_broken else 0.0
            await trio.sleep(pause)
            link = await self._restart()
            self._hub.tell("restarted", pid=link.pid)
        self._closed.set()

    async def _restart(self) -> Link:
        """Start another process; where the system has no room for it, try again until it should have been ready."""
        patience = trio.current_time() + self._options.start_timeout
        while True:
            try:
                return await self._start_link()
            except StartRefused as refused:
                if not refused.temporary or trio.current_time() > patience:
                    raise
                _log.warning("%s", refused)
            await trio.sleep(_PAUSE_MOST)

    async def _close(self) -> None:
        self._closing = True
        self._pool.close()
        for control in list(self._running.values()):
            control.request_stop(StopReason.SHUTDOWN, "the supervisor is closing")
        budgets = [self._options.stop.total, *(control.stop_budget for control in self._running.values())]
        with trio.move_on_after(max(budgets) + _PROOF_MARGIN):
            for child in list(self._running):
                await child.ended.wait()
        if self._link is not None:
            self._link.hang_up()
            with trio.move_on_after(self._options.stop.total + _PROOF_MARGIN):
                await self._closed.wait()

    def _raise_if_unconfirmed(self) -> None:
        for child in self._running:
            raise self._unconfirmed(child)


def _check_arguments(on_heartbeat: object, on_output: object, control: object) -> None:
    for name, callback in (("on_heartbeat", on_heartbeat), ("on_output", on_output)):
        if callback is not None and not callable(callback):
            raise TaskRefused(f"{name} is a callable or None, not a {type(callback).__name__}")
    if control is not None and not isinstance(control, AttemptControl):
        raise TaskRefused(f"control is an AttemptControl or None, not a {type(control).__name__}")


def _start_failed(text: str) -> Failed:
    info = FailureInfo("StartFailed", "proctor_supervisor", text)
    return Failed(failure=info, kind="start_failed", pid=0, duration=0.0)
