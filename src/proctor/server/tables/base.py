"""What the modules of all tables share: one open transaction, its instant, its ids, and what its commit makes true."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from proctor.server.ids import Ids
from proctor.server.rules.book import Settings
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.rows import Attempt, Execution, Incarnation, Registration, Run, Task, Update
from proctor.server.rules.sessions.shapes import WorkerSession
from proctor.server.rules.validations import UpdateValidation

Row = TypeVar(
    "Row", Run, Task, Update, Execution, Attempt, Registration, Incarnation, QueryTask, UpdateValidation, WorkerSession
)

encode = msgspec.json.Encoder().encode
_KINDS = (Run, Task, Update, Execution, Attempt, Registration, Incarnation, QueryTask, UpdateValidation, WorkerSession)
_decoders: dict[type, msgspec.json.Decoder[Any]] = {kind: msgspec.json.Decoder(kind) for kind in _KINDS}


def decode(kind: type[Row], body: bytes) -> Row:
    """Read a row from the JSON of its `body` column."""
    row: Row = _decoders[kind].decode(body)
    return row


@dataclass
class Consequences:
    """What the commit makes true for waiting tasks of this process."""

    queues: set[tuple[str, str]] = field(default_factory=set)
    earliest: datetime | None = None

    def due(self, instant: datetime | None) -> None:
        """Note an instant at which the deadline sweep has something to do."""
        if instant is not None and (self.earliest is None or instant < self.earliest):
            self.earliest = instant


def activity_queue(task_queue: str) -> str:
    """Give the name under which pollers for activities wait; workflow tasks of the same queue wake others."""
    return f"activity:{task_queue}"


def query_queue(task_queue: str) -> str:
    """Give the name under which pollers for query tasks wait."""
    return f"query:{task_queue}"


def validation_queue(task_queue: str) -> str:
    """Give the name under which pollers for nothing but update validations wait."""
    return f"validation:{task_queue}"


def history_bell(run_id: str) -> tuple[str, str]:
    """Give the bell of those who wait for the next event of a run."""
    return ("", f"history:{run_id}")


def answer_bell(namespace: str, asked: str) -> tuple[str, str]:
    """Give the name under which somebody waits for what becomes of a query or an update."""
    return namespace, f"answer:{asked}"


class Table:
    """One open transaction at the instant `now`; the classes of the other modules add the rows of their subject."""

    def __init__(self, connection: sqlite3.Connection, now: datetime, ids: Ids, settings: Settings) -> None:
        self._sql = connection.execute
        self._sql_many = connection.executemany
        self.now = now
        self.ids = ids
        self.settings = settings
        self.consequences = Consequences()
        # The namespaces in which this transaction began runs, and in which it registered new workers.
        self.started_in: set[str] = set()
        self.registered_in: set[str] = set()

    def new_id(self) -> str:
        """Give a fresh row or event id."""
        return self.ids.ulid(self.now)
