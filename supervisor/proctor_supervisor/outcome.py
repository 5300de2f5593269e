"""What an attempt can come to: `Completed`, `Failed` or `Stopped`, and the proof a stop carries.

Pure data, standard library only. The words for reasons and steps are in `reasons`; leaves deciding to `owner.settling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from proctor_supervisor.reasons import LadderStep, Step, StopReason

__all__ = [
    "CapturedOutput", "Completed", "Descendant", "Failed", "FailureInfo", "FailureKind", "LadderStep", "Outcome",
    "ResourceUsage", "Step", "StopProof", "StopReason", "Stopped",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What the child used, from its reaping: CPU times in seconds, peak resident memory in bytes."""

    user_seconds: float
    system_seconds: float
    max_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Descendant:
    """A process below the child that was killed with it; `started_at` is in kernel ticks since boot."""

    pid: int
    started_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProof:
    """Evidence that an attempt's processes are gone.

    Attributes:
        pid: the child's process id.
        started_at: its start time in kernel clock ticks since boot; with `pid` it names one process for good.
        reason: why it was stopped.
        detail: words of whoever asked, or an empty string.
        steps: the ladder steps taken, in order, with CLOCK_MONOTONIC instants in seconds.
        stopped_at: the CLOCK_MONOTONIC instant at which the last process was known to be gone.
        exit_code: how the child exited, or None when a signal ended it.
        signal: the signal that ended it, or None.
        sent_by_us: whether that signal was ours; None when the exit status is unknown.
        descendants: the processes below the child that were killed with it, at most five hundred; the outcome counts
            all.
        last_stack: the child's Python stacks just before the last forced step (bounded), or an empty string.
        rusage: resource usage, or None when somebody else reaped the child.
        evidence: ``reaped`` (the supervisor collected the exit status) or ``pidfd`` (the kernel said it ended).
    """

    pid: int
    started_at: int
    reason: StopReason
    detail: str
    steps: tuple[LadderStep, ...]
    stopped_at: float
    exit_code: int | None
    signal: int | None
    sent_by_us: bool | None
    descendants: tuple[Descendant, ...]
    last_stack: str
    rusage: ResourceUsage | None
    evidence: Literal["reaped", "pidfd"]

    @property
    def last_stack_line(self) -> str:
        """The innermost line of the main thread's stack: where the handler was stuck; empty when unknown."""
        blocks = [block for block in _stack_blocks(self.last_stack) if block]
        return blocks[-1][0] if blocks else ""

    @property
    def stop_seconds(self) -> float:
        """Seconds from the first ladder step to the proof."""
        return self.stopped_at - self.steps[0].at if self.steps else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Give the proof as plain JSON values; instants in seconds, memory in bytes."""
        return {
            "pid": self.pid,
            "started_at": self.started_at,
            "reason": str(self.reason),
            "detail": self.detail,
            "steps": [{"step": str(taken.step), "at": taken.at} for taken in self.steps],
            "stopped_at": self.stopped_at,
            "stop_ms": round(self.stop_seconds * 1000, 3),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "sent_by_us": self.sent_by_us,
            "descendants_killed": [{"pid": one.pid, "started_at": one.started_at} for one in self.descendants],
            "last_stack": self.last_stack,
            "last_stack_line": self.last_stack_line,
            "rusage": None
            if self.rusage is None
            else {
                "user_seconds": self.rusage.user_seconds,
                "system_seconds": self.rusage.system_seconds,
                "max_rss_bytes": self.rusage.max_rss_bytes,
            },
            "evidence": self.evidence,
        }


def _stack_blocks(text: str) -> list[list[str]]:
    """Split a faulthandler dump into one list of stripped frame lines per thread, innermost frame first."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ", "Stack ")):
            blocks.append([])
        elif line.startswith("  File ") and blocks:
            blocks[-1].append(line.strip())
    return blocks


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """What the attempt wrote to stdout and stderr, bounded; `dropped` counts the bytes left out of the middle."""

    stdout: str = ""
    stderr: str = ""
    dropped: int = 0


NO_OUTPUT = CapturedOutput()


@dataclass(frozen=True, slots=True)
class FailureInfo:
    """An exception of a handler as plain facts; every text is bounded by the child.

    `causes` is the chain behind it, nearest first: `raise … from`, then implicit context. `cancelled` says that the
    handler ended because it was told to stop; `non_retryable` is the exception's own attribute of that name.
    """

    type_name: str
    module: str
    message: str
    traceback: str = ""
    cancelled: bool = False
    non_retryable: bool = False
    causes: tuple[Mapping[str, str], ...] = ()


FailureKind = Literal[
    "raised",  # the handler raised
    "exited",  # the process ended with an exit status and no result (os._exit, or a death in mid-result)
    "signalled",  # a signal that was not ours ended it
    "unloadable",  # the handler could not be imported or unpickled in the child
    "result_refused",  # the result could not be encoded, or is over the limit
    "protocol",  # the child wrote bytes that are no frame
    "start_failed",  # no child could be started
    "supervisor_died",  # the supervisor process ended under the attempt
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What every outcome knows.

    `duration` is in seconds from dispatch to the proof that the process is gone, `answered_after` from dispatch to the
    arrival of what the handler returned or raised; None when nothing arrived. `descendants_count` counts all processes
    that were killed below the child; `descendants` names the first five hundred of them.
    """

    pid: int
    duration: float
    answered_after: float | None = None
    output: CapturedOutput = NO_OUTPUT
    heartbeats: int = 0
    heartbeats_dropped: int = 0
    rusage: ResourceUsage | None = None
    descendants: tuple[Descendant, ...] = ()
    descendants_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(_Measured):
    """The handler returned; `result` is its value in the task's codec. The process is gone."""

    result: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Measured):
    """The attempt ended by itself without a result. The process is gone.

    `sent_by_us`: whether `signal` was ours (then it was meant for the attempt before, in a reused child); None when
    how it ended is unknown. `oom_suspected`: a SIGKILL that was not ours, while the kernel was killing for want of
    memory.
    """

    failure: FailureInfo
    kind: FailureKind
    exit_code: int | None = None
    signal: int | None = None
    sent_by_us: bool | None = None
    oom_suspected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(_Measured):
    """The attempt was stopped, and `proof` says how that is known."""

    reason: StopReason
    proof: StopProof


Outcome = Completed | Failed | Stopped
