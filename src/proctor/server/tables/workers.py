"""Worker registrations, and what is remembered of past ones."""

from __future__ import annotations

from proctor.server.rules.rows import Incarnation, Registration
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table, activity_queue, decode, encode


class WorkerTable(Table):
    """Registrations by worker id, incarnations by token."""

    def registration(self, namespace: str, worker_id: str) -> Registration | None:
        """Read the active registration of a worker id."""
        found = self._sql(
            "SELECT body FROM registration WHERE namespace = ? AND worker_id = ?", (namespace, worker_id)
        ).fetchone()
        return None if found is None else decode(Registration, found[0])

    def registrations(self, namespace: str) -> list[Registration]:
        """Read every active registration of a namespace."""
        found = self._sql("SELECT body FROM registration WHERE namespace = ? ORDER BY worker_id", (namespace,))
        return [decode(Registration, body) for (body,) in found]

    def save_registration(self, row: Registration) -> None:
        """Write a registration."""
        self._sql("INSERT OR REPLACE INTO registration VALUES (?, ?, ?)", (row.namespace, row.worker_id, encode(row)))

    def delete_registration(self, namespace: str, worker_id: str) -> None:
        """Forget the active registration of a worker id; what its sessions kept others from is free."""
        known = self.registration(namespace, worker_id)
        if known is not None:
            self.consequences.queues.add((namespace, activity_queue(known.task_queue)))
        self._sql("DELETE FROM registration WHERE namespace = ? AND worker_id = ?", (namespace, worker_id))

    def incarnation(self, token: str) -> Incarnation | None:
        """Read what is remembered of a registration token."""
        found = self._sql("SELECT body FROM incarnation WHERE token = ?", (token,)).fetchone()
        return None if found is None else decode(Incarnation, found[0])

    def save_incarnation(self, row: Incarnation) -> None:
        """Write what is remembered of a registration token."""
        self.consequences.due(row.forget_at)
        self._sql(
            "INSERT OR REPLACE INTO incarnation VALUES (?, ?, ?)",
            (row.token, None if row.forget_at is None else to_micros(row.forget_at), encode(row)),
        )

    def forget_incarnations(self) -> None:
        """Drop the tokens whose retention is over."""
        self._sql("DELETE FROM incarnation WHERE forget_at <= ?", (to_micros(self.now),))
