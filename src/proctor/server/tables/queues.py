"""What waits in task queues and what is leased from them, as operators read it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from proctor.server.rules.rows import Task
from proctor.server.rules.steps import ActivityCall, Step
from proctor.server.schema import from_micros, to_micros
from proctor.server.tables.base import Table, decode

_decode_step = msgspec.json.Decoder(Step).decode


class QueueTable(Table):
    """Counts over workflow and activity tasks; leases that have ended must have been taken back before."""

    def task_queues(self, namespace: str) -> list[str]:
        """Read the names of the queues that have open tasks."""
        found = self._sql(
            "SELECT task_queue FROM task WHERE namespace = ? AND status IN ('ready', 'leased') UNION"
            " SELECT task_queue FROM activity_task WHERE namespace = ? AND status IN ('ready', 'running')",
            (namespace, namespace),
        )
        return [name for (name,) in found]

    def waiting_in(self, namespace: str, task_queue: str) -> tuple[int, int]:
        """Count the due workflow tasks and activity tasks of a queue that nobody has taken."""
        values = (namespace, task_queue, to_micros(self.now))
        (workflow_tasks,) = self._sql(
            "SELECT COUNT(*) FROM task WHERE namespace = ? AND task_queue = ? AND status = 'ready' AND due_at <= ?",
            values,
        ).fetchone()
        (activity_tasks,) = self._sql(
            "SELECT COUNT(*) FROM activity_task WHERE namespace = ? AND task_queue = ? AND status = 'ready'"
            " AND available_at <= ?",
            values,
        ).fetchone()
        return workflow_tasks, activity_tasks

    def leased_from(self, namespace: str, task_queue: str | None = None) -> tuple[int, int]:
        """Count the leased workflow tasks and the running activity tasks of a queue, or of the whole namespace."""
        (workflow_tasks,) = self._sql(
            "SELECT COUNT(*) FROM task WHERE namespace = ?1 AND status = 'leased' AND (?2 IS NULL OR task_queue = ?2)",
            (namespace, task_queue),
        ).fetchone()
        (activity_tasks,) = self._sql(
            "SELECT COUNT(*) FROM activity_task WHERE namespace = ?1 AND status = 'running'"
            " AND (?2 IS NULL OR task_queue = ?2)",
            (namespace, task_queue),
        ).fetchone()
        return workflow_tasks, activity_tasks

    def longest_waiting(self, namespace: str, task_queue: str) -> tuple[str, str, str, datetime] | None:
        """Read (task id, kind, run id, due since) of the task that has waited longest."""
        found = self._sql(
            "SELECT task_id, kind, run_id, since FROM ("
            " SELECT task_id, 'workflow' AS kind, run_id, due_at AS since FROM task"
            " WHERE namespace = ?1 AND task_queue = ?2 AND status = 'ready' AND due_at <= ?3 UNION ALL"
            " SELECT task_id, 'activity', run_id, available_at FROM activity_task"
            " WHERE namespace = ?1 AND task_queue = ?2 AND status = 'ready' AND available_at <= ?3)"
            " ORDER BY since, task_id LIMIT 1",
            (namespace, task_queue, to_micros(self.now)),
        ).fetchone()
        return None if found is None else (*found[:3], from_micros(found[3]))

    def leased_tasks(self, namespace: str, task_queue: str, limit: int) -> list[Task]:
        """Read the leased workflow tasks of a queue, those that end first before the others."""
        found = self._sql(
            "SELECT body FROM task WHERE namespace = ? AND task_queue = ? AND status = 'leased'"
            " ORDER BY due_at, task_id LIMIT ?",
            (namespace, task_queue, limit),
        ).fetchall()
        return [decode(Task, body) for (body,) in found]

    def leased_activities(self, namespace: str, task_queue: str, limit: int) -> list[ActivityCall]:
        """Read the running activities of a queue, oldest task first."""
        found = self._sql(
            "SELECT step.body FROM activity_task JOIN step ON step.run_id = activity_task.run_id"
            " AND step.sequence = activity_task.sequence WHERE activity_task.namespace = ?"
            " AND activity_task.task_queue = ? AND activity_task.status = 'running'"
            " ORDER BY activity_task.task_id LIMIT ?",
            (namespace, task_queue, limit),
        ).fetchall()
        return [step for (body,) in found if isinstance(step := _decode_step(body), ActivityCall)]
