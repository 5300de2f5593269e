"""The `ctx` of workflow code: commands to await, and the deterministic time, randomness and log of the run.

Everything here depends on the run's identity and history only (replay.md §2). It authors and checks commands but
answers none.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from proctor.core.replay.authoring import options
from proctor.core.replay.authoring.calls import OperationCalls
from proctor.core.replay.authoring.commands import (
    Command,
    SideEffect,
    UpsertMemo,
    UpsertSearchAttributes,
    VersionDecision,
)
from proctor.core.replay.authoring.memo import canonical_memo
from proctor.core.replay.authoring.saga import Saga
from proctor.core.replay.authoring.service import ServiceOperation, idempotency_key
from proctor.core.replay.authoring.streams import (
    Inbox,
    MessageStream,
    WorkflowStreamAppendItem,
    append_directive,
    end_directive,
)
from proctor.core.replay.failures import WorkflowCancelled
from proctor.core.replay.recorded.cancelling import CancellationContext
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


class WorkflowContext(OperationCalls):
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
        command_id: str | None = None,
        cancel_requested: bool = False,
    ) -> None:
        super().__init__()
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
        self._command_id = command_id
        self._stream_commands = 0
        self._service_calls = 0
        self._inbox = Inbox()
        self._cancel_requested = cancel_requested
        self._request_id: str | None = None
        self._cancellation: CancellationContext | None = None
        self._shields = 0
        self._refusal: NonDeterminismError | None = None

    def side_effect(self, fn: Callable[[], T]) -> SideEffect[T]:
        """Awaiting calls `fn` once in the life of the run and gives its recorded value from then on.

        The value must have a payload form (payloads.md §4). An exception of `fn` is raised at the await and is
        not recorded.
        """
        if not callable(fn):
            raise TypeError(f"side_effect takes a function, not {type(fn).__qualname__}")
        return self._issue(SideEffect(fn))

    def get_version(self, change_id: str, min_supported: int, max_supported: int) -> VersionDecision[int]:
        """Awaiting gives the version of changed code this run was started with, `max_supported` for new code.

        Runs that passed this place before the change existed get -1 (replay.md §5).
        """
        return self._version(change_id, min_supported, max_supported, int)

    def patched(self, change_id: str) -> VersionDecision[bool]:
        """Awaiting says whether this run goes the new way (True) or passed here before the patch (False)."""
        return self._version(change_id, -1, 1, _is_patched)

    def deprecate_patch(self, change_id: str) -> VersionDecision[None]:
        """Keep the marker of a patch whose old way is gone; awaiting gives None."""
        return self._version(change_id, -1, 1, _nothing)

    def upsert_memo(self, entries: Mapping[str, Any]) -> UpsertMemo:
        """Merge `entries` into the memo of the run; None deletes one. Limits: payloads.md §9."""
        return self._issue(UpsertMemo(canonical_memo(entries)))

    def upsert_search_attributes(self, attributes: Mapping[str, Any]) -> UpsertSearchAttributes:
        """Set search attributes of the run: scalars or lists of texts; None deletes one."""
        if not isinstance(attributes, Mapping):
            raise TypeError(f"search attributes are a mapping, not {type(attributes).__qualname__}")
        return self._issue(UpsertSearchAttributes(dict(attributes)))

    def message_stream(self, name: str) -> MessageStream:
        """Open the input stream `name` (1 to 128 of letters, digits and ``. _ : -``)."""
        return MessageStream(name, self._inbox)

    def append_workflow_stream(
        self, stream_name: str, items: Sequence[WorkflowStreamAppendItem], *, max_pending_items: int | None = None
    ) -> SideEffect[None]:
        """Append items to an output stream of this run, once."""
        return self._stream(append_directive(self, stream_name, items, max_pending_items))

    def close_workflow_stream(self, stream_name: str, *, retention_seconds: int | None = None) -> SideEffect[None]:
        """Close an output stream of this run."""
        return self._stream(end_directive(self, stream_name, None, retention_seconds))

    def error_workflow_stream(
        self, stream_name: str, error_reason: str, *, retention_seconds: int | None = None
    ) -> SideEffect[None]:
        """Mark an output stream of this run as broken."""
        return self._stream(end_directive(self, stream_name, error_reason or "", retention_seconds))

    def call_nexus_service(
        self,
        endpoint_name: str,
        service_name: str,
        operation_name: str,
        arguments: Sequence[Any] | None = None,
        *,
        idempotency_key: str | None = None,
        mode: str | None = "sync",
        wait_for: str | None = "completed",
        target_namespace: str | None = None,
        **more: Any,
    ) -> ServiceOperation:
        """Call an operation of another service; awaiting gives a NexusOperationResult or raises NexusOperationFailed.

        `more` are the optional fields of ``start_service_operation`` by their wire names (commands.md §2).
        """
        names = (
            options.name("endpoint name", endpoint_name),
            options.name("service name", service_name),
            options.name("operation name", operation_name),
        )
        target = options.optional_name("target namespace", target_namespace)
        values = options.arguments("service operation", arguments)
        metadata = {"target_namespace": target} | {
            key: more.pop(key, None)
            for key in ("service_sdk_language", "artifact_tuple", "published_artifact_worker_execution")
        }
        ordinal, self._service_calls = self._service_calls, self._service_calls + 1
        return self._issue(
            ServiceOperation(
                *names,
                arguments=values,
                idempotency_key=options.optional_name("idempotency key", idempotency_key)
                or _call_key(self, ordinal, names, values, target),
                mode=mode,
                wait_for=wait_for,
                target_namespace=target,
                metadata={key: value for key, value in metadata.items() if value is not None},
                options=options.service(more),
            )
        )

    def start_nexus_operation(
        self,
        endpoint_name: str,
        service_name: str,
        operation_name: str,
        arguments: Sequence[Any] | None = None,
        **more: Any,
    ) -> ServiceOperation:
        """Start an operation of another service and go on as soon as it is accepted."""
        given = {"mode": "async", "wait_for": "accepted"} | more
        return self.call_nexus_service(endpoint_name, service_name, operation_name, arguments, **given)

    def saga(self) -> Saga:
        """Begin a sequence of steps that are undone in reverse order when one fails."""
        return Saga(self)

    @property
    def is_cancellation_requested(self) -> bool:
        """Whether a cancellation was delivered to this code (or the task carries the legacy flag)."""
        return self._cancel_requested

    @property
    def cancellation_context(self) -> CancellationContext | None:
        """Who asked for the delivered cancellation and until when cleanup may last; None before."""
        return self._cancellation

    def throw_if_cancellation_requested(self) -> None:
        """Raise WorkflowCancelled at this place if a cancellation was delivered and no shield is open."""
        if self._cancel_requested and not self._shields:
            raise WorkflowCancelled(request_id=self._request_id, context=self._cancellation)

    @contextmanager
    def cancellation_shield(self) -> Generator[None, None, None]:
        """Let calls run that belong to cleanup: inside, no cancellation is delivered. It extends no deadline."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

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

    def _version(
        self, change_id: str, min_supported: int, max_supported: int, convert: Callable[[int], T]
    ) -> VersionDecision[T]:
        options.versions(min_supported, max_supported)
        return self._issue(VersionDecision(options.name("change id", change_id), min_supported, max_supported, convert))

    def _stream(self, directive: Mapping[str, Any]) -> SideEffect[None]:
        return self._issue(SideEffect(_nothing_drawn, directive))

    def _next_stream_ordinal(self) -> int:
        self._stream_commands += 1
        return self._stream_commands - 1

    def _deliver(self, request_id: str, cancellation: CancellationContext | None) -> None:
        self._cancel_requested = True
        self._request_id = request_id
        self._cancellation = cancellation


def _call_key(
    ctx: WorkflowContext, ordinal: int, names: tuple[str, str, str], arguments: list[Any], target: str | None
) -> str:
    return idempotency_key(
        workflow_id=ctx.workflow_id,
        run_id=ctx.run_id,
        ordinal=ordinal,
        names=names,
        arguments=arguments,
        target=target,
    )


def _nothing_drawn() -> None:
    return None


def _is_patched(version: int) -> bool:
    return version == 1


def _nothing(_version: int) -> None:
    return None
