"""The state of one scripted run: its clock, its history, its leases, its cancellation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import trio

from proctor.core.instants import format_instant

Body = dict[str, Any]

_WALL_START = datetime(2026, 10, 2, tzinfo=UTC)


class ScriptedRun:
    """One run. Its time is trio's clock."""

    def __init__(self, *, lease: float, worker_id: str) -> None:
        self.lease = lease
        self.worker_id = worker_id
        self.history: list[Body] = []
        self.task_ready = False
        self.task_number = 1
        self.epoch = 0
        self.arguments: list[Any] = []
        self.leased_until: datetime | None = None
        self.execution_id = "E"
        self.admitted: dict[int, str] = {}
        self.attempt: Body | None = None
        self.attempts = 0
        self.execution_started: datetime | None = None
        self.cancellation: Body | None = None
        self.something_ready = trio.Event()
        self._origin: float | None = None

    @property
    def now(self) -> datetime:
        if self._origin is None:
            self._origin = trio.current_time()
        return _WALL_START + timedelta(seconds=trio.current_time() - self._origin)

    def start_run(self, *arguments: Any) -> None:
        self.arguments = list(arguments)
        self._record("StartAccepted", {})
        self._record("WorkflowStarted", {"workflow_type": "wf"})
        self.make_ready()

    def make_ready(self) -> None:
        self.task_ready = True
        self.something_ready.set()

    def request_cancellation(self) -> None:
        self.cancellation = {
            "request_id": "Q",
            "requested_at": self.stamp(0),
            "cleanup_deadline_at": self.stamp(600),
            "delivery_sequence": None,
            "delivered_at": None,
            "history_refresh_page_token": "MA==",
        }
        self._record(
            "CooperativeCancellationRequested",
            {
                "workflow_command_id": "Q",
                "workflow_run_id": "R",
                "cleanup_deadline_at": self.cancellation["cleanup_deadline_at"],
                "cancellation": self.context(),
            },
        )

    def context(self) -> Body:
        assert self.cancellation is not None
        return {
            "schema": "durable-workflow.cancellation-context/v1",
            "request_id": "Q",
            "root_request_id": "Q",
            "root_workflow_instance_id": "wf-1",
            "root_workflow_run_id": "R",
            "parent_request_id": None,
            "reason": None,
            "requester": {"type": "operator"},
            "source": "control_plane",
            "requested_at": self.cancellation["requested_at"],
            "cleanup_deadline_at": self.cancellation["cleanup_deadline_at"],
            "lineage": [{"request_id": "Q", "workflow_instance_id": "wf-1", "workflow_run_id": "R"}],
        }

    def stamp(self, seconds: float) -> str:
        return format_instant(self.now + timedelta(seconds=seconds))

    def _after(self, seconds: int | None) -> datetime | None:
        return None if seconds is None else self.now + timedelta(seconds=seconds)

    def _renew(self) -> None:
        self.leased_until = self.now + timedelta(seconds=self.lease)

    def _lease_over(self) -> bool:
        return self.leased_until is None or self.leased_until <= self.now

    def _due(self) -> str | None:
        assert self.attempt is not None
        for kind in ("schedule_to_close", "heartbeat", "start_to_close"):
            if self.attempt[kind] is not None and self.attempt[kind] <= self.now:
                return kind
        return None

    def _stop_reason(self) -> str | None:
        if self.cancellation is not None:
            return "cancellation_requested"
        if self._lease_over():
            return "workflow_claim_expired"
        return "local_activity_deadline_expired" if self._due() is not None else None

    def _deadlines(self) -> Body:
        assert self.attempt is not None
        return {
            f"{name}_deadline_at": None if self.attempt[name] is None else format_instant(self.attempt[name])
            for name in ("start_to_close", "schedule_to_close", "heartbeat")
        }

    def _record_activity(
        self, kind: str, sequence: int, activity_type: str, attempt_id: str | None = "", **payload: Any
    ) -> Body:
        held = self.attempt["id"] if attempt_id == "" and self.attempt is not None else attempt_id
        return self._record(
            kind,
            {
                "sequence": sequence,
                "activity_type": activity_type,
                "activity_execution_id": self.execution_id,
                "activity_attempt_id": held,
                "execution_mode": "local",
                "local_activity": True,
                **payload,
            },
        )

    def _record(self, kind: str, payload: Body) -> Body:
        number = len(self.history) + 1
        event = {
            "id": f"V{number}",
            "sequence": number,
            "event_type": kind,
            "payload": payload,
            "recorded_at": self.stamp(0),
        }
        self.history.append(event)
        return event

    @property
    def task_id(self) -> str:
        return f"T{self.task_number}"
