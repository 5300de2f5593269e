"""The durable facts of the server as plain frozen records; the store writes them, the rules replace them.

Only shapes live here: no rule, no SQL, no clock. A record is changed with `msgspec.structs.replace` and handed to
`RunBook.put`. All instants are aware UTC datetimes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, json

from proctor.core.external import Payload

TERMINAL_STATUSES = frozenset({"completed", "failed", "cancelled", "terminated"})


class Boundary(Struct, frozen=True):
    """Where workflow code receives a cancellation: the authored call and the numbers it spans.

    A call that awaits the handle of a selection's member has a number of its own and names those of the member.
    """

    sequence: int
    call_kind: str
    sequence_span: int = 1
    operation_sequence: int | None = None
    operation_sequence_span: int = 1

    @property
    def awaited(self) -> range:
        """The durable numbers of what the call waits for."""
        if self.operation_sequence is None:
            return range(self.sequence, self.sequence + self.sequence_span)
        return range(self.operation_sequence, self.operation_sequence + self.operation_sequence_span)


class Delivery(Struct, frozen=True):
    """A committed cancellation delivery and the history event that records it."""

    boundary: Boundary
    event_id: str
    delivered_at: datetime


class Cancellation(Struct, frozen=True, kw_only=True):
    """The one cooperative cancellation request of a run (cancellation.md §3 to §6); its deadline never moves."""

    request_id: str
    reason: str | None
    requested_at: datetime
    cleanup_deadline_at: datetime
    event_id: str
    event_sequence: int
    context: dict[str, Any]
    delivery: Delivery | None = None
    awaiting: Boundary | None = None


class LastSignal(Struct, frozen=True, kw_only=True):
    """The newest signal of a run."""

    event_sequence: int
    signal_id: str
    name: str


class Parent(Struct, frozen=True, kw_only=True):
    """The call that started a child: who waits for it, under which durable number, and what its end means for it."""

    workflow_id: str
    run_id: str
    sequence: int
    child_call_id: str
    workflow_link_id: str
    parent_close_policy: str = "abandon"


class RunRetry(Struct, frozen=True, kw_only=True):
    """How often a child is tried after failures, and which try this run is; pauses are in seconds."""

    max_attempts: int
    backoff_seconds: tuple[int, ...] = ()
    non_retryable_error_types: tuple[str, ...] = ()
    attempt: int = 1


class Affinity(Struct, frozen=True, kw_only=True):
    """The worker that may still hold the history of a run in its cache, and until when (sticky.md §5)."""

    worker_id: str
    until: datetime


class Run(Struct, frozen=True, kw_only=True):
    """One workflow run. `next_sequence` is the next free durable command number (events.md §3).

    Workers of another build than `compatibility`, if there is one, or without one of the `needed_capabilities` get
    nothing that replays the run. `last_receiver` is the history sequence of the newest event that workflow code
    receives without asking for it.
    Of the `signals` received, `signals_leased` were in history when a worker last took a task of the run, and
    `signals_applied` when it completed one. `taken_signals` holds by name the history sequence of the newest one that a
    signal wait has taken; those of one name are taken in the order of their arrival.
    """

    namespace: str
    workflow_id: str
    run_id: str
    run_number: int
    workflow_type: str
    task_queue: str
    status: str = "pending"
    closed_reason: str | None = None
    payload_codec: str = "avro"
    next_sequence: int = 1
    last_event: int = 0
    memo: dict[str, Any] | None = None
    memo_blob: str | None = None
    search_attributes: dict[str, Any] | None = None
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    execution_deadline_at: datetime | None = None
    run_deadline_at: datetime | None = None
    started_at: datetime
    closed_at: datetime | None = None
    last_progress_at: datetime
    wake_pending: bool = False
    task_failures: int = 0
    last_task_failure: str | None = None
    needs_policy_support: bool = False
    needed_capabilities: tuple[str, ...] = ()
    cancellation: Cancellation | None = None
    last_receiver: int = 0
    signals: int = 0
    signals_leased: int = 0
    signals_applied: int = 0
    last_signal: LastSignal | None = None
    taken_signals: dict[str, int] = {}
    parent: Parent | None = None
    retry: RunRetry | None = None
    previous_run_id: str | None = None
    next_run_id: str | None = None
    resolved_selections: tuple[str, ...] = ()
    open_updates: int = 0
    affinity: Affinity | None = None
    compatibility: str | None = None

    @property
    def is_closed(self) -> bool:
        """Say whether a terminal event is recorded."""
        return self.status in TERMINAL_STATUSES


class Claim(Struct, frozen=True, kw_only=True):
    """What was true of the worker when it leased a task; later edits of its registration change nothing here."""

    worker_id: str
    registration_token: str
    protocol: str
    capabilities: tuple[str, ...]
    epoch: int

    @property
    def minor(self) -> int:
        """The minor number of the protocol the task was leased under."""
        return int(self.protocol.partition(".")[2])


class CheckpointReceipt(Struct, frozen=True, kw_only=True):
    """The latest checkpoint of a hosting task: enough to recognise its repetition and to answer it again.

    `local_activities` are the admitted local members of a group, (durable number, execution id); None outside groups.
    """

    checkpoint_id: str
    fingerprint: str
    lease_owner: str
    epoch: int
    start_sequence: int
    next_sequence: int
    recorded_at: datetime
    local_activities: tuple[tuple[int, str], ...] | None = None


class Task(Struct, frozen=True, kw_only=True):
    """One workflow task: ready, leased, completed or cancelled. `attempt` counts its leases.

    `sticky_replay_mode` is chosen at each lease; `forced_cold_replay` says that it can be nothing else any more. A task
    with an `update_id` is for this update alone.
    """

    task_id: str
    namespace: str
    run_id: str
    workflow_id: str
    workflow_type: str
    task_queue: str
    status: str = "ready"
    attempt: int = 0
    available_at: datetime
    claim: Claim | None = None
    lease_expires_at: datetime | None = None
    affinity: Affinity | None = None
    forced_cold_replay: bool = False
    sticky_replay_mode: str | None = None
    sticky_claimed_at: datetime | None = None
    resume_source_kind: str | None = None
    resume_source_id: str | None = None
    workflow_command_id: str | None = None
    update_id: str | None = None
    checkpoint: CheckpointReceipt | None = None

    @property
    def is_open(self) -> bool:
        """Say whether the task can still lead to a completion."""
        return self.status in {"ready", "leased"}


class Update(Struct, frozen=True, kw_only=True):
    """One accepted update of a run: accepted, completed or failed. `failure` is why it failed, as its event has it."""

    update_id: str
    run_id: str
    name: str
    arguments: Payload | None = None
    command_id: str
    request_id: str | None = None
    accepted_event_sequence: int
    accepted_at: datetime
    status: str = "accepted"
    workflow_sequence: int | None = None
    closed_at: datetime | None = None
    result: Payload | None = None
    failure: dict[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Say whether its handler is still to answer."""
        return self.status == "accepted"


