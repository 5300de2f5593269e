"""What is due, over all tables: runs and steps whose instant has passed, queues with work, the next instant."""

from __future__ import annotations

from datetime import datetime

from proctor.server.schema import from_micros, to_micros
from proctor.server.tables.base import Table, activity_queue

# Where the tasks of each kind are, what they are while nobody has them, and which of these may be taken by now.
_WORK = {
    "workflow": ("task", "ready", "due_at <= ?"),
    "activity": ("activity_task", "ready", "available_at <= ?"),
    "query": ("query_task", "pending", "due_at > ?"),
    "update_validation": ("update_validation", "pending", "due_at > ?"),
}


class DueTables(Table):
    """Questions of the deadline sweep."""

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

    def has_work(self, kind: str, namespace: str, task_queue: str) -> bool:
        """Whether a queue has a task of this kind that somebody might take.

        Those who wait for workflow tasks may wait for validations, too.
        """
        if kind == "workflow" and self.has_work("update_validation", namespace, task_queue):
            return True
        table, status, due = _WORK[kind]
        found = self._sql(
            f"SELECT 1 FROM {table} WHERE namespace = ? AND task_queue = ? AND status = '{status}' AND {due} LIMIT 1",  # noqa: S608 - constants
            (namespace, task_queue, to_micros(self.now)),
        )
        return found.fetchone() is not None

    def next_due(self) -> datetime | None:
        """Read the earliest future instant at which the sweep has something to do."""
        moment = to_micros(self.now)
        (micros,) = self._sql(
            "SELECT MIN(due) FROM (SELECT MIN(due_at) AS due FROM run WHERE due_at IS NOT NULL"
            " UNION ALL SELECT MIN(due_at) FROM step WHERE due_at IS NOT NULL"
            " UNION ALL SELECT MIN(due_at) FROM task WHERE status = 'leased'"
            " UNION ALL SELECT MIN(due_at) FROM task WHERE status = 'ready' AND due_at > ?"
            " UNION ALL SELECT MIN(available_at) FROM activity_task WHERE status = 'ready' AND available_at > ?"
            " UNION ALL SELECT MIN(due_at) FROM query_task UNION ALL SELECT MIN(due_at) FROM update_validation"
            " UNION ALL SELECT MIN(forget_at) FROM incarnation WHERE forget_at IS NOT NULL)",
            (moment, moment),
        ).fetchone()
        return None if micros is None else from_micros(micros)
