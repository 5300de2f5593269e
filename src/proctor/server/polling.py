"""The long poll: look for a task, wait for work without ticking, look again, hand the task to a client that is there.

Owns holding polls and how many may be held. Which task a worker gets is decided by the operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import trio
from starlette.requests import Request
from starlette.types import Message

from proctor.server.operations import activity_tasks, asked, multiplexed_polls, queries, validations, workflow_polls
from proctor.server.operations.calls import Call, Operation
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.refusal import Answer, Refusal
from proctor.server.rules.validations import UpdateValidation
from proctor.server.store import Store
from proctor.server.transaction import Transaction, activity_queue, query_queue, validation_queue
from proctor.server.unavailable import at_capacity, identified
from proctor.server.waiting import Place, QueueBell, first_of

CAPACITY = 1_000

Perform = Callable[[Operation, Call], Awaitable[Answer | Refusal]]

_OPERATIONS: dict[str, Operation] = {
    "workflow": multiplexed_polls.poll,
    "activity": activity_tasks.poll,
    "query": queries.poll,
    "update_validation": validations.poll,
}
# Under which name the polls of each kind are woken.
_BELLS: dict[str, Callable[[str], str]] = {
    "workflow": str,
    "activity": activity_queue,
    "query": query_queue,
    "update_validation": validation_queue,
}

# What somebody waits for is held in a pool of its own.
_OF_ASKERS = frozenset({"query", "update_validation"})


@dataclass(eq=False, slots=True)
class _Held:
    """One poll while it is answered; `key` is what it shares with its repetitions, empty when it has none."""

    place: Place
    key: tuple[str, ...] = ()
    is_repeated: bool = False


class Polls:
    """The polls of one server; those of workers and those for queries are held in pools of their own."""

    def __init__(
        self, store: Store, bell: QueueBell, *, perform: Perform, stopping: trio.Event, capacity: int = CAPACITY
    ) -> None:
        self._store = store
        self._bell = bell
        self._perform = perform
        self._stopping = stopping
        self._capacity = capacity
        self._held: Counter[bool] = Counter()
        self._repeatable: dict[tuple[str, ...], _Held] = {}

    async def answer(self, request: Request, kind: str, call: Call) -> Answer | Refusal | None:
        """Give the answer of a poll, or None when its client has left meanwhile."""
        seconds, (namespace, name) = workflow_polls.read_poll(call)
        until = self._store.clock.now() + timedelta(seconds=seconds)
        held = _Held(self._bell.line((namespace, _BELLS[kind](name))))
        place = held.place
        try:
            self._supersede(kind, call, held)
            while True:
                place.look()
                result, more = await self._claim(kind, call, place.queue)
                if more:
                    place.pass_on()
                if isinstance(result, Refusal) or result.body["task"] is not None:
                    return await self._hand_over(request, call, result)
                stale = result.body["poll_status"] == workflow_polls.STALE
                over = held.is_repeated or self._stopping.is_set() or self._store.clock.now() >= until
                if stale or over:
                    return result
                if self._held[kind in _OF_ASKERS] >= self._capacity:
                    return at_capacity(kind, namespace, name)
                call = replace(call, incarnation=result.incarnation)

                async def time_is_up() -> None:
                    await self._store.clock.sleep_until(until)

                async def client_leaves() -> None:
                    await client_departure(request)

                self._held[kind in _OF_ASKERS] += 1
                try:
                    first = await first_of(client_leaves, self._stopping.wait, place.called, time_is_up)
                finally:
                    self._held[kind in _OF_ASKERS] -= 1
                if first == 0:
                    return None
                if held.is_repeated:
                    return result
        finally:
            if self._repeatable.get(held.key) is held:
                del self._repeatable[held.key]
            place.leave()

    def _supersede(self, kind: str, call: Call, held: _Held) -> None:
        """End the held poll that this one repeats.

        Whoever repeats a poll has no use for the answer to the first one, which must not take a task from the second.
        """
        request_id = call.body.get("poll_request_id")
        if request_id is None:
            return
        held.key = (kind, call.namespace, call.body["worker_id"], call.body["task_queue"], request_id)
        before, self._repeatable[held.key] = self._repeatable.get(held.key), held
        if before is not None:
            before.is_repeated = True
            before.place.call()

    async def _claim(self, kind: str, call: Call, queue: tuple[str, str]) -> tuple[Answer | Refusal, bool]:
        """Look for a task, and whether others are there for whoever waits behind."""
        operation = _OPERATIONS[kind]
        more = False

        def look(tx: Transaction, call: Call) -> Answer:
            nonlocal more
            answer = operation(tx, call)
            more = tx.has_work(kind, call.namespace, str(call.body["task_queue"]))
            return answer

        # Not cancellable: a lease that is committed must reach the check of the client, or it is lost for its length.
        with trio.CancelScope(shield=True):
            result = await self._perform(look, call)
        return (identified(result, operation, call), False) if isinstance(result, Refusal) else (result, more)

    async def _hand_over(self, request: Request, call: Call, result: Answer | Refusal) -> Answer | Refusal | None:
        """Give the answer, or take the lease back when the client has left meanwhile."""
        task = None if isinstance(result, Refusal) else result.body["task"]
        if task is None or not await request.is_disconnected():
            return result

        def undo(tx: Transaction, call: Call) -> Answer:
            if "query_task_id" in task:
                asked.undo(tx, QueryTask, call.namespace, task["query_task_id"], task["query_task_attempt"])
            elif "update_validation_attempt" in task:
                asked.undo(tx, UpdateValidation, call.namespace, task["update_id"], task["update_validation_attempt"])
            elif "workflow_task_attempt" in task:
                workflow_polls.undo_poll(tx, call.namespace, task["task_id"], task["workflow_task_attempt"])
            else:
                activity_tasks.undo_poll(tx, call.namespace, task["task_id"])
            return Answer({})

        # Where even this fails the lease ends by itself.
        with trio.CancelScope(shield=True):
            await self._perform(undo, call)
        return None


async def client_departure(request: Request) -> None:
    """Return when the client has closed its connection; the request must have been read before."""
    while True:
        message: Message = await request.receive()
        if message["type"] == "http.disconnect":
            return
