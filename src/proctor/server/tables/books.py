"""Loading a run with the rows an operation needs, and writing back what the rules changed in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from proctor.server.rules.book import RunBook
from proctor.server.rules.rows import Attempt, Execution, Run, Task, Update
from proctor.server.rules.steps import ActivityCall, ChildCall, ConditionWait, SignalWait, Step, Timer, due_at
from proctor.server.schema import to_micros
from proctor.server.tables.activities import ActivityTable
from proctor.server.tables.base import answer_bell, decode, encode, history_bell
from proctor.server.tables.events import EventTable
from proctor.server.tables.runs import RunTable, payload_column
from proctor.server.tables.tasks import TaskTable

_decode_step = msgspec.json.Decoder(Step).decode


class BookTables(RunTable, EventTable, TaskTable, ActivityTable):
    """The books of runs: everything of one run that is open, and what was asked for by name."""

    def new_book(self, run: Run) -> RunBook:
        """Open the book of a run that is being started."""
        self.started_in.add(run.namespace)
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
            decode(Task, body)
            for (body,) in self._sql(
                "SELECT body FROM task WHERE run_id = ? AND status IN ('ready', 'leased')", (run_id,)
            )
        ]
        executions = {
            row.execution_id: row
            for row in (
                decode(Execution, body)
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
                tasks.append(decode(Task, found[0]))
        return RunBook(
            run,
            now=self.now,
            new_id=self.new_id,
            settings=self.settings,
            tasks=tasks,
            executions=executions.values(),
            attempts=attempts.values(),
            steps=self._steps(run_id, sequence, span),
            updates=self._open_updates(run_id) if run.open_updates else (),
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

    def update(self, update_id: str) -> Update | None:
        """Read one update, answered or not."""
        found = self._sql("SELECT body FROM workflow_update WHERE update_id = ?", (update_id,)).fetchone()
        return None if found is None else decode(Update, found[0])

    def _open_updates(self, run_id: str) -> list[Update]:
        found = self._sql("SELECT body FROM workflow_update WHERE run_id = ? AND open = 1", (run_id,))
        return [decode(Update, body) for (body,) in found.fetchall()]

    def _attempt(self, attempt_id: str) -> Attempt | None:
        found = self._sql("SELECT body FROM attempt WHERE attempt_id = ?", (attempt_id,)).fetchone()
        return None if found is None else decode(Attempt, found[0])

    def _load_execution(self, into: dict[str, Execution], where: str, values: tuple[Any, ...]) -> None:
        found = self._sql(f"SELECT body FROM execution WHERE {where}", values).fetchall()  # noqa: S608
        for (body,) in found:
            row = decode(Execution, body)
            into[row.execution_id] = row

    def used_nonces(self, execution_id: str) -> frozenset[str]:
        """Read the worker attempt ids that attempts of a call have used."""
        found = self._sql("SELECT nonce FROM attempt WHERE execution_id = ?", (execution_id,))
        return frozenset(nonce for (nonce,) in found)

    def running_attempts_of(self, task_id: str) -> list[Attempt]:
        """Read the running attempts that a task hosts."""
        found = self._sql("SELECT body FROM attempt WHERE task_id = ?", (task_id,))
        rows = [decode(Attempt, body) for (body,) in found]
        return [row for row in rows if row.status == "running"]

    def running_activities(self, namespace: str, worker_id: str) -> list[ActivityCall]:
        """Read the queued activities that a worker runs."""
        found = self._sql(
            "SELECT step.body FROM activity_task JOIN step ON step.run_id = activity_task.run_id"
            " AND step.sequence = activity_task.sequence WHERE activity_task.namespace = ?"
            " AND activity_task.lease_owner = ? AND activity_task.status = 'running'",
            (namespace, worker_id),
        ).fetchall()
        return [step for (body,) in found if isinstance(step := _decode_step(body), ActivityCall)]

    def save(self, book: RunBook) -> None:
        """Write what the rules changed in a book."""
        for row in book.changed.values():
            match row:
                case Task():
                    self.save_task(row)
                case Execution():
                    self._sql(
                        "INSERT OR REPLACE INTO execution VALUES (?, ?, ?, ?, ?)",
                        (row.execution_id, row.run_id, row.sequence, int(row.is_open), encode(row)),
                    )
                case Attempt():
                    self._sql(
                        "INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?)",
                        (row.attempt_id, row.execution_id, row.task_id, row.worker_attempt_id or "", encode(row)),
                    )
                case Update():
                    if not row.is_open:
                        self.consequences.queues.add(answer_bell(book.run.namespace, row.update_id))
                    self._sql(
                        "INSERT OR REPLACE INTO workflow_update VALUES (?, ?, ?, ?)",
                        (row.update_id, row.run_id, int(row.is_open), encode(row)),
                    )
                case Timer() | ConditionWait() | SignalWait() | ChildCall() | ActivityCall():
                    if isinstance(row, ActivityCall):
                        self.save_activity_task(row)
                    due = due_at(row)
                    self.consequences.due(due)
                    self._sql(
                        "INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?)",
                        (
                            row.run_id,
                            row.sequence,
                            int(row.is_open),
                            None if due is None else to_micros(due),
                            encode(row),
                        ),
                    )
        book.changed.clear()
        if book.events:
            self.save_events(book.events)
            self.consequences.queues.add(history_bell(book.run.run_id))
            book.events.clear()
        if book.output is not None:
            self._sql(
                "UPDATE run_payload SET output = ? WHERE run_id = ?",
                (payload_column(book.output), book.run.run_id),
            )
            book.output = None
        if book.run_changed:
            self.save_run(book.run)
            book.run_changed = False
