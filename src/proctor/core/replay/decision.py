"""What one replay takes and what it concludes: the input and output values of `proctor.core.replay.replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """A workflow class under its wire name; built by `proctor.workflow.defn`."""

    name: str
    cls: type[Any]


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """One workflow task as far as replay needs it (events.md §2).

    `arguments` is the wire field (envelope, bare blob or None), `history` the whole history, oldest event first.
    With `prepared` every recorded sequence must equal its authored position; a history that shows prepared local
    activities is held to that anyway.
    """

    workflow_id: str
    run_id: str
    workflow_type: str
    payload_codec: str | None
    arguments: object
    history: Sequence[Mapping[str, Any]]
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The attempt that history shows as started and not ended (prepared-local.md §2.8)."""

    activity_execution_id: str
    activity_attempt_id: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Wire commands for ``/complete``, in order; empty means that the run waits for history."""

    commands: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class LocalCall:
    """A local activity that history does not answer yet.

    `prefix` holds the commands authored before it that are not recorded yet and must be checkpointed first;
    `prefix_start` is the sequence of the first of them, or `sequence` when there is none. `descriptor` is what prepare
    and recover take (prepared-local.md §2.3, without ``cancellation_cleanup``): every replay builds the same bytes.
    `last_heartbeat` is the latest recorded ``progress.details``. Timeouts are whole seconds.
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


Decision: TypeAlias = Commands | LocalCall
