"""A writer of recorded histories for the replay tests, in the event form of events.md."""

from __future__ import annotations

from typing import Any

from proctor.core import codec

STARTED_AT = "2026-01-02T03:04:05.678900Z"


class HistoryWriter:
    """Builds one run's history; each call records one event and gives the writer back."""

    def __init__(self, *, started: bool = True, prepared: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self._prepared = prepared
        if started:
            self.add("StartAccepted", outcome="started_new")
            self.add("WorkflowStarted", workflow_type="tests.workflow")

    def add(self, event_type: str, **payload: Any) -> HistoryWriter:
        position = len(self.events) + 1
        self.events.append(
            {
                "id": f"event-{position}",
                "sequence": position,
                "event_type": event_type,
                "payload": payload,
                "recorded_at": STARTED_AT,
            }
        )
        return self

    def _local(self, event_type: str, sequence: int, activity_type: str, **payload: Any) -> HistoryWriter:
        identity = {"execution_mode": "local", "local_activity": True, "sequence": sequence}
        return self.add(
            event_type,
            activity_type=activity_type,
            activity_execution_id=f"execution-{sequence}",
            **identity,
            **payload,
        )

    def scheduled(self, sequence: int, activity_type: str, **payload: Any) -> HistoryWriter:
        return self._local("ActivityScheduled", sequence, activity_type, **payload)

    def started(self, sequence: int, activity_type: str, attempt: int = 1, **payload: Any) -> HistoryWriter:
        if self._prepared:
            payload["local_preparation"] = {"version": 1}
        attempt_id = f"attempt-{sequence}-{attempt}"
        return self._local(
            "ActivityStarted",
            sequence,
            activity_type,
            activity_attempt_id=attempt_id,
            attempt_number=attempt,
            **payload,
        )

    def heartbeat(self, sequence: int, activity_type: str, details: dict[str, Any]) -> HistoryWriter:
        return self._local("ActivityHeartbeatRecorded", sequence, activity_type, progress={"details": details})

    def rescheduled(self, sequence: int, activity_type: str, reason: str = "failure") -> HistoryWriter:
        return self._local("ActivityRetryScheduled", sequence, activity_type, retry_reason=reason)

    def completed(self, sequence: int, activity_type: str, result: object) -> HistoryWriter:
        return self._local(
            "ActivityCompleted", sequence, activity_type, result=codec.envelope(result), payload_codec="avro"
        )

    def failed(self, sequence: int, activity_type: str, **payload: Any) -> HistoryWriter:
        return self._local("ActivityFailed", sequence, activity_type, **payload)

    def timed_out(self, sequence: int, activity_type: str, **payload: Any) -> HistoryWriter:
        return self._local("ActivityTimedOut", sequence, activity_type, **payload)

    def call(self, sequence: int, activity_type: str, result: object) -> HistoryWriter:
        """Record a whole local activity of one attempt."""
        self.scheduled(sequence, activity_type).started(sequence, activity_type)
        return self.completed(sequence, activity_type, result)

    def side_effect(self, sequence: int, value: object) -> HistoryWriter:
        return self.add("SideEffectRecorded", sequence=sequence, result=codec.encode(value))

    def marker(self, sequence: int, change_id: str, version: int, low: int = -1, high: int = 1) -> HistoryWriter:
        return self.add(
            "VersionMarkerRecorded",
            sequence=sequence,
            change_id=change_id,
            version=version,
            min_supported=low,
            max_supported=high,
        )
