"""Workflow tasks and the poll requests that led to their leases."""

from __future__ import annotations

from collections.abc import Iterator

from proctor.server.rules.rows import Task
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table, decode, encode


class TaskTable(Table):
    """Workflow tasks: found by queue, by owner and by the end of their lease."""

    def ready_tasks(self, namespace: str, task_queue: str, workflow_types: tuple[str, ...]) -> Iterator[Task]:
        """Walk over the ready, due tasks of a queue for these workflow types, longest due first."""
        found = self._sql(
            "SELECT body FROM task WHERE namespace = ? AND task_queue = ? AND status = 'ready' AND due_at <= ?"
            " AND workflow_type IN (SELECT value FROM json_each(?)) ORDER BY due_at, task_id",
            (namespace, task_queue, to_micros(self.now), encode(workflow_types).decode()),
        )
        while (next_row := found.fetchone()) is not None:
            yield decode(Task, next_row[0])

    def leased_by(self, namespace: str, worker_id: str) -> list[Task]:
        """Read the tasks that a worker holds."""
        found = self._sql(
            "SELECT body FROM task WHERE namespace = ? AND lease_owner = ? AND status = 'leased'",
            (namespace, worker_id),
        )
        return [decode(Task, body) for (body,) in found]

    def expired_task_ids(self) -> list[tuple[str, str]]:
        """Read (namespace, task id) of every task whose lease has ended."""
        found = self._sql(
            "SELECT namespace, task_id FROM task WHERE status = 'leased' AND due_at <= ?", (to_micros(self.now),)
        )
        return list(found)

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

    def save_task(self, task: Task) -> None:
        """Write a task, and note the queue it gives work to or the instant at which it is due."""
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
                encode(task),
            ),
        )
