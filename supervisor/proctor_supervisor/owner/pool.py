"""The children of a supervisor and who gets them: slots, standby children, and the queue of attempts that wait.

Owns capacity: an attempt takes a slot and a child together, and the slot comes back when the child's processes are
proven gone or the child stays for the next attempt, never before. Owns how many children are forked ahead of need.
Leaves forking to `link` and attempts to `supervisor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from proctor_supervisor.errors import SupervisorClosed
from proctor_supervisor.options import SupervisorOptions
from proctor_supervisor.owner.child import Child

_CALM_SECONDS = 10.0


class NoChild(Exception):
    """No child could be forked."""


class _Waiter:
    """An attempt that waits for a child: it gets one, or the reason why not."""

    __slots__ = ("child", "error", "ready")

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.child: Child | None = None
        self.error: Exception | None = None


class Pool:
    """Slots and children. `fork` asks for one more child, or gives False while there is nobody to ask."""

    def __init__(self, options: SupervisorOptions, fork: Callable[[], bool]) -> None:
        self._children = options.children
        self._reuses = options.isolation == "reuse"
        self._fork = fork
        self._free = options.children
        self._idle: deque[Child] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._forking = 0
        self._standby_least = self._standby = min(options.standby, options.children)
        self._standby_changed_at = 0.0
        self._closing = False

    @property
    def taken(self) -> int:
        """How many slots are taken, by attempts and by children that are not proven gone."""
        return self._children - self._free

    def take_now(self) -> Child | None:
        """Give a child and its slot if both are there and nobody waited before."""
        if self._idle and self._free and not self._waiters and not self._closing:
            self._free -= 1
            return self._idle.pop()  # the one used last is the warmest
        return None

    async def take(self) -> Child:
        """Wait for a slot and a child. Raises NoChild, and SupervisorClosed when the pool is closed."""
        while True:
            if self._closing:
                raise _closed()
            self._note_miss()
            waiter = _Waiter()
            self._waiters.append(waiter)
            self._match()
            try:
                await waiter.ready.wait()
            except BaseException:
                if waiter.child is not None:
                    self.give_back(waiter.child)
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)
                raise
            if waiter.error is not None:
                raise waiter.error
            assert waiter.child is not None
            if not waiter.child.ended.is_set():
                return waiter.child
            self.free_slot()  # it died in the meantime

    def offer(self, child: Child) -> None:
        """Take in a child that was just forked."""
        self._forking = max(0, self._forking - 1)
        self._accept(child)

    def give_back(self, child: Child) -> None:
        """Take back the slot of a child that lives on, and offer the child to the next attempt."""
        self._free += 1
        if child.ended.is_set():
            self._match()
        else:
            self._accept(child)

    def free_slot(self) -> None:
        """Take back the slot of an attempt whose child is proven gone."""
        self._free += 1
        self._match()

    def forget(self, child: Child) -> None:
        """Drop an idle child that died."""
        if child in self._idle:
            self._idle.remove(child)

    def refuse_one(self, error: str) -> None:
        """Tell whoever waited longest that no child could be forked."""
        self._forking = max(0, self._forking - 1)
        if self._waiters and self._free:
            waiter = self._waiters.popleft()
            waiter.error = NoChild(error)
            waiter.ready.set()

    def lose_children(self) -> None:
        """Forget idle and coming children: the supervisor process is gone. Who waits goes on waiting."""
        self._idle.clear()
        self._forking = 0

    def refill(self) -> None:
        """Ask for the children that waiting attempts and the standby depth need.

        A fork keeps the supervisor process from everything else for a while, so it is asked for as late as possible:
        after a reply, and where nobody else is in need after the reaping, too.
        """
        if not self._closing:
            self._note_calm()
            self._ask_for(self._standby - len(self._idle))
            self._match()

    def close(self) -> None:
        """Give out no more children; who waits gets SupervisorClosed."""
        self._closing = True
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.error = _closed()
            waiter.ready.set()

    def _accept(self, child: Child) -> None:
        if self._closing:
            child.let_go()
            return
        self._idle.append(child)
        if self._waiters:
            self._match()
        elif len(self._idle) > self._idle_most():
            self._idle.popleft().let_go()

    def _match(self) -> None:
        """Bring waiting attempts and children together; ask for the children that are missing."""
        while self._waiters and self._free and self._idle:
            waiter = self._waiters.popleft()
            self._free -= 1
            waiter.child = self._idle.pop()
            waiter.ready.set()
        self._ask_for(min(len(self._waiters), self._free))

    def _ask_for(self, number: int) -> None:
        """Have `number` children on the way, those that are already included."""
        while self._forking < number and self._fork():
            self._forking += 1

    def _idle_most(self) -> int:
        return self._children if self._reuses else max(1, self._standby)

    def _note_miss(self) -> None:
        """An attempt found no standby child: keep one more ahead, up to the number of slots."""
        if self._free:
            self._standby = min(self._standby + 1, self._children)
            self._standby_changed_at = trio.current_time()

    def _note_calm(self) -> None:
        """After a while without a miss keep one less ahead, down to what was asked for."""
        if self._standby > self._standby_least and trio.current_time() - self._standby_changed_at > _CALM_SECONDS:
            self._standby -= 1
            self._standby_changed_at = trio.current_time()


def _closed() -> SupervisorClosed:
    return SupervisorClosed("the supervisor is closing; no new attempt can start")
