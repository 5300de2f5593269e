"""Query tasks: kept in the connection's own temporary table, because they end with the process that waits for them.

A transaction that is undone undoes them too, and one that touches nothing else writes nothing to the file.
"""

from __future__ import annotations

from datetime import timedelta

from proctor.server.rules.queries import QueryTask
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table, answer_bell, decode, encode, query_queue

# How long a late answer still learns that it is late.
_REMEMBERED = timedelta(seconds=60)


class QueryTable(Table):
    """Query tasks: found by queue, by owner, by poll request, and by the instant at which they are over."""

    def query_task(self, namespace: str, query_task_id: str) -> QueryTask | None:
        """Read one query task."""
        found = self._sql(
            "SELECT body FROM query_task WHERE query_task_id = ? AND namespace = ?", (query_task_id, namespace)
        ).fetchone()
        return None if found is None else decode(QueryTask, found[0])

    def pending_query(self, namespace: str, task_queue: str, workflow_types: tuple[str, ...]) -> QueryTask | None:
        """Read the query of a queue that has waited longest and that a worker for these types may take."""
        found = self._sql(
            "SELECT body FROM query_task WHERE namespace = ? AND task_queue = ? AND status = 'pending' AND due_at > ?"
            " AND workflow_type IN (SELECT value FROM json_each(?)) ORDER BY query_task_id LIMIT 1",
            (namespace, task_queue, to_micros(self.now), encode(workflow_types).decode()),
        ).fetchone()
        return None if found is None else decode(QueryTask, found[0])

    def pending_queries(self, namespace: str, task_queue: str) -> int:
        """Count the queries of a queue that no worker has taken."""
        (count,) = self._sql(
            "SELECT COUNT(*) FROM query_task WHERE namespace = ? AND task_queue = ? AND status = 'pending'"
            " AND due_at > ?",
            (namespace, task_queue, to_micros(self.now)),
        ).fetchone()
        return int(count)

    def queries_leased_by(self, namespace: str, worker_id: str) -> list[QueryTask]:
        """Read the queries that a worker holds."""
        found = self._sql(
            "SELECT body FROM query_task WHERE namespace = ? AND lease_owner = ? AND status = 'leased' AND due_at > ?",
            (namespace, worker_id, to_micros(self.now)),
        )
        return [decode(QueryTask, body) for (body,) in found.fetchall()]

    def overdue_queries(self) -> list[QueryTask]:
        """Read the open queries whose budget is used up."""
        found = self._sql(
            "SELECT body FROM query_task WHERE status IN ('pending', 'leased') AND due_at <= ?",
            (to_micros(self.now),),
        )
        return [decode(QueryTask, body) for (body,) in found.fetchall()]

    def forget_queries(self) -> None:
        """Drop the settled queries that were remembered long enough."""
        self._sql(
            "DELETE FROM query_task WHERE status NOT IN ('pending', 'leased') AND due_at <= ?", (to_micros(self.now),)
        )

    def save_query(self, task: QueryTask) -> None:
        """Write a query task; whoever it concerns now is told after the commit."""
        due = task.deadline_at if task.is_open else task.deadline_at + _REMEMBERED
        self.consequences.due(due)
        if task.status == "pending":
            self.consequences.queues.add((task.namespace, query_queue(task.task_queue)))
        elif not task.is_open:
            self.consequences.queues.add(answer_bell(task.namespace, task.query_task_id))
        self._sql(
            "INSERT OR REPLACE INTO query_task VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                task.query_task_id,
                task.namespace,
                task.task_queue,
                task.workflow_type,
                task.status,
                task.lease_owner,
                to_micros(due),
                encode(task),
            ),
        )
