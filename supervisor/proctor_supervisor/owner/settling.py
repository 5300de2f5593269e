"""What an attempt has come to, decided from facts alone. Pure.

One rule settles the race between a result and a stop: for a deadline the result must have been complete before the
stop began, for any other reason before the first step that the handler could not refuse. The instants compared are
the supervisor's step and this process's receipt, so a result is never taken for earlier than it was. Bytes that are
no result end an attempt as a failure, unless a stop had begun: what is written during one changes nothing about it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from proctor_supervisor import frames, messages
from proctor_supervisor.outcome import (
    CapturedOutput,
    Completed,
    Descendant,
    Failed,
    FailureInfo,
    FailureKind,
    LadderStep,
    Outcome,
    ResourceUsage,
    Step,
    Stopped,
    StopProof,
    StopReason,
)

_CHILD_KINDS = frozenset({"raised", "unloadable", "result_refused"})
_TEXT_MOST = 64 * 1024
_CAUSES_MOST = 32


class Delivery(NamedTuple):
    """The outcome frame of a child; `received_at` is a CLOCK_MONOTONIC instant in seconds."""

    frame: frames.Frame
    received_at: float


class Facts(NamedTuple):
    """Everything known about an attempt that is over.

    `serial` is its number, `settlement` what the supervisor process said of its child; None when that process died
    first (then `asked` is the stop this side had asked for). `breach` says what was wrong with the bytes the child
    wrote, or None; it is the detail of the stop that it caused.
    """

    serial: int
    pid: int
    started_at: float
    ended_at: float
    settlement: messages.Settled | None
    delivery: Delivery | None
    breach: str | None
    asked: tuple[StopReason, str] | None
    output: CapturedOutput
    delivered_beats: int


def has_begun(serial: int, settlement: messages.Settled | None) -> bool:
    """Whether anything of attempt `serial` may have run in its dead child."""
    return settlement is None or settlement.begun == serial or _own_stop(serial, settlement) is not None


def decide(facts: Facts) -> Outcome:
    """Give the one terminal outcome of an attempt whose child is gone."""
    measured = _measure(facts)
    settlement = facts.settlement
    if settlement is None:
        return _orphaned(facts, measured)
    stop = _own_stop(facts.serial, settlement)
    if facts.breach is not None and (stop is None or stop["detail"] == facts.breach):
        info = FailureInfo("ChildProtocolError", "proctor_supervisor", facts.breach)
        return _failed(info, "protocol", settlement, measured)
    if stop is not None and (facts.breach is not None or not _delivered_in_time(stop, facts.delivery)):
        proof = _prove(facts.pid, settlement, stop)
        return Stopped(reason=proof.reason, proof=proof, **measured)
    if facts.delivery is None:
        return _died(settlement, measured)
    if facts.delivery.frame.kind == frames.Kind.RESULT:
        return Completed(result=facts.delivery.frame.body, **measured)
    return _failed(*read_failure(facts.delivery.frame.body), settlement, measured)


def _own_stop(serial: int, settlement: messages.Settled) -> Mapping[str, Any] | None:
    """The stop of this attempt; a child may also have been stopped for the one before it."""
    stop = settlement.stop
    return stop if stop is not None and stop["attempt"] == serial else None


def _delivered_in_time(stop: Mapping[str, Any], delivery: Delivery | None) -> bool:
    if delivery is None:
        return False
    if delivery.frame.kind == frames.Kind.FAILURE and read_failure(delivery.frame.body)[0].cancelled:
        return False  # the handler ended because it was told to
    if StopReason(stop["reason"]).is_deadline:
        return bool(delivery.received_at < stop["begun_at"])
    forced = next((at for step, at in stop["steps"] if step != Step.NOTICE), None)
    return forced is None or delivery.received_at < forced


def _prove(pid: int, settlement: messages.Settled, stop: Mapping[str, Any]) -> StopProof:
    return StopProof(
        pid=pid,
        started_at=stop["started_at"],
        reason=StopReason(stop["reason"]),
        detail=stop["detail"],
        steps=tuple(LadderStep(Step(step), at) for step, at in stop["steps"]),
        stopped_at=settlement.settled_at,
        exit_code=_exit_code(settlement),
        signal=_signal(settlement),
        sent_by_us=settlement.sent_by_us,
        descendants=_descendants(settlement),
        last_stack=stop["stack"],
        rusage=_usage(settlement),
        evidence="reaped",
    )


def _orphaned(facts: Facts, measured: dict[str, Any]) -> Outcome:
    """The supervisor died, and its children with it; the pidfd of this one says so."""
    if facts.asked is not None:
        reason, detail = facts.asked
        proof = StopProof(
            pid=facts.pid,
            started_at=0,
            reason=reason,
            detail=detail,
            steps=(),
            stopped_at=facts.ended_at,
            exit_code=None,
            signal=None,
            sent_by_us=None,
            descendants=(),
            last_stack="",
            rusage=None,
            evidence="pidfd",
        )
        return Stopped(reason=reason, proof=proof, **measured)
    if facts.delivery is not None and facts.breach is None and facts.delivery.frame.kind == frames.Kind.RESULT:
        return Completed(result=facts.delivery.frame.body, **measured)
    if facts.delivery is not None and facts.breach is None:
        info, kind = read_failure(facts.delivery.frame.body)
        return Failed(failure=info, kind=kind, **measured)
    info = FailureInfo(
        "SupervisorDied",
        "proctor_supervisor",
        "the supervisor process ended under the attempt; its child is gone",
    )
    return Failed(failure=info, kind="supervisor_died", **measured)


def _died(settlement: messages.Settled, measured: dict[str, Any]) -> Failed:
    if _signal(settlement) is not None:
        by = "which the supervisor did not send"
        if settlement.sent_by_us:
            by = "sent for an attempt before this one"
        elif settlement.oom_suspected:
            by = "which the supervisor did not send; the kernel was killing for want of memory"
        text = f"the child was ended by signal {_signal(settlement)}, {by}"
        return _failed(FailureInfo("ChildSignalled", "proctor_supervisor", text), "signalled", settlement, measured)
    text = f"the child exited with status {_exit_code(settlement)} before it delivered a result"
    return _failed(FailureInfo("ChildExited", "proctor_supervisor", text), "exited", settlement, measured)


def _failed(info: FailureInfo, kind: FailureKind, settlement: messages.Settled, measured: dict[str, Any]) -> Failed:
    return Failed(
        failure=info,
        kind=kind,
        exit_code=_exit_code(settlement),
        signal=_signal(settlement),
        sent_by_us=settlement.sent_by_us,
        oom_suspected=settlement.oom_suspected,
        **measured,
    )


def read_failure(body: bytes) -> tuple[FailureInfo, FailureKind]:
    """Read the facts a child wrote about an exception; bytes that are none become a failure of their own."""
    try:
        facts = json.loads(body)
        kind: FailureKind = facts["kind"] if facts["kind"] in _CHILD_KINDS else "raised"
        info = FailureInfo(
            type_name=_text(facts["type_name"]) or "Exception",
            module=_text(facts["module"]),
            message=_text(facts["message"]),
            traceback=_text(facts["traceback"]),
            cancelled=facts["cancelled"] is True,
            non_retryable=facts["non_retryable"] is True,
            causes=tuple(
                {name: _text(cause[name]) for name in ("type_name", "module", "message")}
                for cause in facts["causes"][:_CAUSES_MOST]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        return FailureInfo("ChildProtocolError", "proctor_supervisor", f"unreadable failure facts: {exc}"), "protocol"
    return info, kind


def _text(value: object) -> str:
    """Bound what a child wrote, again: it may be no child of ours that wrote it. Halves of characters are spelled."""
    return str(value)[:_TEXT_MOST].encode("utf-8", "backslashreplace").decode()


def _measure(facts: Facts) -> dict[str, Any]:
    settlement = facts.settlement
    beats = facts.delivered_beats
    if facts.delivery is not None:
        beats = max(beats, facts.delivery.frame.beats)
    elif settlement is not None and settlement.begun == facts.serial:
        beats = max(beats, settlement.beats)
    return {
        "pid": facts.pid,
        "duration": facts.ended_at - facts.started_at,
        "answered_after": None if facts.delivery is None else facts.delivery.received_at - facts.started_at,
        "output": facts.output,
        "heartbeats": beats,
        "heartbeats_dropped": beats - facts.delivered_beats,
        "rusage": _usage(settlement) if settlement is not None else None,
        "descendants": _descendants(settlement) if settlement is not None else (),
        "descendants_count": settlement.descendants_count if settlement is not None else 0,
    }


def _exit_code(settlement: messages.Settled) -> int | None:
    return os.WEXITSTATUS(settlement.status) if os.WIFEXITED(settlement.status) else None


def _signal(settlement: messages.Settled) -> int | None:
    return os.WTERMSIG(settlement.status) if os.WIFSIGNALED(settlement.status) else None


def _usage(settlement: messages.Settled) -> ResourceUsage:
    return ResourceUsage(settlement.user_seconds, settlement.system_seconds, settlement.max_rss_bytes)


def _descendants(settlement: messages.Settled) -> tuple[Descendant, ...]:
    return tuple(Descendant(pid, started_at) for pid, started_at in settlement.descendants)
