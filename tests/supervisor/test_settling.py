"""One terminal outcome, by one rule, from facts alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proctor_supervisor import Completed, Failed, Outcome, Stopped, StopReason, frames, messages
from proctor_supervisor.outcome import CapturedOutput
from proctor_supervisor.owner.settling import Delivery, Facts, decide, has_begun

SERIAL = 7


def _stop(
    reason: StopReason, *steps: tuple[str, float], begun_at: float = 10.0, attempt: int = SERIAL, detail: str = ""
) -> dict[str, Any]:
    return {
        "attempt": attempt, "reason": str(reason), "detail": detail, "begun_at": begun_at,
        "steps": [list(step) for step in steps],
        "stack": "", "started_at": 1,
    }  # fmt: skip


def _failure(**facts: Any) -> bytes:
    base = {
        "kind": "raised", "type_name": "ValueError", "module": "builtins", "message": "m", "traceback": "",
        "cancelled": False, "non_retryable": False, "causes": [],
    }  # fmt: skip
    return json.dumps(base | facts).encode()


def _decide(
    *,
    stop: dict[str, Any] | None = None,
    delivery: Delivery | None = None,
    exit_code: int | None = 0,
    signal: int | None = None,
    breach: str | None = None,
    asked: tuple[StopReason, str] | None = None,
    orphaned: bool = False,
    begun: int = SERIAL,
) -> Outcome:
    status = signal if signal is not None else (exit_code or 0) << 8
    settlement = messages.Settled(1, status, False, begun, 0, 0, 0.0, 0.0, 0, 11.0, False, 0, (), (), stop)
    return decide(
        Facts(
            serial=SERIAL,
            pid=42,
            started_at=0.0,
            ended_at=11.0,
            settlement=None if orphaned else settlement,
            delivery=delivery,
            breach=breach,
            asked=asked,
            output=CapturedOutput(),
            delivered_beats=0,
        )
    )


def _result(at: float) -> Delivery:
    return Delivery(frames.Frame(frames.Kind.RESULT, b"value"), at)


def test_a_result_without_a_stop_completes() -> None:
    outcome = _decide(delivery=_result(5.0))

    assert isinstance(outcome, Completed)
    assert outcome.result == b"value"


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason.is_deadline])
def test_a_result_after_a_deadline_is_too_late(reason: StopReason) -> None:
    stop = _stop(reason, ("notice", 10.0))

    assert isinstance(_decide(stop=stop, delivery=_result(9.999)), Completed)
    assert isinstance(_decide(stop=stop, delivery=_result(10.0)), Stopped)


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.SHUTDOWN])
def test_a_result_before_the_first_forced_step_wins_over_a_request(reason: StopReason) -> None:
    stop = _stop(reason, ("notice", 10.0), ("raise", 10.5))

    assert isinstance(_decide(stop=stop, delivery=_result(10.4)), Completed)
    assert isinstance(_decide(stop=stop, delivery=_result(10.5)), Stopped)
    assert isinstance(_decide(stop=_stop(reason, ("notice", 10.0)), delivery=_result(10.9)), Completed)


def test_a_handler_that_obeyed_was_stopped_not_failed() -> None:
    obeyed = Delivery(frames.Frame(frames.Kind.FAILURE, _failure(cancelled=True)), 10.1)

    outcome = _decide(stop=_stop(StopReason.CANCELLED, ("notice", 10.0)), delivery=obeyed)

    assert isinstance(outcome, Stopped)
    assert [step.step for step in outcome.proof.steps] == ["notice"]


def test_a_handler_that_cancels_itself_has_failed() -> None:
    outcome = _decide(delivery=Delivery(frames.Frame(frames.Kind.FAILURE, _failure(cancelled=True)), 1.0))

    assert isinstance(outcome, Failed)
    assert outcome.failure.cancelled


def test_a_stop_without_any_delivery_is_a_stop() -> None:
    outcome = _decide(stop=_stop(StopReason.MEMORY, ("kill", 10.0)), exit_code=None, signal=9)

    assert isinstance(outcome, Stopped)
    assert (outcome.reason, outcome.proof.signal, outcome.proof.pid) == (StopReason.MEMORY, 9, 42)


def test_a_foreign_signal_is_named() -> None:
    outcome = _decide(exit_code=None, signal=11)

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.signal) == ("signalled", 11)


def test_a_kill_while_the_kernel_kills_for_memory_is_suspected_to_be_one() -> None:
    settlement = messages.Settled(1, 9, False, SERIAL, 0, 0, 0.0, 0.0, 0, 11.0, True, 0, (), (), None)
    outcome = decide(
        Facts(
            serial=SERIAL,
            pid=42,
            started_at=0.0,
            ended_at=11.0,
            settlement=settlement,
            delivery=None,
            breach=None,
            asked=None,
            output=CapturedOutput(),
            delivered_beats=0,
        )
    )

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.signal, outcome.sent_by_us, outcome.oom_suspected) == ("signalled", 9, False, True)
    assert "the kernel was killing for want of memory" in outcome.failure.message


def test_an_exit_without_result_is_named() -> None:
    outcome = _decide(exit_code=3)

    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.exit_code) == ("exited", 3)


def test_a_breach_is_never_a_result() -> None:
    outcome = _decide(delivery=_result(5.0), breach="noise")

    assert isinstance(outcome, Failed)
    assert outcome.kind == "protocol"


def test_a_breach_causes_its_own_stop_and_is_a_failure() -> None:
    outcome = _decide(breach="noise", stop=_stop(StopReason.CANCELLED, ("kill", 10.0), detail="noise"))

    assert isinstance(outcome, Failed)
    assert outcome.kind == "protocol"


@pytest.mark.parametrize("reason", StopReason)
def test_a_breach_during_a_stop_for_another_reason_changes_nothing_about_it(reason: StopReason) -> None:
    outcome = _decide(delivery=_result(5.0), breach="noise", stop=_stop(reason, ("notice", 10.0), ("kill", 10.1)))

    assert isinstance(outcome, Stopped)
    assert outcome.reason is reason


@pytest.mark.parametrize("noise", [b"", b"{}", b"[]", b"\xff", _failure(causes=3), _failure(causes=[3])])
def test_unreadable_failure_facts_are_a_typed_failure(noise: bytes) -> None:
    outcome = _decide(delivery=Delivery(frames.Frame(frames.Kind.FAILURE, noise), 1.0))

    assert isinstance(outcome, Failed)
    assert outcome.kind == "protocol"


def test_an_orphan_that_was_asked_to_stop_is_stopped_by_pidfd() -> None:
    outcome = _decide(orphaned=True, asked=(StopReason.CANCELLED, "please"))

    assert isinstance(outcome, Stopped)
    assert (outcome.proof.evidence, outcome.proof.sent_by_us) == ("pidfd", None)


def test_an_orphan_is_a_failure_of_the_supervisor() -> None:
    outcome = _decide(orphaned=True)

    assert isinstance(outcome, Failed)
    assert outcome.kind == "supervisor_died"


def test_a_stop_meant_for_the_attempt_before_is_not_this_ones_stop() -> None:
    stop = _stop(StopReason.CANCELLED, ("kill", 10.0), attempt=SERIAL - 1)

    outcome = _decide(stop=stop, exit_code=None, signal=9)

    assert isinstance(outcome, Failed)
    assert outcome.kind == "signalled"


@pytest.mark.parametrize(
    ("begun", "stopped_attempt", "expected"),
    [(SERIAL, None, True), (SERIAL - 1, None, False), (SERIAL - 1, SERIAL, True), (SERIAL - 1, SERIAL - 1, False)],
)
def test_an_attempt_that_never_began_is_known_as_such(begun: int, stopped_attempt: int | None, expected: bool) -> None:
    stop = None if stopped_attempt is None else _stop(StopReason.CANCELLED, attempt=stopped_attempt)
    settlement = messages.Settled(1, 9, True, begun, 0, 0, 0.0, 0.0, 0, 11.0, False, 0, (), (), stop)

    assert has_begun(SERIAL, settlement) is expected
