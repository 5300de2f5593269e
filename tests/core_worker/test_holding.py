"""What a worker holds of an attempt: when its child must stop and for what cause, and which failures end the claim."""

from __future__ import annotations

from typing import Any

import pytest

from core_worker.receipts import CLAIM, NOW, TIMEOUTS, prepare, stamp
from proctor.core.attempt import StopCause
from proctor.core.authority import Exchange
from proctor.core.holding import Holding, held, reason_lost
from proctor.core.wire.prepare import read_prepare
from proctor.errors import ProctorError, ProtocolBreach, ServerRefused, ServerUnreachable


def holding(**changes: Any) -> Holding:
    """Give an attempt that was admitted at 100: its lease ends at 110, its heartbeat is due at 105."""
    receipt = read_prepare(prepare(**changes), claim=CLAIM, nonce="nonce", timeouts=TIMEOUTS)
    return held(receipt, Exchange(100.0, 100.0, NOW))


def test_a_child_may_go_on_as_long_as_its_authority_lasts() -> None:
    assert holding().stop_wanted(104.999) is None


def test_the_deadline_that_binds_is_the_cause_of_the_stop() -> None:
    wanted = holding().stop_wanted(105.0)

    assert wanted is not None
    assert wanted[0] is StopCause.HEARTBEAT_TIMEOUT


def test_the_end_of_the_lease_is_lost_authority_also_before_it_was_taken_in() -> None:
    wanted = holding(lease_expires_at=stamp(3)).stop_wanted(103.0)

    assert wanted == (StopCause.AUTHORITY_LOST, "authority_spent")


@pytest.mark.parametrize(
    ("lost", "now", "cause"),
    [
        ("workflow_claim_mismatch", 101.0, StopCause.AUTHORITY_LOST),
        ("workflow_claim_mismatch", 106.0, StopCause.AUTHORITY_LOST),
        ("local_activity_deadline_expired", 106.0, StopCause.HEARTBEAT_TIMEOUT),
        ("local_activity_deadline_expired", 101.0, StopCause.AUTHORITY_LOST),
    ],
)
def test_a_lost_claim_stops_the_child_at_once_and_is_a_timeout_only_where_both_clocks_agree(
    lost: str, now: float, cause: StopCause
) -> None:
    assert holding().lose(lost).stop_wanted(now) == (cause, lost)


def test_the_first_reason_of_a_loss_stays() -> None:
    assert holding().lose("first").lose("second").lost == "first"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ServerUnreachable("silence"), None),
        (ServerRefused("busy", status=429, reason="quota", body={}), None),
        (ServerRefused("down", status=503, reason="backend_unavailable", body={}), None),
        (ServerRefused("down", status=500, reason=None, body={}), None),
        (ServerRefused("no", status=409, reason="run_closed", body={}), "run_closed"),
        (ServerRefused("no", status=404, reason=None, body={}), "http_404"),
        (ProtocolBreach("lie", rule="§3.7"), "protocol_breach"),
    ],
)
def test_only_silence_and_overload_leave_the_authority_as_it_is(failure: ProctorError, reason: str | None) -> None:
    assert reason_lost(failure) == reason
