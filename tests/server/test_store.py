"""The store: one writer, one commit for many, an answer only after it, and an error that touches nobody else."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from proctor.server.clock import SystemClock
from proctor.server.database import Database, open_database
from proctor.server.ids import Ids
from proctor.server.rules.book import Settings
from proctor.server.rules.rows import Incarnation
from proctor.server.store import Store, StoreClosed, open_store
from proctor.server.transaction import Consequences, Transaction


def remember(number: int) -> Incarnation:
    return Incarnation(token=f"{number:032x}", namespace="default", worker_id=f"w{number}")


@asynccontextmanager
async def running(path: Path | None = None) -> AsyncIterator[tuple[Store, Database]]:
    with open_database(path) as database:
        async with open_store(database, clock=SystemClock(), ids=Ids(), settings=Settings()) as store:
            yield store, database


async def test_what_was_answered_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with running(path) as (store, _):
        await store.transact(lambda tx: tx.save_incarnation(remember(1)))
        reader = sqlite3.connect(path)
        assert reader.execute("SELECT COUNT(*) FROM incarnation").fetchone() == (1,)
        reader.close()


async def test_concurrent_transactions_share_commits_and_keep_their_order() -> None:
    """While one commit is written the others gather; every one sees what came before it."""
    async with running() as (store, database):
        statements: list[str] = []
        counts: list[int] = []
        database.connection.set_trace_callback(statements.append)

        def add(tx: Transaction, number: int) -> int:
            tx.save_incarnation(remember(number))
            return sum(tx.incarnation(f"{other:032x}") is not None for other in range(100))

        async def run(number: int) -> None:
            counts.append(await store.transact(lambda tx: add(tx, number)))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(run, number)
        assert sorted(counts) == list(range(1, 101))
        assert 2 <= statements.count("COMMIT") <= 10


async def test_an_error_undoes_its_own_transaction_only() -> None:
    async with running() as (store, _):
        errors: list[str] = []

        def broken(tx: Transaction) -> None:
            tx.save_incarnation(remember(7))
            raise KeyError("boom")

        async def run_broken() -> None:
            with pytest.raises(KeyError, match="boom"):
                await store.transact(broken)
            errors.append("seen")

        async def run(number: int) -> None:
            await store.transact(lambda tx: tx.save_incarnation(remember(number)))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(run, number)
            nursery.start_soon(run_broken)
        await run_broken()
        assert errors == ["seen", "seen"]
        found = await store.transact(lambda tx: [tx.incarnation(f"{number:032x}") for number in (*range(5), 7)])
        assert [row is not None for row in found] == [True] * 5 + [False]


async def test_a_failing_commit_fails_everyone_in_it_and_keeps_nothing() -> None:
    async with running() as (store, database):
        database.connection.execute("PRAGMA foreign_keys = ON")
        database.connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        database.connection.execute("CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")

        def orphan(tx: Transaction) -> None:
            tx.save_incarnation(remember(1))
            database.connection.execute("INSERT INTO child VALUES (1)")

        with pytest.raises(sqlite3.IntegrityError):
            await store.transact(orphan)
        assert await store.transact(lambda tx: tx.incarnation(f"{1:032x}")) is None


async def test_consequences_are_told_after_the_commit_and_only_then() -> None:
    async with running() as (store, _):
        heard: list[Consequences] = []
        store.listen(heard.append)

        def work(tx: Transaction) -> None:
            tx.consequences.queues.add(("default", "q"))
            assert heard == []

        await store.transact(work)
        assert [consequence.queues for consequence in heard] == [{("default", "q")}]

        def fails(tx: Transaction) -> None:
            tx.consequences.queues.add(("default", "other"))
            raise KeyError

        with pytest.raises(KeyError):
            await store.transact(fails)
        assert len(heard) == 1


async def test_a_caller_that_is_cancelled_before_its_turn_changes_nothing() -> None:
    async with running() as (store, _):
        ran: list[str] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.transact(lambda tx: ran.append("cancelled"))
        await store.transact(lambda tx: ran.append("later"))
        assert ran == ["later"]


async def test_a_closed_store_takes_no_more() -> None:
    async with running() as (store, _):
        pass
    with pytest.raises(StoreClosed):
        await store.transact(lambda tx: None)
