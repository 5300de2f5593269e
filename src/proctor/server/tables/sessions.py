"""Rows of worker sessions, found by name, by holder and by the instant at which time alone changes them."""

from __future__ import annotations

from datetime import datetime, timedelta

from proctor.server.rules.rows import Registration
from proctor.server.rules.sessions.shapes import WorkerSession
from proctor.server.schema import from_micros, to_micros
from proctor.server.tables.base import activity_queue, decode, encode
from proctor.server.tables.workers import WorkerTable

_INSTANT = timedelta(microseconds=1)


class SessionTable(WorkerTable):
    """Worker sessions, past ones included: a closed name stays closed."""

    def worker_session(self, namespace: str, session_id: str) -> WorkerSession | None:
        """Read one session as it was last written."""
        found = self._sql(
            "SELECT body FROM worker_session WHERE namespace = ? AND session_id = ?", (namespace, session_id)
        ).fetchone()
        return None if found is None else decode(WorkerSession, found[0])

    def worker_sessions(self, namespace: str) -> list[WorkerSession]:
        """Read every session of a namespace."""
        found = self._sql("SELECT body FROM worker_session WHERE namespace = ? ORDER BY session_id", (namespace,))
        return [decode(WorkerSession, body) for (body,) in found]

    def held_sessions(self, namespace: str, worker_id: str) -> int:
        """Count the leases of a worker that have not ended."""
        (count,) = self._sql(
            "SELECT COUNT(*) FROM worker_session WHERE namespace = ? AND lease_owner = ? AND status = 'active'"
            " AND lease_expires_at > ?",
            (namespace, worker_id, to_micros(self.now)),
        ).fetchone()
        return int(count)

    def save_worker_session(self, row: WorkerSession, holder: Registration | None) -> None:
        """Write a session; note when it ends by itself, or wake those who may take what has ended."""
        ends = min(row.lease_expires_at, row.ttl_expires_at)
        if row.status == "active":
            self.consequences.due(ends)
            if holder is not None:
                self.consequences.due(self._silent_at(holder))
        elif row.options.queue is not None:
            self.consequences.queues.add((row.namespace, activity_queue(row.options.queue)))
        self._sql(
            "INSERT OR REPLACE INTO worker_session VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                row.namespace,
                row.session_id,
                row.status,
                row.lease_owner,
                to_micros(row.lease_expires_at),
                to_micros(ends),
                encode(row),
            ),
        )

    def next_session_end(self) -> datetime | None:
        """Read the earliest future instant at which a held session ends by itself."""
        moment = to_micros(self.now)
        (micros,) = self._sql(
            "SELECT MIN(ends_at) FROM worker_session WHERE status = 'active' AND ends_at > ?", (moment,)
        ).fetchone()
        if micros is None:
            return None
        ends = [from_micros(micros)]
        holders = self._sql(
            "SELECT DISTINCT namespace, lease_owner FROM worker_session WHERE status = 'active' AND ends_at > ?",
            (moment,),
        ).fetchall()
        for namespace, worker_id in holders:
            holder = self.registration(namespace, worker_id)
            if holder is not None and self._silent_at(holder) > self.now:
                ends.append(self._silent_at(holder))
        return min(ends)

    def _silent_at(self, holder: Registration) -> datetime:
        """Give the instant from which a worker that says nothing any more counts as gone."""
        return holder.last_heartbeat_at + timedelta(seconds=self.settings.worker_stale_seconds) + _INSTANT
