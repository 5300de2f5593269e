"""What every operation shares: the parsed call, and saving a run whether the rules agreed or refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.operations.references import References
from proctor.server.rules.book import FollowUp, RunBook
from proctor.server.rules.elapsed import enforce_deadlines
from proctor.server.rules.refusal import Answer, Refusal
from proctor.server.rules.relatives import take_follow_ups
from proctor.server.rules.rows import Event
from proctor.server.rules.tasks import release
from proctor.server.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Call:
    """One request after its plane checked credentials, version and namespace. `minor` is of protocol 1.x.

    `incarnation` is the registration token that a parked poll began under; None at its first look.
    """

    namespace: str
    minor: int = 20
    body: dict[str, Any] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    incarnation: str | None = None
    refers: bool = False
    """Whether the body may hold references to external payloads."""

    @property
    def protocol(self) -> str:
        """The worker protocol version of the request."""
        return f"1.{self.minor}"


Operation = Callable[[Transaction, Call], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Answer):
    """No answer yet: `look` gives one, or waits on, when `bell` has rung or the clock has reached `until`.

    `leave` is done when the client has gone.
    """

    bell: tuple[str, str]
    until: datetime
    look: Operation
    leave: Operation = lambda tx, call: Answer({})


def perform(operation: Operation, tx: Transaction, call: Call) -> Answer | Refusal:
    """Run an operation; a refusal is a result too, and what was saved before it stays.

    Raises QuotaExhausted, for the caller to undo everything, when the operation made more than its namespace may have.
    """
    try:
        if call.refers:
            references = References(tx, call.namespace)
            answer = operation(tx, replace(call, body=references.resolved(call.body)))
            if not answer.passing:
                references.keep()
        else:
            answer = operation(tx, call)
    except Refusal as refusal:
        return refusal
    tx.check_quotas()
    return answer


@contextmanager
def saving(tx: Transaction, book: RunBook | None) -> Iterator[None]:
    """Keep the book after the block, also when the rules refused: what they changed before is a fact."""
    try:
        yield
    except Refusal:
        if book is not None:
            keep(tx, book)
        raise
    if book is not None:
        keep(tx, book)


def keep(tx: Transaction, book: RunBook) -> None:
    """Save a book, and do in other runs what follows from it: parents hear of children, and the reverse."""
    pending = deque(take_follow_ups(book))
    tx.save(book)
    while pending:
        following = pending.popleft()
        other = _other_book(tx, following)
        if other is not None:
            following.act(other)
            pending.extend(take_follow_ups(other))
            tx.save(other)


def _other_book(tx: Transaction, following: FollowUp) -> RunBook | None:
    if following.new is not None:
        blob = following.input if following.input_of is None else tx.payloads(following.input_of)[0]
        tx.add_payload(following.run_id, blob)
        return tx.new_book(following.new)
    run = tx.run(following.run_id)
    book = None if run is None else tx.book(run)
    if book is not None:
        enforce_deadlines(book)
    return book


def book_of_task(
    tx: Transaction,
    call: Call,
    task_id: str,
    *,
    sequence: int | None = None,
    span: int = 1,
    attempt_id: str | None = None,
) -> RunBook | None:
    """Load the run of a task with its passed deadlines already enforced."""
    book = tx.book_of_task(call.namespace, task_id, sequence=sequence, span=span, attempt_id=attempt_id)
    if book is not None:
        enforce_deadlines(book)
    return book


def release_expired(tx: Transaction) -> None:
    """Make every task whose lease has ended ready again."""
    for namespace, task_id in tx.expired_task_ids():
        book = tx.book_of_task(namespace, task_id)
        if book is not None:
            with saving(tx, book):
                enforce_deadlines(book)
                task = book.tasks[task_id]
                if task.status == "leased":
                    release(book, task)


def resolve_overdue(tx: Transaction) -> None:
    """Do what has fallen due in any run: timers, timeouts, run and cleanup deadlines."""
    for run_id in tx.overdue_run_ids():
        run = tx.run(run_id)
        if run is not None:
            book = tx.book(run)
            with saving(tx, book):
                enforce_deadlines(book)


def worker_event(event: Event) -> dict[str, Any]:
    """Give a history event as workers read it (events.md §1)."""
    return {
        "id": event.id,
        "sequence": event.sequence,
        "event_type": event.event_type,
        "payload": msgspec.Raw(event.payload),
        "workflow_task_id": event.workflow_task_id,
        "workflow_command_id": event.workflow_command_id,
        "recorded_at": format_instant(event.recorded_at),
    }
