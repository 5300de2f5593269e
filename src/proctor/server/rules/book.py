"""`RunBook`: one run with the rows an operation needs, and the changes the rules make to it.

Pure: it holds data, the instant of the operation and a source of ids. Rules read rows, `put` replaced ones and
`record` events; the store writes afterwards what is listed in `changed` and `events`. History itself is not loaded:
recording an event costs the same at the first and at the thousandth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from proctor.core.external import Payload
from proctor.server.rules.quotas import UNBOUNDED, Quotas
from proctor.server.rules.rows import Attempt, Event, Execution, Run, Task, Update
from proctor.server.rules.steps import ActivityCall, ChildCall, ConditionWait, SignalWait, Step, Timer

_encode = msgspec.json.Encoder().encode

Row = Task | Execution | Attempt | Update | Step


@dataclass(frozen=True, slots=True)
class StructuralLimits:
    """How much of a kind a run may have open at once, and how large a turn may be; 0 switches a limit off."""

    command_batch_size: int = 1_000
    history_transaction_size: int = 5_000
    pending_activity_count: int = 2_000
    pending_child_count: int = 1_000
    pending_timer_count: int = 2_000
    pending_signal_count: int = 5_000
    pending_update_count: int = 500


@dataclass(frozen=True, slots=True)
class Settings:
    """What the rules need to know of the server's configuration. Times are in seconds."""

    protocol: str = "1.20"
    lease_seconds: float = 10.0
    cleanup_lease_seconds: float = 10.0
    activity_lease_seconds: float = 60.0
    worker_heartbeat_seconds: int = 10
    worker_stale_seconds: int = 300
    receipt_retention_seconds: int = 600
    max_payload_bytes: int = 2_097_152
    query_seconds: float = 30.0
    max_pending_queries: int = 1_024
    update_seconds: float = 10.0
    validation_seconds: float = 10.0
    failure_backoff_seconds: float = 1.0
    failure_backoff_cap_seconds: float = 60.0
    limits: StructuralLimits = StructuralLimits()
    quotas: Quotas = UNBOUNDED
    policies: tuple[str, ...] = ("try_cancel", "wait_cancellation_completed")
    external_threshold_bytes: int | None = 262_144
    """Clients store payloads larger than this outside of requests; None offers no such storage."""
    external_max_bytes: int = 16_777_216
    external_unclaimed_seconds: int = 86_400

    @property
    def minor(self) -> int:
        """The minor number of the advertised protocol."""
        return int(self.protocol.partition(".")[2])


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What a change to one run means for another, to be done in the same transaction.

    `act` is given the book of `run_id`. When that run begins here, `new` is its row and `input` its input blob, or
    `input_of` names the run whose input it repeats.
    """

    run_id: str
    act: Callable[[RunBook], None]
    new: Run | None = None
    input: Payload | None = None
    input_of: str | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """How a run was closed: the terminal event with its payload, and the children that were still open."""

    event: Event
    payload: Mapping[str, Any]
    children: tuple[ChildCall, ...]


class RunBook:
    """The working copy of one run during one transaction.

    `early_signals` are the signals in history that a wait opened now may take, oldest first; whoever opens waits loads
    them.
    """

    def __init__(
        self,
        run: Run,
        *,
        now: datetime,
        new_id: Callable[[], str],
        settings: Settings,
        tasks: Iterable[Task] = (),
        executions: Iterable[Execution] = (),
        attempts: Iterable[Attempt] = (),
        steps: Iterable[Step] = (),
        updates: Iterable[Update] = (),
    ) -> None:
        self.run = run
        self.now = now
        self.new_id = new_id
        self.settings = settings
        self.tasks = {task.task_id: task for task in tasks}
        self.executions = {row.execution_id: row for row in executions}
        self.attempts = {row.attempt_id: row for row in attempts}
        self.steps = {step.sequence: step for step in steps}
        self.updates = {update.update_id: update for update in updates}
        self.changed: dict[tuple[str, str], Row] = {}
        self.events: list[Event] = []
        self.run_changed = False
        self.output: Payload | None = None
        self.closing: Closing | None = None
        self.follow_ups: list[FollowUp] = []
        self.early_signals: list[Event] = []

    def update_run(self, **changes: Any) -> None:
        """Replace fields of the run."""
        self.run = msgspec.structs.replace(self.run, **changes)
        self.run_changed = True

    def put(self, row: Row) -> None:
        """Add or replace a row."""
        match row:
            case Task():
                self.tasks[row.task_id] = row
                self.changed["task", row.task_id] = row
            case Execution():
                self.executions[row.execution_id] = row
                self.changed["execution", row.execution_id] = row
            case Attempt():
                self.attempts[row.attempt_id] = row
                self.changed["attempt", row.attempt_id] = row
            case Update():
                self.updates[row.update_id] = row
                self.changed["update", row.update_id] = row
                self.update_run(open_updates=sum(update.is_open for update in self.updates.values()))
            case Timer() | ConditionWait() | SignalWait() | ChildCall() | ActivityCall():
                self.steps[row.sequence] = row
                self.changed["step", str(row.sequence)] = row

    def record(
        self,
        event_type: str,
        payload: Mapping[str, Any],
        *,
        task_id: str | None = None,
        command_id: str | None = None,
    ) -> Event:
        """Append one event to the history; it gets the next history sequence and the operation's instant."""
        event = Event(
            id=self.new_id(),
            run_id=self.run.run_id,
            sequence=self.run.last_event + 1,
            event_type=event_type,
            payload=_encode(payload),
            workflow_task_id=task_id,
            workflow_command_id=command_id,
            recorded_at=self.now,
        )
        self.events.append(event)
        self.update_run(last_event=event.sequence, last_progress_at=self.now)
        return event

    def take_sequence(self) -> int:
        """Allot the next durable command number."""
        sequence = self.run.next_sequence
        self.update_run(next_sequence=sequence + 1)
        return sequence

    def open_task(self) -> Task | None:
        """Give the run's ready or leased task; there is never more than one."""
        return next((task for task in self.tasks.values() if task.is_open), None)

    def open_executions(self) -> Iterator[Execution]:
        """Give the local activity calls without a terminal event."""
        return (row for row in list(self.executions.values()) if row.is_open)

    def open_steps(self) -> Iterator[Step]:
        """Give the timers, waits and children without a terminal event, in the order they were authored."""
        return (step for _, step in sorted(self.steps.items()) if step.is_open)

    def open_updates(self) -> list[Update]:
        """Give the accepted updates that no handler has answered, oldest first."""
        waiting = (update for update in self.updates.values() if update.is_open)
        return sorted(waiting, key=lambda update: update.accepted_event_sequence)

    @property
    def awaits_something(self) -> bool:
        """Say whether something open will wake the run without a worker's doing."""
        return any(step.is_open for step in self.steps.values())

    def execution_at(self, sequence: int) -> Execution | None:
        """Give the local activity call with this durable command number, when it is loaded."""
        return next((row for row in self.executions.values() if row.sequence == sequence), None)

    def row_at(self, sequence: int) -> Execution | Step | None:
        """Give whatever was opened under this durable command number, when it is loaded."""
        return self.steps.get(sequence) or self.execution_at(sequence)

    def attempt_of(self, execution: Execution) -> Attempt | None:
        """Give the current attempt of a call; None before the first."""
        return self.attempts.get(execution.current_attempt_id or "")
