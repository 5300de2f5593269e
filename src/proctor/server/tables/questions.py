"""Questions: kept in the connection's own temporary tables, because they end with the process that waits for them.

A transaction that is undone undoes them too, and one that touches nothing else writes nothing to the file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from proctor.server.rules.queries import QueryTask
from proctor.server.rules.questions import Question
from proctor.server.rules.validations import UpdateValidation
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table, answer_bell, decode, encode, query_queue, validation_queue

# How long a late answer still learns that it is late.
_REMEMBERED = timedelta(seconds=60)
_TABLES: dict[type[Question], str] = {QueryTask: "query_task", UpdateValidation: "update_validation"}

Q = TypeVar("Q", QueryTask, UpdateValidation)


class QuestionTable(Table):
    """Questions of a kind: found by queue, by owner, and by the instant at which they are over."""

    def question(self, kind: type[Q], namespace: str, question_id: str) -> Q | None:
        """Read one question."""
        found = self._questions(kind, "question_id = ? AND namespace = ?", question_id, namespace)
        return found[0] if found else None

    def pending_questions(self, kind: type[Q], namespace: str, task_queue: str, types: tuple[str, ...]) -> list[Q]:
        """Read the questions of a queue that a worker for these workflow types may take, longest waiting first."""
        return self._questions(
            kind,
            "namespace = ? AND task_queue = ? AND status = 'pending' AND due_at > ?"
            " AND workflow_type IN (SELECT value FROM json_each(?)) ORDER BY question_id LIMIT 100",
            namespace,
            task_queue,
            to_micros(self.now),
            encode(types).decode(),
        )

    def count_pending(self, kind: type[Q], namespace: str, task_queue: str) -> int:
        """Count the questions of a queue that no worker has taken."""
        (count,) = self._sql(
            f"SELECT COUNT(*) FROM {_TABLES[kind]} WHERE namespace = ? AND task_queue = ? AND status = 'pending'"  # noqa: S608
            " AND due_at > ?",
            (namespace, task_queue, to_micros(self.now)),
        ).fetchone()
        return int(count)

    def questions_leased_by(self, kind: type[Q], namespace: str, worker_id: str) -> list[Q]:
        """Read the questions that a worker holds."""
        return self._questions(
            kind,
            "namespace = ? AND lease_owner = ? AND status = 'leased' AND due_at > ?",
            namespace,
            worker_id,
            to_micros(self.now),
        )

    def questions_of(self, kind: type[Q], namespace: str, task_queue: str) -> list[Q]:
        """Read every question about runs of a queue that is remembered, the newest last."""
        return self._questions(kind, "namespace = ? AND task_queue = ? ORDER BY question_id", namespace, task_queue)

    def overdue_questions(self, kind: type[Q]) -> list[Q]:
        """Read the open questions whose budget is used up."""
        return self._questions(kind, "status IN ('pending', 'leased') AND due_at <= ?", to_micros(self.now))

    def forget_questions(self) -> None:
        """Drop the settled questions that were remembered long enough."""
        for table in _TABLES.values():
            self._sql(
                f"DELETE FROM {table} WHERE status NOT IN ('pending', 'leased') AND due_at <= ?",  # noqa: S608
                (to_micros(self.now),),
            )

    def save_question(self, question: QueryTask | UpdateValidation) -> None:
        """Write a question; whoever it concerns now is told after the commit."""
        due = question.deadline_at if question.is_open else question.deadline_at + _REMEMBERED
        self.consequences.due(due)
        namespace, queue = question.namespace, question.task_queue
        if question.status == "pending" and isinstance(question, QueryTask):
            self.consequences.queues.add((namespace, query_queue(queue)))
        elif question.status == "pending":
            # Workers ask for validations together with workflow tasks, or for them alone.
            self.consequences.queues |= {(namespace, queue), (namespace, validation_queue(queue))}
        elif not question.is_open:
            self.consequences.queues.add(answer_bell(namespace, question.question_id))
        self._sql(
            f"INSERT OR REPLACE INTO {_TABLES[type(question)]} VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                question.question_id,
                namespace,
                queue,
                question.workflow_type,
                question.status,
                question.lease_owner,
                to_micros(due),
                encode(question),
            ),
        )

    def _questions(self, kind: type[Q], where: str, *values: str | int) -> list[Q]:
        found = self._sql(f"SELECT body FROM {_TABLES[kind]} WHERE {where}", values).fetchall()  # noqa: S608
        return [decode(kind, body) for (body,) in found]
