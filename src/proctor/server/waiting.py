"""Parked polls and the deadline sweep: who waits for what to become true, and how they are woken without ticking.

Both learn from the store what each commit made true. A poll takes its event before it looks, so work that becomes
ready in between is not missed; the sweep sleeps until the earliest due instant it knows of, and no longer.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog
import trio

from proctor.server.clock import Clock
from proctor.server.operations.calls import release_expired, resolve_overdue
from proctor.server.operations.questions import expire_questions
from proctor.server.store import Store
from proctor.server.transaction import Consequences, Transaction

log = structlog.get_logger("proctor.server")

Queue = tuple[str, str]

_PAUSE_AFTER_ERROR = timedelta(seconds=1)


class QueueBell:
    """Wakes those who wait for something to become true: everybody at an event, or one after the other in a line."""

    def __init__(self) -> None:
        self._events: dict[Queue, trio.Event] = {}
        self._lines: dict[Queue, _Line] = {}

    def event(self, queue: Queue) -> trio.Event:
        """Give the event that is set when something under this name next becomes true."""
        return self._events.setdefault(queue, trio.Event())

    def line(self, queue: Queue) -> Place:
        """Take a place in the line of a queue; it must be left in the end."""
        line = self._lines.setdefault(queue, _Line())
        line.users += 1
        return Place(queue, line, self._lines)

    def hear(self, consequences: Consequences) -> None:
        """Ring for every queue that a commit gave work to."""
        for queue in consequences.queues:
            event = self._events.pop(queue, None)
            if event is not None:
                event.set()
            line = self._lines.get(queue)
            if line is not None:
                line.rings += 1
                line.call_next()


class _Line:
    """Who waits for a queue, longest first, and how often it was rung for."""

    def __init__(self) -> None:
        self.rings = 0
        self.users = 0
        self.waiting: dict[Place, None] = {}

    def call_next(self) -> None:
        """Call the first who has not looked since the last ring and is not called yet."""
        for place in self.waiting:
            if place.looked < self.rings and not place.is_called:
                place.call()
                return


class Place:
    """One waiter's place in a line. One task calls one waiter, however many wait.

    A waiter looks, and says then whether there is more for the next; a call that comes to nothing is passed on.
    """

    def __init__(self, queue: Queue, line: _Line, lines: dict[Queue, _Line]) -> None:
        self.queue = queue
        self.looked = -1
        self._line = line
        self._lines = lines
        self._event = trio.Event()

    @property
    def is_called(self) -> bool:
        """Whether this waiter was called and has not looked since."""
        return self._event.is_set()

    def call(self) -> None:
        """Let `called` return."""
        self._event.set()

    async def called(self) -> None:
        """Return when it is this waiter's turn to look."""
        await self._event.wait()

    def look(self) -> None:
        """Go to the end of the line; to be said before looking, so that what comes in between is not missed."""
        self._line.waiting.pop(self, None)
        self._line.waiting[self] = None
        self._event = trio.Event()
        self.looked = self._line.rings

    def pass_on(self) -> None:
        """Call the next one, if somebody has not looked since the last ring."""
        self._line.call_next()

    def leave(self) -> None:
        """Leave the line; a call that was not followed goes to the next one."""
        self._line.waiting.pop(self, None)
        if self.is_called:
            self._line.call_next()
        self._line.users -= 1
        if not self._line.users:
            del self._lines[self.queue]


async def first_of(*waits: Callable[[], Awaitable[object]]) -> int:
    """Wait for several things at once and give the index of the first to come true; the others are cancelled."""
    winner = math.inf

    async with trio.open_nursery() as nursery:

        async def run(index: int, wait: Callable[[], Awaitable[object]]) -> None:
            nonlocal winner
            await wait()
            winner = min(winner, index)
            nursery.cancel_scope.cancel()

        for index, wait in enumerate(waits):
            nursery.start_soon(run, index, wait)
    return int(winner)


class DeadlineSweep:
    """Does what falls due without anyone asking: run deadlines, ended leases, retries that become available."""

    def __init__(self, store: Store, bell: QueueBell) -> None:
        self._store = store
        self._bell = bell
        self._clock: Clock = store.clock
        self._next: datetime | None = None
        self._earlier = trio.Event()

    def hear(self, consequences: Consequences) -> None:
        """Wake the sweep when a commit made something due before it would wake by itself."""
        due = consequences.earliest
        if due is not None and (self._next is None or due < self._next):
            self._next = due
            self._earlier.set()

    async def run(self) -> None:
        """Sweep, sleep until the next due instant or an earlier one is announced, and again."""
        while True:
            # Commits that finish while the sweep runs may announce instants that its answer does not hold yet, so
            # everything heard meanwhile is kept beside it: `_next` starts as unknown and `hear` only lowers it.
            self._next = None
            try:
                due = await self._store.transact(sweep)
            except sqlite3.Error:
                log.exception("the deadline sweep could not write; it tries again in a second")
                due = self._clock.now() + _PAUSE_AFTER_ERROR
            self._next = min((instant for instant in (due, self._next) if instant is not None), default=None)
            await self._sleep(self._next)

    async def _sleep(self, due: datetime | None) -> None:
        self._earlier = trio.Event()
        if due is None:
            await self._earlier.wait()
            return

        async def until_due() -> None:
            await self._clock.sleep_until(due)

        await first_of(until_due, self._earlier.wait)


def sweep(tx: Transaction) -> datetime | None:
    """Do everything that is due now and give the next due instant."""
    resolve_overdue(tx)
    release_expired(tx)
    expire_questions(tx)
    tx.forget_incarnations()
    tx.consequences.queues.update(tx.queues_with_work())
    dues = (tx.next_due(), tx.next_session_end())
    return min((due for due in dues if due is not None), default=None)
