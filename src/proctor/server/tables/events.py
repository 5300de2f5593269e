"""History events: appended once, read in pages, never changed."""

from __future__ import annotations

from itertools import islice
from typing import Any

from proctor.server.rules.rows import Event
from proctor.server.schema import from_micros, to_micros
from proctor.server.tables.base import Table


class EventTable(Table):
    """The history of each run."""

    def history(self, run_id: str, *, after: int, limit: int) -> list[Event]:
        """Read up to `limit` events behind the history sequence `after`."""
        found = self._sql(
            "SELECT sequence, id, event_type, task_id, command_id, recorded_at, payload FROM event"
            " WHERE run_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
            (run_id, after, limit),
        )
        return [_event(run_id, row) for row in found]

    def signals(self, run_id: str, name: str, *, after: int, limit: int) -> list[Event]:
        """Read up to `limit` signals of one name that were received behind the history sequence `after`."""
        found = self._sql(
            "SELECT sequence, id, event_type, task_id, command_id, recorded_at, payload FROM event"
            " WHERE run_id = ? AND sequence > ? AND event_type = 'SignalReceived' ORDER BY sequence",
            (run_id, after),
        )
        events = (_event(run_id, row) for row in found)
        return list(islice((event for event in events if event.facts["signal_name"] == name), limit))

    def retry_of(self, run_id: str, task_id: str) -> Event | None:
        """Read how the attempt of an activity task ended that was followed by another one."""
        found = self._sql(
            "SELECT sequence, id, event_type, task_id, command_id, recorded_at, payload FROM event"
            " WHERE run_id = ? AND event_type = 'ActivityRetryScheduled' AND task_id = ? ORDER BY sequence",
            (run_id, task_id),
        ).fetchone()
        return None if found is None else _event(run_id, found)

    def save_events(self, events: list[Event]) -> None:
        """Append events."""
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


def _event(run_id: str, row: tuple[Any, ...]) -> Event:
    sequence, event_id, event_type, task_id, command_id, recorded_at, payload = row
    return Event(
        id=event_id,
        run_id=run_id,
        sequence=sequence,
        event_type=event_type,
        payload=payload,
        workflow_task_id=task_id,
        workflow_command_id=command_id,
        recorded_at=from_micros(recorded_at),
    )