class Cleanup(Struct, frozen=True, kw_only=True):
    """The proof that a call runs inside cancellation cleanup (prepared-local.md §7)."""

    request_id: str
    root_request_id: str
    delivery_history_event_id: str
    cleanup_deadline_at: datetime


class Execution(Struct, frozen=True, kw_only=True):
    """One durable local activity call, over all its attempts."""

    execution_id: str
    run_id: str
    sequence: int
    activity_type: str
    status: str = "pending"
    attempt_count: int = 0
    arguments: Payload | None = None
    payload_codec: str = "avro"
    queue: str
    descriptor_fingerprint: str = ""
    group: dict[str, Any] = {}
    max_attempts: int = 1
    backoff_seconds: tuple[int, ...] = ()
    non_retryable_error_types: tuple[str, ...] = ()
    start_to_close_timeout: int | None = None
    schedule_to_close_timeout: int | None = None
    heartbeat_timeout: int | None = None
    cancellation_policy: str | None = None
    schedule_to_close_deadline_at: datetime | None = None
    cleanup: Cleanup | None = None
    current_attempt_id: str | None = None
    retry_available_at: datetime | None = None
    closed_event_sequence: int | None = None
    cancelled_event_id: str | None = None
    cancelled_event_sequence: int | None = None

    @property
    def is_open(self) -> bool:
        """Say whether no terminal event of this call is recorded."""
        return self.status in {"pending", "running"}


class Receipt(Struct, frozen=True, kw_only=True):
    """The first recorded answer about an attempt (an outcome or a recovery); it never changes."""

    fingerprint: str
    event_id: str
    event_type: str
    recorded_at: datetime
    claim_released: bool
    created_task_ids: tuple[str, ...] = ()
    task_id: str
    epoch: int
    lease_owner: str


class StopReceipt(Struct, frozen=True, kw_only=True):
    """The acknowledged physical stop of a cancelled attempt."""

    event_id: str
    request_id: str
    acknowledged_at: datetime
    received_after_deadline: bool


class Attempt(Struct, frozen=True, kw_only=True):
    """One admitted execution of a handler, owned by the claim (`task_id`, `lease_owner`, `epoch`)."""

    attempt_id: str
    execution_id: str
    run_id: str
    worker_attempt_id: str | None = None
    attempt_number: int
    status: str = "running"
    task_id: str
    epoch: int
    lease_owner: str
    registration_token: str
    started_event_sequence: int
    started_task: dict[str, Any]
    lease_expires_at: datetime
    start_to_close_deadline_at: datetime | None = None
    heartbeat_deadline_at: datetime | None = None
    outcome: Receipt | None = None
    recovery: Receipt | None = None
    stop: StopReceipt | None = None


class Registration(Struct, frozen=True, kw_only=True):
    """One active worker registration; `token` names the incarnation."""

    namespace: str
    worker_id: str
    token: str
    task_queue: str
    runtime: str
    sdk_version: str | None = None
    build_id: str | None = None
    protocol: str
    workflow_types: tuple[str, ...] = ()
    activity_types: tuple[str, ...] = ()
    fingerprints: dict[str, str] = {}
    command_contracts: dict[str, Any] = {}
    capabilities: tuple[str, ...] = ()
    manifest: dict[str, Any] = {}
    max_concurrent_workflow_tasks: int = 100
    max_concurrent_activity_tasks: int = 100
    max_concurrent_worker_sessions: int = 10
    task_slots: dict[str, Any] | None = None
    process_metrics: dict[str, Any] | None = None
    heartbeat_interval_seconds: int = 10
    registered_at: datetime
    last_heartbeat_at: datetime


class Incarnation(Struct, frozen=True, kw_only=True):
    """The memory of a registration token: active, superseded or deregistered, kept for the receipt retention."""

    token: str
    namespace: str
    worker_id: str
    state: str = "active"
    forget_at: datetime | None = None
    recovered_workflow_task_count: int = 0


class Event(Struct, frozen=True, kw_only=True):
    """One history event; `payload` is its JSON text, encoded once when it is recorded."""

    id: str
    run_id: str
    sequence: int
    event_type: str
    payload: bytes
    workflow_task_id: str | None
    workflow_command_id: str | None
    recorded_at: datetime

    @property
    def facts(self) -> dict[str, Any]:
        """Give the payload as it was recorded."""
        told: dict[str, Any] = json.decode(self.payload)
        return told
