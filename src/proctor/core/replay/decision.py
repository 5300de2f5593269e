"""What one replay takes and what it concludes: the values between `proctor.core.replay` and the shell that drives it.

The shell (a worker) loads history and replays it, carries out the Decision, and replays anew, with the grown history,
until a Decision ends the task. How each Decision is carried out is said at its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from proctor.core.replay.authoring.handlers import NO_HANDLERS, Handlers


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """A workflow class under its wire name, with the handlers it declares; built by `proctor.workflow.defn`."""

    name: str
    cls: type[Any]
    handlers: Handlers = NO_HANDLERS


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """One workflow task as far as replay needs it (events.md §2).

    `arguments` is the wire field (envelope, bare blob or None), `history` the whole history, oldest event first.
    With `prepared` every recorded sequence must equal its authored position and local activities are admitted by the
    server (profile ``supervised``); a history that shows prepared local activities is held to positions anyway.
    `queue` is where commands without a queue of their own go; `command_id` names the output stream items of this
    task. `cancel_requested` is the legacy flag of the task.

    `uncommitted` is for workers that record local activities in their completion (profile ``ordinary``): the commands
    that earlier replays of this very task authored, in order, each local call followed by the
    ``record_local_activity`` command of its finished execution. Replay takes their outcomes as if history held them,
    so no side effect is drawn twice, and puts them in front of what it authors now.
    """

    workflow_id: str
    run_id: str
    workflow_type: str
    payload_codec: str | None
    arguments: object
    history: Sequence[Mapping[str, Any]]
    prepared: bool = False
    queue: str | None = None
    command_id: str | None = None
    cancel_requested: bool = False
    uncommitted: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The attempt that history shows as started and not ended (prepared-local.md §2.8)."""

    activity_execution_id: str
    activity_attempt_id: str


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The proof that a call belongs to the cleanup of a delivered cancellation (prepared-local.md §5).

    The descriptor holds its first and third field as ``cancellation_cleanup``; receipts must echo all four.
    """

    request_id: str
    root_request_id: str
    delivery_history_event_id: str
    cleanup_deadline_at: str


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """Up to which position a message stream was read, or waits for more (commands.md §0)."""

    stream_name: str
    position: int


@dataclass(frozen=True, slots=True)
class Commands:
    """Wire commands for ``/complete``, in authored order; empty means that the run waits for history.

    The last one is terminal or none is. `cursors` and `stream_waits` go into the same completion as
    ``message_stream_cursors`` (``through_position``) and ``message_stream_waits`` (``after_position``).
    """

    commands: tuple[dict[str, Any], ...]
    cursors: tuple[StreamCursor, ...] = ()
    stream_waits: tuple[StreamCursor, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalCall:
    """A local activity that history does not answer yet.

    `prefix` holds the commands authored before it that are not recorded yet; `prefix_start` is the sequence of the
    first of them, or `sequence` when there is none. Prepared: the prefix is checkpointed and replayed first; it never
    holds a wait. Ordinary: the call is run, and the next replay gets `prefix` and the call's record as `uncommitted`.
    `descriptor` is what prepare and recover take (prepared-local.md §2.3): every replay builds the same bytes.
    `last_heartbeat` is the latest recorded ``progress.details``. Timeouts are whole seconds. `cleanup` is set for a
    call after a delivered cancellation.
    """

    prefix: tuple[dict[str, Any], ...]
    prefix_start: int
    sequence: int
    activity_type: str
    descriptor: dict[str, Any]
    arguments: list[Any]
    interrupted: Interrupted | None
    last_heartbeat: dict[str, Any] | None
    attempts_started: int
    start_to_close_timeout: int | None
    schedule_to_close_timeout: int | None
    heartbeat_timeout: int | None
    cleanup: Cleanup | None = None


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """A group with local activities that history does not answer yet; prepared mode only (prepared-local.md §2.2).

    With a prefix, that is checkpointed and replayed first. `admission` is then the whole group for
    ``checkpoint-group`` at sequence `base`, or empty when history shows it admitted; `calls` are the local members
    without an end, in authored order, each to be prepared, recovered or retried like a single LocalCall (their own
    prefix is empty). Members may run side by side; after each outcome the grown history is replayed.
    """

    prefix: tuple[dict[str, Any], ...]
    prefix_start: int
    base: int
    admission: tuple[dict[str, Any], ...]
    calls: tuple[LocalCall, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """History asks for cancellation and the code stands at the call where it is to be delivered (cancellation.md §4).

    With a prefix, that is completed first and the successor task delivers. Otherwise the worker delivers exactly this
    boundary, reloads and replays. The operation fields belong to `call_kind` ``selection_handle`` only.
    """

    prefix: tuple[dict[str, Any], ...]
    prefix_start: int
    request_id: str
    call_kind: str
    sequence: int
    span: int = 1
    operation_sequence: int | None = None
    operation_span: int = 1


@dataclass(frozen=True, slots=True)
class Unworkable:
    """The code asks for what this worker must not do; the claim is left alone, nothing is reported (replay.md §4)."""

    reason: str
    detail: str


Decision: TypeAlias = Commands | LocalCall | LocalGroup | Boundary | Unworkable


@dataclass(slots=True)
class Authored:
    """The commands of this replay that history does not hold, in authored order; `span` counts their sequences."""

    commands: list[dict[str, Any]] = field(default_factory=list)
    span: int = 0
