"""A call inside cancellation cleanup: receipts repeat its proof, nothing outlives the deadline (§3.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_worker.receipts import (
    CLAIM,
    DEADLINES,
    IDENTITY,
    NOW,
    TIMEOUTS,
    after,
    control,
    heartbeat,
    prepare,
    stamp,
)
from proctor.core.authority import AttemptDeadlines, Exchange
from proctor.core.holding import held
from proctor.core.wire.control import Active, read_control, read_heartbeat
from proctor.core.wire.prepare import Cleanup, Timeouts, read_prepare
from proctor.errors import ProtocolBreach

PROOF = Cleanup("Q2", "Q1", "V9", after(60))


def proof(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": "Q2",
        "root_request_id": "Q1",
        "delivery_history_event_id": "V9",
        "cleanup_deadline_at": stamp(60),
        **changes,
    }


def prepared(**changes: Any) -> dict[str, Any]:
    return prepare(**{"cancellation_cleanup": proof(), **changes})


def test_an_honest_receipt_carries_its_proof_and_ends_authority_at_the_cleanup_deadline() -> None:
    receipt = read_prepare(
        prepared(lease_expires_at=stamp(90)), claim=CLAIM, nonce="nonce", timeouts=TIMEOUTS, cleanup=PROOF
    )
    holding = held(receipt, Exchange(100.0, 100.5, NOW))

    assert receipt.cleanup == PROOF
    assert holding.authority.claim_until == 160.0


def test_without_a_heartbeat_timeout_the_deadline_is_that_of_the_cleanup() -> None:
    body = prepared(heartbeat_deadline_at=stamp(60), start_to_close_deadline_at=stamp(60))
    receipt = read_prepare(body, claim=CLAIM, nonce="nonce", timeouts=Timeouts(), cleanup=PROOF)

    assert receipt.deadlines.heartbeat == PROOF.deadline
    with pytest.raises(ProtocolBreach, match=r"§3\.5"):
        read_prepare(
            prepared(heartbeat_deadline_at=stamp(59)), claim=CLAIM, nonce="nonce", timeouts=Timeouts(), cleanup=PROOF
        )


def test_a_call_is_not_admitted_after_the_cleanup_deadline_also_where_it_has_no_other() -> None:
    none = {"start_to_close_deadline_at": None, "schedule_to_close_deadline_at": None, "heartbeat_deadline_at": None}
    in_time = read_prepare(prepared(**none), claim=CLAIM, nonce="nonce", timeouts=Timeouts(), cleanup=PROOF)
    late = Cleanup("Q2", "Q1", "V9", after(0))

    assert in_time.deadlines == AttemptDeadlines()
    with pytest.raises(ProtocolBreach, match=r"§3\.6"):
        read_prepare(
            prepared(**none, cancellation_cleanup=proof(cleanup_deadline_at=stamp(0))),
            claim=CLAIM,
            nonce="nonce",
            timeouts=Timeouts(),
            cleanup=late,
        )


LIES: list[Any] = [
    None,
    "proof",
    {},
    proof(request_id="Q1"),
    proof(root_request_id="Q2"),
    proof(delivery_history_event_id="V8"),
    proof(cleanup_deadline_at=stamp(61)),
    proof(cleanup_deadline_at=None),
    proof(scope_id="s"),
    {key: value for key, value in proof().items() if key != "root_request_id"},
]


@pytest.mark.parametrize("lie", LIES)
def test_a_falsified_proof_is_refused_by_every_receipt(lie: Any) -> None:
    readers: list[Callable[[], object]] = [
        lambda: read_prepare(
            prepared(cancellation_cleanup=lie), claim=CLAIM, nonce="nonce", timeouts=TIMEOUTS, cleanup=PROOF
        ),
        lambda: read_control(control(cancellation_cleanup=lie), identity=IDENTITY, deadlines=DEADLINES, cleanup=PROOF),
        lambda: read_heartbeat(
            heartbeat(cancellation_cleanup=lie),
            identity=IDENTITY,
            deadlines=DEADLINES,
            heartbeat_timeout=5,
            cleanup=PROOF,
        ),
    ]
    for read in readers:
        with pytest.raises(ProtocolBreach, match=r"§3\.[67]"):
            read()


def test_a_proof_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(ProtocolBreach, match=r"§3\.6"):
        read_prepare(prepared(), claim=CLAIM, nonce="nonce", timeouts=TIMEOUTS)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"start_to_close_deadline_at": stamp(61)}, "4"),
        ({"schedule_to_close_deadline_at": stamp(61)}, "4"),
        ({"server_time": stamp(60.5), "lease_expires_at": stamp(70), "start_to_close_deadline_at": stamp(65),
          "schedule_to_close_deadline_at": stamp(65), "heartbeat_deadline_at": stamp(65)}, "4"),
        ({"cancellation_scope_id": "s"}, "6"),
    ],
)  # fmt: skip
def test_nothing_is_admitted_beyond_the_cleanup_deadline(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ProtocolBreach, match=rf"§3\.{rule}"):
        read_prepare(prepared(**changes), claim=CLAIM, nonce="nonce", timeouts=TIMEOUTS, cleanup=PROOF)


def test_an_attempt_does_not_go_on_after_the_cleanup_deadline() -> None:
    early = Cleanup("Q2", "Q1", "V9", after(0.5))
    body = control(cancellation_cleanup=proof(cleanup_deadline_at=stamp(0.5)))

    with pytest.raises(ProtocolBreach, match=r"§3\.13"):
        read_control(body, identity=IDENTITY, deadlines=DEADLINES, cleanup=early)


def test_a_heartbeat_does_not_move_its_deadline_beyond_the_cleanup_deadline() -> None:
    close = Cleanup("Q2", "Q1", "V9", after(5.5))
    body = heartbeat(cancellation_cleanup=proof(cleanup_deadline_at=stamp(5.5)))

    with pytest.raises(ProtocolBreach, match=r"§3\.12"):
        read_heartbeat(body, identity=IDENTITY, deadlines=DEADLINES, heartbeat_timeout=5, cleanup=close)


def test_a_heartbeat_without_a_timeout_leaves_the_deadline_of_the_cleanup_alone() -> None:
    known = AttemptDeadlines(after(30), after(60), PROOF.deadline)

    def read(moved: float) -> Any:
        body = heartbeat(cancellation_cleanup=proof(), heartbeat_deadline_at=stamp(moved))
        return read_heartbeat(body, identity=IDENTITY, deadlines=known, heartbeat_timeout=None, cleanup=PROOF)

    assert isinstance(read(60), Active)
    for moved in (59, 61):
        with pytest.raises(ProtocolBreach, match=r"§3\.12"):
            read(moved)


def test_an_honest_heartbeat_goes_on_inside_cleanup() -> None:
    body = heartbeat(cancellation_cleanup=proof())

    receipt = read_heartbeat(body, identity=IDENTITY, deadlines=DEADLINES, heartbeat_timeout=5, cleanup=PROOF)

    assert isinstance(receipt, Active)


def test_an_honest_control_goes_on_inside_cleanup() -> None:
    receipt = read_control(
        control(cancellation_cleanup=proof()),
        identity=IDENTITY,
        deadlines=AttemptDeadlines(after(30), after(60), after(5)),
        cleanup=PROOF,
    )

    assert isinstance(receipt, Active)
