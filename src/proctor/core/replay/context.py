"""The `ctx` of workflow code: commands to await, and the deterministic time, randomness and log of the run.

Everything here depends on the run's identity and history only (replay.md §2). It authors commands but answers none.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from proctor.core.replay.commands import (
    CancellationPolicy,
    Command,
    LocalActivity,
    SideEffect,
    VersionDecision,
    local_activity,
    version_decision,
)
from proctor.core.retry import RetryPolicy
from proctor.errors import NonDeterminismError

T = TypeVar("T")
_C = TypeVar("_C", bound=Command[Any])

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER = logging.getLogger("proctor.workflow")

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class ReplaySilentLogger(_Adapter):
    """The run's logger: mute while code runs again that history shows as already run."""

    def __init__(self, extra: Mapping[str, object], is_live: Callable[[], bool]) -> None:
        super().__init__(_LOGGER, dict(extra))
        self._is_live = is_live

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # the name of the standard library
        """Say whether a record of `level` would be written now."""
        return self._is_live() and super().isEnabledFor(level)


class WorkflowContext:
    """What `run` gets as its first argument after self.

    `workflow_id`, `run_id` and `workflow_type` name the run; `logger` adds them to every record.
    """

    def __init__(
        self,
        *,
        workflow_id: str,
        run_id: str,
        workflow_type: str,
        started_at: datetime | None,
        is_live: Callable[[], bool],
    ) -> None:
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.workflow_type = workflow_type
        self.logger = ReplaySilentLogger(
            {"workflow_id": workflow_id, "run_id": run_id, "workflow_type": workflow_type}, is_live
        )
        self._started_at = started_at
        seed = sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._random = random.Random(int(seed, 16))
        self._uuid7_calls = 0
        self._unclaimed: dict[int, Command[Any]] = {}
        self._refusal: NonDeterminismError | None = None

    def local_activity(  # the official keyword set
        self,
        activity_type: str,
        arguments: list[Any] | tuple[Any, ...] = (),
        *,
        retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        start_to_close_timeout: int | None = None,
        schedule_to_close_timeout: int | None = None,
        heartbeat_timeout: int | None = None,
        cancellation_policy: CancellationPolicy | str | None = None,
    ) -> LocalActivity:
        """Run an activity in this worker; awaiting gives its result or raises ActivityFailed.

        Timeouts are whole seconds >= 1 (start_to_close <= schedule_to_close, heartbeat <= start_to_close), None means
        none. Without `retry_policy` there is one attempt. TypeError or ValueError for a wrong option (replay.md §2).
        """
        return self._issue(
            local_activity(
                activity_type,
                arguments,
                retry_policy=retry_policy,
                start_to_close_timeout=start_to_close_timeout,
                schedule_to_close_timeout=schedule_to_close_timeout,
                heartbeat_timeout=heartbeat_timeout,
                cancellation_policy=cancellation_policy,
            )
        )

    def side_effect(self, function: Callable[[], T]) -> SideEffect[T]:
        """Awaiting calls `function` once in the life of the run and gives its recorded value from then on.

        The value must have a payload form (payloads.md §4). An exception of `function` is raised at the await and is
        not recorded.
        """
        if not callable(function):
            raise TypeError(f"side_effect takes a function, not {type(function).__qualname__}")
        return self._issue(SideEffect(function))

    def get_version(self, change_id: str, min_supported: int, max_supported: int) -> VersionDecision[int]:
        """Awaiting gives the version of changed code this run was started with, `max_supported` for new code.

        Runs that passed this place before the change existed get -1 (replay.md §5).
        """
        return self._issue(version_decision(change_id, min_supported, max_supported, int))

    def patched(self, change_id: str) -> VersionDecision[bool]:
        """Awaiting says whether this run goes the new way (True) or passed here before the patch (False)."""
        return self._issue(version_decision(change_id, -1, 1, _is_patched))

    def deprecate_patch(self, change_id: str) -> VersionDecision[None]:
        """Keep the marker of a patch whose old way is gone; awaiting gives None."""
        return self._issue(version_decision(change_id, -1, 1, _nothing))

    def now(self) -> datetime:
        """Give the start of the run (UTC); it never advances.

        A history without a usable WorkflowStarted time makes the workflow task fail (replay.md §3).
        """
        if self._started_at is None:
            self._refusal = NonDeterminismError(
                "the workflow asks for the time, but the history has no WorkflowStarted event with a timestamp; "
                "replay the whole history from its first event",
                sequence=0,
                expected="the time of WorkflowStarted",
                found="no usable time",
            )
            raise self._refusal
        return self._started_at

    def random(self) -> random.Random:
        """Give the run's own random generator, seeded from the run id."""
        return self._random

    def uuid4(self) -> uuid.UUID:
        """Give the next random UUID of this run."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uuid7(self) -> uuid.UUID:
        """Give the next UUID of this run; they sort by the start of the run, then (the first 4096) by call."""
        milliseconds = (self.now() - _EPOCH) // timedelta(milliseconds=1)
        value = (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | (self._uuid7_calls & 0xFFF) << 64 | 2 << 62
        self._uuid7_calls += 1
        return uuid.UUID(int=value | self._random.getrandbits(62))

    def _issue(self, command: _C) -> _C:
        self._unclaimed[id(command)] = command
        return command


def _is_patched(version: int) -> bool:
    return version == 1


def _nothing(_version: int) -> None:
    return None
