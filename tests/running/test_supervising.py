"""The bridge to the supervisor: jobs become tasks, outcomes become ends, bytes of a child are checked."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from proctor import activity
from proctor.core.attempt import NotStarted, Raised, Returned, StopCause, Unproven, WasStopped
from proctor.core.codec import encode_bytes
from proctor.core.jobs import Job, Limits
from proctor.supervising import SupervisedChildren, child_end
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Failed,
    FailureInfo,
    Heartbeat,
    Outcome,
    Stopped,
    StopProof,
    StopReason,
    StopUnconfirmed,
    SupervisorClosed,
    Task,
    TaskRefused,
)
from proctor_supervisor.outcome import FailureKind

LIMIT = 1000


@activity.defn(name="act")
def act() -> None: ...


class OneOutcome:
    """A supervisor that gives one outcome, or raises."""

    def __init__(self, outcome: Outcome | Exception) -> None:
        self.outcome = outcome
        self.tasks: list[Task] = []
        self.controls: list[AttemptControl | None] = []

    async def run(
        self,
        task: Task,
        *,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
        on_output: Any = None,
        control: AttemptControl | None = None,
    ) -> Outcome:
        self.tasks.append(task)
        self.controls.append(control)
        assert on_heartbeat is not None
        on_heartbeat(Heartbeat(b"beat", 1.0, 0))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def job() -> Job:
    limits = Limits(attempt=10.0, total=20.0, authority=5.0, heartbeat_timeout=3)
    return Job("act", "A1", b"payload", b"context", limits, LIMIT)


def completed(result: bytes) -> Completed:
    return Completed(pid=7, duration=1.5, heartbeats=4, heartbeats_dropped=1, result=result)


def failed(kind: FailureKind, **facts: Any) -> Failed:
    info = {"type_name": "ValueError", "module": "builtins", "message": "no", **facts}
    return Failed(pid=7, duration=0.1, failure=FailureInfo(**info), kind=kind)


def proof(reason: StopReason) -> StopProof:
    return StopProof(
        pid=7,
        started_at=1,
        reason=reason,
        detail="",
        steps=(),
        stopped_at=2.0,
        exit_code=None,
        signal=9,
        sent_by_us=True,
        descendants=(),
        last_stack="",
        rusage=None,
        evidence="reaped",
    )


async def run(outcome: Outcome | Exception) -> tuple[Any, OneOutcome, list[bytes]]:
    supervisor = OneOutcome(outcome)
    children = SupervisedChildren(supervisor, {"act": activity.definition_of(act)})
    beats: list[bytes] = []
    reins = children.reins()
    reins.request_stop(StopCause.CANCELLED, "told")
    reins.extend_authority(9.0)
    return await children.run(job(), reins, beats.append), supervisor, beats


async def test_a_job_becomes_a_task_with_every_limit() -> None:
    _, supervisor, beats = await run(completed(encode_bytes(None)))

    (task,) = supervisor.tasks
    (control,) = supervisor.controls
    assert task.handler is act
    assert (task.payload, task.context, task.attempt_id) == (b"payload", b"context", "A1")
    assert task.codec == "proctor.child:CODEC"
    assert (task.deadlines.attempt, task.deadlines.total, task.deadlines.authority) == (10.0, 20.0, 5.0)
    assert task.deadlines.heartbeat_timeout == 3
    assert beats == [b"beat"]
    assert control is not None
    assert control.stop_requested == (StopReason.CANCELLED, "told")
    assert control.authority_at == 9.0


async def test_a_result_becomes_a_blob_without_being_rebuilt() -> None:
    end, _, _ = await run(completed(encode_bytes({"n": [1, "é"]})))

    assert isinstance(end, Returned)
    assert base64.b64decode(end.blob) == encode_bytes({"n": [1, "é"]})
    assert (end.facts.duration_ms, end.facts.pid, end.facts.heartbeats, end.facts.heartbeats_dropped) == (1500, 7, 4, 1)


@pytest.mark.parametrize(
    "result", [b"", b"\x80\x05K\x01.", encode_bytes([1])[:-1], encode_bytes(1) + b"x", b"\x00" * 40]
)
def test_a_result_that_is_no_frame_never_reaches_history(result: bytes) -> None:
    end = child_end(completed(result), max_result_bytes=LIMIT)

    assert isinstance(end, Raised)
    assert end.exception_type == "InvalidResult"


def test_a_result_the_server_would_refuse_fails_for_good_with_both_sizes() -> None:
    end = child_end(completed(encode_bytes("x" * 2000)), max_result_bytes=LIMIT)

    assert isinstance(end, Raised)
    assert end.exception_type == "ResultTooLarge"
    assert end.non_retryable is True
    assert "1000" in end.message


@pytest.mark.parametrize(
    ("kind", "facts", "name", "non_retryable"),
    [
        ("raised", {}, "ValueError", False),
        ("raised", {"non_retryable": True}, "ValueError", True),
        ("raised", {"cancelled": True}, "ValueError", True),
        ("exited", {}, "ChildExited", False),
        ("signalled", {}, "ChildSignalled", False),
        ("unloadable", {}, "HandlerUnloadable", False),
        ("result_refused", {}, "ResultRefused", True),
        ("protocol", {}, "ChildProtocolBreach", False),
        ("start_failed", {}, "ChildStartFailed", False),
        ("supervisor_died", {}, "SupervisorDied", False),
    ],
)
def test_each_kind_of_failure_has_a_name_of_its_own(
    kind: FailureKind, facts: dict[str, Any], name: str, non_retryable: bool
) -> None:
    end = child_end(failed(kind, **facts), max_result_bytes=LIMIT)

    assert isinstance(end, Raised)
    assert (end.exception_type, end.message, end.non_retryable) == (name, "no", non_retryable)


@pytest.mark.parametrize("reason", list(StopReason))
def test_every_stop_reason_of_the_supervisor_is_known_here(reason: StopReason) -> None:
    outcome = Stopped(pid=7, duration=1.0, reason=reason, proof=proof(reason))

    end = child_end(outcome, max_result_bytes=LIMIT)

    assert isinstance(end, WasStopped)
    assert str(end.cause) == str(reason)
    assert end.proof["pid"] == 7


def test_every_cause_of_ours_is_known_to_the_supervisor() -> None:
    assert {cause.value for cause in StopCause} == {reason.value for reason in StopReason}


async def test_a_stop_that_cannot_be_confirmed_is_an_end_of_its_own() -> None:
    error = StopUnconfirmed("child 7 is not proven gone", pid=7)

    end, _, _ = await run(error)

    assert end == Unproven(error, end.facts)
    assert end.facts.pid == 7


async def test_a_refused_task_fails_for_good_and_a_closed_supervisor_publishes_nothing() -> None:
    refused, _, _ = await run(TaskRefused("too large"))
    closed, _, _ = await run(SupervisorClosed("closing"))

    assert isinstance(refused, Raised)
    assert refused.non_retryable is True
    assert isinstance(closed, NotStarted)
