"""`Transaction`: what an operation may read and write while it holds the database, as rows of `rules.rows`.

It runs in the writer thread, inside one SQLite transaction, and knows no rule. It notes what others must hear of
after the commit: queues with work, and the earliest instant at which something falls due. The rows are read and
written in `tables`, by subject.
"""

from __future__ import annotations

from proctor.server.tables.base import (
    Consequences,
    activity_queue,
    answer_bell,
    history_bell,
    query_queue,
    validation_queue,
)
from proctor.server.tables.books import BookTables
from proctor.server.tables.commands import CommandTable
from proctor.server.tables.due import DueTables
from proctor.server.tables.external import ExternalTable
from proctor.server.tables.questions import QuestionTable
from proctor.server.tables.queues import QueueTable
from proctor.server.tables.quotas import QuotaTable
from proctor.server.tables.sessions import SessionTable

__all__ = [
    "Consequences",
    "Transaction",
    "activity_queue",
    "answer_bell",
    "history_bell",
    "query_queue",
    "validation_queue",
]


class Transaction(
    BookTables, DueTables, CommandTable, QuestionTable, QueueTable, SessionTable, ExternalTable, QuotaTable
):
    """One open transaction over all tables."""
