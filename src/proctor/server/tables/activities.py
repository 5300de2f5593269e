"""The attempts of queued activities, as pollers and late reports look for them."""

from __future__ import annotations

from collections.abc import Iterator

from proctor.server.rules.steps import ActivityCall
from proctor.server.schema import to_micros
from proctor.server.tables.base import Table, activity_queue, encode

_PAGE = 100


class ActivityTable(Table):
    """Activity tasks: found by queue, by owner, by poll request and by id."""

    def ready_activities(
        self, namespace: str, task_queue: str, activity_types: tuple[str, ...]
    ) -> Iterator[tuple[str, int]]:
        """Walk over (run id, durable number) of the activities of a queue for these types, longest ready first."""
        types = encode(activity_types).decode()
        after: tuple[int, str] = (-1, "")
        while True:
            page = self._sql(
                "SELECT run_id, sequence, available_at, task_id FROM activity_task WHERE namespace = ?"
                " AND task_queue = ? AND status = 'ready' AND available_at <= ?"
                " AND activity_type IN (SELECT value FROM json_each(?)) AND (available_at, task_id) > (?, ?)"
                " ORDER BY available_at, task_id LIMIT ?",
                (namespace, task_queue, to_micros(self.now), types, *after, _PAGE),
            ).fetchall()
            for run_id, sequence, _, _ in page:
                yield run_id, sequence
            if len(page) < _PAGE:
                return
            after = (page[-1][2], page[-1][3])

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

    def activity_task(self, namespace: str, task_id: str) -> tuple[str, int, str, str | None] | None:
        """Read (run id, durable number, attempt id, lease owner) of an activity task, past ones included."""
        found: tuple[str, int, str, str | None] | None = self._sql(
            "SELECT run_id, sequence, attempt_id, lease_owner FROM activity_task WHERE task_id = ? AND namespace = ?",
            (task_id, namespace),
        ).fetchone()
        return found

    def save_activity_task(self, call: ActivityCall) -> None:
        """Write the current attempt of a call, and note what it gives work to or when."""
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
        if call.worker_session is not None and status != "running":
            # Another activity of the session may have waited for this one to end.
            self.consequences.queues.add((call.namespace, activity_queue(call.queue)))
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
