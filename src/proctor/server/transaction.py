"""`Transaction`: what an operation may read and write while it holds the database, as rows of `rules.rows`.

It runs in the writer thread, inside one SQLite transaction, and knows no rule. It notes what others must hear of
after the commit: queues with work, and the earliest instant at which something falls due.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from proctor.server.ids import Ids
from proctor.server.rules.book import RunBook, Settings
from proctor.server.rules.rows import Attempt, Event, Execution, Incarnation, Registration, Run, Task
from proctor.server.rules.runs import status_bucket
from proctor.server.rules.steps import ActivityCall, ChildCall, ConditionWait, Step, Timer, due_at
from proctor.server.schema import from_micros, to_micros

Row = TypeVar("Row", Run, Task, Execution, Attempt, Registration, Incarnation)

_encode = msgspec.json.Encoder().encode
_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Run, Task, Execution, Attempt, Registration, Incarnation)
}


_decode_step = msgspec.json.Decoder(Step).decode


def _decode(kind: type[Row], body: bytes) -> Row:
    row: Row = _decoders[kind].decode(body)
    return row


@dataclass
class Consequences:
    """What the commit makes true for waiting tasks of this process."""

    queues: set[tuple[str, str]] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    earliest: datetime | None = None

    def due(self, instant: datetime | None) -> None:
        """Note an instant at which the deadline sweep has something to do."""
        if instant is not None and (self.earliest is None or instant < self.earliest):
            self.earliest = instant


def activity_queue(task_queue: str) -> str:
    """Give the name under which pollers for activities wait; workflow tasks of the same queue wake others."""
    return f"activity:{task_queue}"


class Transaction:
    """One open transaction at the instant `now`."""

    def __init__(self, connection: sqlite3.Connection, now: datetime, ids: Ids, settings: Settings) -> None:
        self._sql = connection.execute
        self._sql_many = connection.executemany
        self.now = now
        self.ids = ids
        self.settings = settings
        self.consequences = Consequences()

    def new_id(self) -> str:
        """Give a fresh row or event id."""
        return self.ids.ulid(self.now)

    # --- runs -------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run | None:
        """Read one run."""
        found = self._sql("SELECT body FROM run WHERE run_id = ?", (run_id,)).fetchone()
        return None if found is None else _decode(Run, found[0])

    def current_run(self, namespace: str, workflow_id: str) -> Run | None:
        """Read the newest run of a workflow."""
        found = self._sql(
            "SELECT body FROM run WHERE namespace = ? AND workflow_id = ? ORDER BY run_number DESC LIMIT 1",
            (namespace, workflow_id),
        ).fetchone()
        return None if found is None else _decode(Run, found[0])

    def runs_of(self, namespace: str, workflow_id: str) -> list[Run]:
        """Read every run of a workflow, oldest first."""
        found = self._sql(
            "SELECT body FROM run WHERE namespace = ? AND workflow_id = ? ORDER BY run_number",
            (namespace, workflow_id),
        )
        return [_decode(Run, body) for (body,) in found]

    def list_runs(
        self, namespace: str, *, workflow_type: str | None, bucket: str | None, before: str | None, limit: int
    ) -> list[Run]:
        """Read the newest run of each workflow of a namespace, newest first, below the run id `before`."""
        newest = (
            "NOT EXISTS (SELECT 1 FROM run later WHERE later.namespace = run.namespace"
            " AND later.workflow_id = run.workflow_id AND later.run_number > run.run_number)"
        )
        clauses, values = ["namespace = ?", newest], [namespace]
        for clause, value in (("workflow_type = ?", workflow_type), ("bucket = ?", bucket), ("run_id < ?", before)):
            if value is not None:
                clauses.append(clause)
                values.append(value)
        query = f"SELECT body FROM run WHERE {' AND '.join(clauses)} ORDER BY run_id DESC LIMIT ?"  # noqa: S608
        return [_decode(Run, body) for (body,) in self._sql(query, (*values, limit))]

    def payloads(self, run_id: str) -> tuple[str | None, str | None]:
        """Read the input and the output blob of a run."""
        found = self._sql("SELECT input, output FROM run_payload WHERE run_id = ?", (run_id,)).fetchone()
        return (None, None) if found is None else (found[0], found[1])

    def add_payload(self, run_id: str, blob: str | None) -> None:
        """Store the input blob of a new run."""
        self._sql("INSERT INTO run_payload (run_id, input) VALUES (?, ?)", (run_id, blob))

    # --- books ------------------------------------------------------------------------------------------------

    def new_book(self, run: Run) -> RunBook:
        """Open the book of a run that is being started."""
        return RunBook(run, now=self.now, new_id=self.new_id, settings=self.settings)

    def book(
        self,
        run: Run,
        *,
        task_id: str | None = None,
        sequence: int | None = None,
        span: int = 1,
        attempt_id: str | None = None,
    ) -> RunBook:
        """Load a run with its open rows, and beside them the named task, calls or attempt with what belongs to them.

        Calls are named by the `span` durable numbers from `sequence` on.
        """
        run_id = run.run_id
        tasks = [
            _decode(Task, body)
            for (body,) in self._sql(
                "SELECT body FROM task WHERE run_id = ? AND status IN ('ready', 'leased')", (run_id,)
            )
        ]
        executions = {
            row.execution_id: row
            for row in (
                _decode(Execution, body)
                for (body,) in self._sql("SELECT body FROM execution WHERE run_id = ? AND open = 1", (run_id,))
            )
        }
        attempts: dict[str, Attempt] = {}
        if attempt_id is not None:
            named = self._attempt(attempt_id)
            if named is not None and named.run_id == run_id:
                attempts[attempt_id] = named
                self._load_execution(executions, "execution_id = ?", (named.execution_id,))
        if sequence is not None:
            named_calls = (run_id, sequence, sequence + span - 1)
            self._load_execution(executions, "run_id = ? AND sequence BETWEEN ? AND ?", named_calls)
        for execution in executions.values():
            current = execution.current_attempt_id
            if current is not None and current not in attempts:
                attempt = self._attempt(current)
                if attempt is not None:
                    attempts[current] = attempt
        wanted = {task_id, *(attempt.task_id for attempt in attempts.values())}
        for name in wanted - {None, *(task.task_id for task in tasks)}:
            found = self._sql("SELECT body FROM task WHERE task_id = ? AND run_id = ?", (name, run_id)).fetchone()
            if found is not None:
                tasks.append(_decode(Task, found[0]))
        return RunBook(
            run,
            now=self.now,
            new_id=self.new_id,
            settings=self.settings,
            tasks=tasks,
            executions=executions.values(),
            attempts=attempts.values(),
            steps=self._steps(run_id, sequence, span),
        )

    def book_of_task(
        self,
        namespace: str,
        task_id: str,
        *,
        sequence: int | None = None,
        span: int = 1,
        attempt_id: str | None = None,
    ) -> RunBook | None:
        """Load the book of the run that a task belongs to; None when the namespace has no such task."""
        found = self._sql(
            "SELECT run_id FROM task WHERE task_id = ? AND namespace = ?", (task_id, namespace)
        ).fetchone()
        run = None if found is None else self.run(found[0])
        if run is None:
            return None
        return self.book(run, task_id=task_id, sequence=sequence, span=span, attempt_id=attempt_id)

    def _steps(self, run_id: str, sequence: int | None, span: int) -> Iterator[Step]:
        first = 0 if sequence is None else sequence
        found = self._sql(
            "SELECT body FROM step WHERE run_id = ? AND (open = 1 OR sequence BETWEEN ? AND ?)",
            (run_id, first, first + span - 1),
        )
        return (_decode_step(body) for (body,) in found.fetchall())

    def _attempt(self, attempt_id: str) -> Attempt | None:
        found = self._sql("SELECT body FROM attempt WHERE attempt_id = ?", (attempt_id,)).fetchone()
        return None if found is None else _decode(Attempt, found[0])

    def _load_execution(self, into: dict[str, Execution], where: str, values: tuple[Any, ...]) -> None:
        found = self._sql(f"SELECT body FROM execution WHERE {where}", values).fetchall()  # noqa: S608
        for (body,) in found:
            row = _decode(Execution, body)
            into[row.execution_id] = row

    def used_nonces(self, execution_id: str) -> frozenset[str]:
        """Read the worker attempt ids that attempts of a call have used."""
        found = self._sql("SELECT nonce FROM attempt WHERE execution_id = ?", (execution_id,))
        return frozenset(nonce for (nonce,) in found)

    def running_attempts_of(self, task_id: str) -> list[Attempt]:
        """Read the running attempts that a task hosts."""
        found = self._sql("SELECT body FROM attempt WHERE task_id = ?", (task_id,))
        rows = [_decode(Attempt, body) for (body,) in found]
        return [row for row in rows if row.status == "running"]

    def save(self, book: RunBook) -> None:
        """Write what the rules changed in a book."""
        for row in book.changed.values():
            match row:
                case Task():
                    self._save_task(row)
                case Execution():
                    self._sql(
                        "INSERT OR REPLACE INTO execution VALUES (?, ?, ?, ?, ?)",
                        (row.execution_id, row.run_id, row.sequence, int(row.is_open), _encode(row)),
                    )
                case Attempt():
                    self._sql(
                        "INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?)",
                        (row.attempt_id, row.execution_id, row.task_id, row.worker_attempt_id or "", _encode(row)),
                    )
                case Timer() | ConditionWait() | ChildCall() | ActivityCall():
                    if isinstance(row, ActivityCall):
                        self._save_activity_task(row)
                    due = due_at(row)
                    self.consequences.due(due)
                    self._sql(
                        "INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?)",
                        (
                            row.run_id,
                            row.sequence,
                            int(row.is_open),
                            None if due is None else to_micros(due),
                            _encode(row),
                        ),
                    )
        book.changed.clear()
        if book.events:
            self._save_events(book.events)
            self.consequences.runs.add(book.run.run_id)
            book.events.clear()
        if book.output is not None:
            self._sql(
                "UPDATE run_payload SET output = ? WHERE run_id = ?",
                (book.output.get("blob"), book.run.run_id),
            )
            book.output = None
        if book.run_changed:
            self._save_run(book.run)
            book.run_changed = False

    def _save_run(self, run: Run) -> None:
        due = None
        if not run.is_closed:
            cleanup = None if run.cancellation is None else run.cancellation.cleanup_deadline_at
            dues = [run.execution_deadline_at, run.run_deadline_at, cleanup]
            due = min((instant for instant in dues if instant is not None), default=None)
            self.consequences.due(due)
        self._sql(
            "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.run_id,
                run.namespace,
                run.workflow_id,
                run.run_number,
                run.workflow_type,
                status_bucket(run.status),
                None if due is None else to_micros(due),
                _encode(run),
            ),
        )

    def _save_task(self, task: Task) -> None:
        due = task.lease_expires_at if task.status == "leased" else task.available_at
        if task.status == "leased" or (task.status == "ready" and task.available_at > self.now):
            self.consequences.due(due)
        if not task.is_open:
            self._sql("DELETE FROM poll WHERE task_id = ?", (task.task_id,))
        if task.status == "ready" and task.available_at <= self.now:
            self.consequences.queues.add((task.namespace, task.task_queue))
        self._sql(
            "INSERT OR REPLACE INTO task VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                task.task_id,
                task.run_id,
                task.namespace,
                task.task_queue,
                task.workflow_type,
                task.status,
                None if task.claim is None else task.claim.worker_id,
                None if due is None else to_micros(due),
                _encode(task),
            ),
        )

    def _save_activity_task(self, call: ActivityCall) -> None:
        attempt = call.attempt
        # Whatever attempt of this call was open before is over, unless it is the current one.
        self._sql(
            "UPDATE activity_task SET status = 'over' WHERE run_id = ? AND sequence = ? AND status IN"
            " ('ready', 'running')",
            (call.run_id, call.sequence),
        )
        status = "over"
        if call.is_open:
            status = attempt.status
            if status == "ready" and attempt.available_at <= self.now:
                self.consequences.queues.add((call.namespace, activity_queue(call.queue)))
            elif status == "ready":
                self.consequences.due(attempt.available_at)
        self._sql(
            "INSERT OR REPLACE INTO activity_task VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.task_id,
                call.run_id,
                call.sequence,
                attempt.attempt_id,
                call.namespace,
                call.queue,
                call.activity_type,
                status,
                to_micros(attempt.available_at),
                attempt.lease_owner,
                attempt.poll_request_id,
            ),
        )

    def _save_events(self, events: list[Event]) -> None:
        self._sql_many(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    event.run_id,
                    event.sequence,
                    event.id,
                    event.event_type,
                    event.workflow_task_id,
                    event.workflow_command_id,
                    to_micros(event.recorded_at),
                    event.payload,
                )
                for event in events
            ],
        )

    def history(self, run_id: str, *, after: int, limit: int) -> list[Event]:
        """Read up to `limit` events behind the history sequence `after`."""
        found = self._sql(
            "SELECT sequence, id, event_type, task_id, command_id, recorded_at, payload FROM event"
            " WHERE run_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
            (run_id, after, limit),
        )
        return [
            Event(
                id=event_id,
                run_id=run_id,
                sequence=sequence,
                event_type=event_type,
                payload=payload,
                workflow_task_id=task_id,
                workflow_command_id=command_id,
                recorded_at=from_micros(recorded_at),
            )
            for sequence, event_id, event_type, task_id, command_id, recorded_at, payload in found
        ]

    # --- tasks ------------------------------------------------------------------------------------------------

    def ready_tasks(self, namespace: str, task_queue: str, workflow_types: tuple[str, ...]) -> Iterator[Task]:
        """Walk over the ready, due tasks of a queue for these workflow types, longest due first."""
        found = self._sql(
            "SELECT body FROM task WHERE namespace = ? AND task_queue = ? AND status = 'ready' AND due_at <= ?"
            " AND workflow_type IN (SELECT value FROM json_each(?)) ORDER BY due_at, task_id",
            (namespace, task_queue, to_micros(self.now), _encode(workflow_types).decode()),
        )
        while (next_row := found.fetchone()) is not None:
            yield _decode(Task, next_row[0])

    def leased_by(self, namespace: str, worker_id: str) -> list[Task]:
        """Read the tasks that a worker holds."""
        found = self._sql(
            "SELECT body FROM task WHERE namespace = ? AND lease_owner = ? AND status = 'leased'",
            (namespace, worker_id),
        )
        return [_decode(Task, body) for (body,) in found]

    def expired_task_ids(self) -> list[tuple[str, str]]:
        """Read (namespace, task id) of every task whose lease has ended."""
        found = self._sql(
            "SELECT namespace, task_id FROM task WHERE status = 'leased' AND due_at <= ?", (to_micros(self.now),)
        )
        return list(found)

    def overdue_run_ids(self) -> list[str]:
        """Read the ids of the runs in which a deadline has passed or a timer is due."""
        moment = to_micros(self.now)
        found = self._sql(
            "SELECT run_id FROM run WHERE due_at <= ? UNION SELECT run_id FROM step WHERE due_at <= ?",
            (moment, moment),
        ).fetchall()
        return [run_id for (run_id,) in found]

    def queues_with_work(self) -> list[tuple[str, str]]:
        """Read (namespace, queue) of every queue that has a ready, due task."""
        found = self._sql(
            "SELECT DISTINCT namespace, task_queue FROM task WHERE status = 'ready' AND due_at <= ?",
            (to_micros(self.now),),
        ).fetchall()
        activities = self._sql(
            "SELECT DISTINCT namespace, task_queue FROM activity_task WHERE status = 'ready' AND available_at <= ?",
            (to_micros(self.now),),
        ).fetchall()
        return [*found, *((namespace, activity_queue(name)) for namespace, name in activities)]

    def next_due(self) -> datetime | None:
        """Read the earliest future instant at which the sweep has something to do."""
        moment = to_micros(self.now)
        (micros,) = self._sql(
            "SELECT MIN(due) FROM (SELECT MIN(due_at) AS due FROM run WHERE due_at IS NOT NULL"
            " UNION ALL SELECT MIN(due_at) FROM step WHERE due_at IS NOT NULL"
            " UNION ALL SELECT MIN(due_at) FROM task WHERE status = 'leased'"
            " UNION ALL SELECT MIN(due_at) FROM task WHERE status = 'ready' AND due_at > ?"
            " UNION ALL SELECT MIN(available_at) FROM activity_task WHERE status = 'ready' AND available_at > ?"
            " UNION ALL SELECT MIN(forget_at) FROM incarnation WHERE forget_at IS NOT NULL)",
            (moment, moment),
        ).fetchone()
        return None if micros is None else from_micros(micros)

    # --- queued activities -------------------------------------------------------------------------------------

    def ready_activity(self, namespace: str, task_queue: str, activity_types: tuple[str, ...]) -> list[tuple[str, int]]:
        """Read (run id, durable number) of the activities of a queue that a worker may take, longest ready first."""
        found = self._sql(
            "SELECT run_id, sequence FROM activity_task WHERE namespace = ? AND task_queue = ? AND status = 'ready'"
            " AND available_at <= ? AND activity_type IN (SELECT value FROM json_each(?))"
            " ORDER BY available_at, task_id LIMIT 100",
            (namespace, task_queue, to_micros(self.now), _encode(activity_types).decode()),
        )
        return list(found.fetchall())

    def polled_activity(self, namespace: str, worker_id: str, request_id: str) -> tuple[str, int] | None:
        """Read what an earlier poll with this request id leased and its worker still runs."""
        found: tuple[str, int] | None = self._sql(
            "SELECT run_id, sequence FROM activity_task WHERE namespace = ? AND lease_owner = ? AND status = 'running'"
            " AND poll_request_id = ?",
            (namespace, worker_id, request_id),
        ).fetchone()
        return found

    def activities_of(self, namespace: str, worker_id: str) -> list[tuple[str, int]]:
        """Read (run id, durable number) of the activities that a worker runs."""
        found = self._sql(
            "SELECT run_id, sequence FROM activity_task WHERE namespace = ? AND lease_owner = ? AND status = 'running'",
            (namespace, worker_id),
        )
        return list(found.fetchall())

    def activity_task(self, namespace: str, task_id: str) -> tuple[str, int, str] | None:
        """Read (run id, durable number, attempt id) of an activity task, past ones included."""
        found: tuple[str, int, str] | None = self._sql(
            "SELECT run_id, sequence, attempt_id FROM activity_task WHERE task_id = ? AND namespace = ?",
            (task_id, namespace),
        ).fetchone()
        return found

    def polled_task(
        self, namespace: str, worker_id: str, task_queue: str, request_id: str
    ) -> tuple[str, str, int] | None:
        """Read what an earlier poll with this request id leased: (task kinds, task id, epoch)."""
        found: tuple[str, str, int] | None = self._sql(
            "SELECT task_kinds, task_id, epoch FROM poll"
            " WHERE namespace = ? AND worker_id = ? AND task_queue = ? AND request_id = ?",
            (namespace, worker_id, task_queue, request_id),
        ).fetchone()
        return found

    def bind_poll(self, task: Task, *, worker_id: str, task_queue: str, request_id: str, task_kinds: str) -> None:
        """Remember which lease a poll request led to."""
        self._sql(
            "INSERT OR REPLACE INTO poll VALUES (?, ?, ?, ?, ?, ?, ?)",
            (task.namespace, worker_id, task_queue, request_id, task_kinds, task.task_id, task.attempt),
        )

    # --- commands of the control plane ------------------------------------------------------------------------

    def retained_command(self, namespace: str, workflow_id: str, request_id: str) -> tuple[str, str, Any] | None:
        """Read what a request id of a workflow was used for: (kind, fingerprint, answer body)."""
        found = self._sql(
            "SELECT kind, fingerprint, body FROM command WHERE namespace = ? AND workflow_id = ? AND request_id = ?",
            (namespace, workflow_id, request_id),
        ).fetchone()
        return None if found is None else (found[0], found[1], msgspec.json.decode(found[2]))

    def retain_command(
        self, namespace: str, workflow_id: str, request_id: str, *, kind: str, fingerprint: str, body: Any
    ) -> None:
        """Remember what a request id of a workflow was used for."""
        self._sql(
            "INSERT OR REPLACE INTO command VALUES (?, ?, ?, ?, ?, ?)",
            (namespace, workflow_id, request_id, kind, fingerprint, _encode(body)),
        )

    # --- workers ----------------------------------------------------------------------------------------------

    def registration(self, namespace: str, worker_id: str) -> Registration | None:
        """Read the active registration of a worker id."""
        found = self._sql(
            "SELECT body FROM registration WHERE namespace = ? AND worker_id = ?", (namespace, worker_id)
        ).fetchone()
        return None if found is None else _decode(Registration, found[0])

    def registrations(self, namespace: str) -> list[Registration]:
        """Read every active registration of a namespace."""
        found = self._sql("SELECT body FROM registration WHERE namespace = ? ORDER BY worker_id", (namespace,))
        return [_decode(Registration, body) for (body,) in found]

    def save_registration(self, row: Registration) -> None:
        """Write a registration."""
        self._sql("INSERT OR REPLACE INTO registration VALUES (?, ?, ?)", (row.namespace, row.worker_id, _encode(row)))

    def delete_registration(self, namespace: str, worker_id: str) -> None:
        """Forget the active registration of a worker id."""
        self._sql("DELETE FROM registration WHERE namespace = ? AND worker_id = ?", (namespace, worker_id))

    def incarnation(self, token: str) -> Incarnation | None:
        """Read what is remembered of a registration token."""
        found = self._sql("SELECT body FROM incarnation WHERE token = ?", (token,)).fetchone()
        return None if found is None else _decode(Incarnation, found[0])

    def save_incarnation(self, row: Incarnation) -> None:
        """Write what is remembered of a registration token."""
        self.consequences.due(row.forget_at)
        self._sql(
            "INSERT OR REPLACE INTO incarnation VALUES (?, ?, ?)",
            (row.token, None if row.forget_at is None else to_micros(row.forget_at), _encode(row)),
        )

    def forget_incarnations(self) -> None:
        """Drop the tokens whose retention is over."""
        self._sql("DELETE FROM incarnation WHERE forget_at <= ?", (to_micros(self.now),))
