"""The store: every change of the server's state is one SQLite transaction, run in one writer thread.

Transactions that arrive while another batch is being written are grouped into one commit: each runs in a savepoint of
its own, and nobody gets an answer before the commit is on the disk. Reading goes through the same thread, so an
answer never shows what was not committed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from proctor.server.clock import Clock
from proctor.server.database import Database
from proctor.server.ids import Ids
from proctor.server.rules.book import Settings
from proctor.server.transaction import Consequences, Transaction

T = TypeVar("T")

_BATCH_LIMIT = 64


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[Transaction], Any]
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: BaseException | None = None
    consequences: Consequences | None = None


class StoreClosed(Exception):
    """The server is shutting down; the transaction was not run."""


class Store:
    """Access to the database from Trio tasks. Made by `open_store`."""

    def __init__(self, database: Database, clock: Clock, ids: Ids, settings: Settings) -> None:
        self.clock = clock
        self.settings = settings
        self._database = database
        self._ids = ids
        self._limiter = trio.CapacityLimiter(1)
        self._queue: list[_Job] = []
        self._arrived = trio.Event()
        self._closed = False
        self._listeners: list[Callable[[Consequences], None]] = []

    def listen(self, listener: Callable[[Consequences], None]) -> None:
        """Call `listener` in the Trio thread after every commit, with what the commit made true."""
        self._listeners.append(listener)

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction and return its result after the commit.

        An exception of `work` undoes its changes only and is raised here; sqlite3.Error is raised when the commit
        failed, and then nothing of the batch is kept. When the caller is cancelled before the work started it never
        runs; when it has started, it may still be committed.
        """
        if self._closed:
            raise StoreClosed
        job = _Job(work)
        self._queue.append(job)
        self._arrived.set()
        try:
            await job.done.wait()
        except trio.Cancelled:
            if job in self._queue:
                self._queue.remove(job)
            raise
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    async def write(self) -> None:
        """Commit batches until cancelled; a batch that was begun is finished and answered first."""
        try:
            while True:
                await self._arrived.wait()
                batch, self._queue = self._queue[:_BATCH_LIMIT], self._queue[_BATCH_LIMIT:]
                if not self._queue:
                    self._arrived = trio.Event()
                if batch:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(self._commit, batch, limiter=self._limiter)
                    self._announce(batch)
        finally:
            self._closed = True
            for job in self._queue:
                job.error = StoreClosed()
                job.done.set()

    def _announce(self, batch: list[_Job]) -> None:
        for job in batch:
            job.done.set()
            if job.consequences is not None:
                for listener in self._listeners:
                    listener(job.consequences)

    def _commit(self, batch: list[_Job]) -> None:
        """Run a batch in one transaction. In the writer thread."""
        connection = self._database.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                self._run(connection, job, alone=len(batch) == 1)
            connection.execute("COMMIT")
        except BaseException as exc:
            if connection.in_transaction:
                # Where even this fails every later transaction does, and says so.
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            for job in batch:
                if job.error is None:
                    job.error, job.consequences = exc, None
            if not isinstance(exc, sqlite3.Error):
                raise

    def _run(self, connection: sqlite3.Connection, job: _Job, *, alone: bool) -> None:
        transaction = Transaction(connection, self.clock.now(), self._ids, self.settings)
        if not alone:
            connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(transaction)
        except Exception as exc:  # noqa: BLE001 - handed to the caller, whose transaction this was
            job.error = exc
            if alone:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection.execute("ROLLBACK TO job")
        else:
            job.consequences = transaction.consequences
        if not alone:
            connection.execute("RELEASE job")


@asynccontextmanager
async def open_store(database: Database, *, clock: Clock, ids: Ids, settings: Settings) -> AsyncIterator[Store]:
    """Run the writer of a database as long as the block lasts; the database stays the caller's to close."""
    store = Store(database, clock, ids, settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write)
        yield store
        nursery.cancel_scope.cancel()
