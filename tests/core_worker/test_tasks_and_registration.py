"""Polled tasks, history pages, claim renewals, and the registration's life on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from core_worker.receipts import CLAIM, stamp
from proctor.core.wire.cancellation import read_observation
from proctor.core.wire.registration import (
    Registration,
    heartbeat_interval,
    read_deregistration,
    read_registration,
    retry_deregistration_after,
)
from proctor.core.wire.tasks import append_page, read_claim_renewal, read_history_page, read_poll
from proctor.errors import ProtocolBreach

Body = dict[str, Any]
FENCE = "0123456789abcdef0123456789abcdef"
REGISTRATION = Registration("w", FENCE, 10.0)


def task(**changes: Any) -> Body:
    return {
        "task_kind": "workflow",
        "task_id": "T",
        "workflow_id": "wf",
        "run_id": "R",
        "workflow_task_attempt": 3,
        "workflow_type": "scan",
        "payload_codec": "avro",
        "arguments": None,
        "lease_owner": "w",
        "history_events": [{"event_type": "WorkflowStarted"}],
        "next_history_page_token": None,
        **changes,
    }


def test_a_leased_task_is_read_whole() -> None:
    leased = read_poll({"task": task(next_history_page_token="p2")}, worker_id="w")

    assert leased is not None
    assert leased.claim == CLAIM
    assert leased.workflow_type == "scan"
    assert leased.next_page_token == "p2"
    assert leased.cancellation is None


def test_an_empty_poll_is_nothing() -> None:
    assert read_poll({"task": None, "poll_status": "timeout"}, worker_id="w") is None
    assert read_poll({"task": None, "poll_status": "draining"}, worker_id="w") is None


def test_what_an_older_server_leaves_out_has_its_default() -> None:
    body = task()
    for key in ("task_kind", "workflow_task_attempt", "lease_owner"):
        del body[key]

    leased = read_poll({"task": body}, worker_id="w")

    assert leased is not None
    assert leased.claim.epoch == 1
    assert leased.claim.lease_owner == "w"


@pytest.mark.parametrize(
    "changes",
    [
        {"task_kind": "update_validation"},
        {"task_id": ""},
        {"run_id": None},
        {"workflow_task_attempt": 0},
        {"workflow_task_attempt": True},
        {"workflow_type": 5},
        {"payload_codec": None},
        {"lease_owner": "v"},
        {"history_events": None},
        {"history_events": ["x"]},
        {"next_history_page_token": 5},
        {"cancellation_request": {}},
    ],
)
def test_a_task_that_cannot_be_worked_on_safely_is_refused(changes: Body) -> None:
    with pytest.raises(ProtocolBreach) as caught:
        read_poll({"task": task(**changes)}, worker_id="w")

    assert caught.value.rule.startswith("worker §2")


def test_pages_are_joined_until_there_is_no_token() -> None:
    seen = {"p1"}
    first = read_history_page(
        {"task_id": "T", "workflow_task_attempt": 3, "history_events": [{"id": "1"}], "next_history_page_token": "p2"},
        claim=CLAIM,
    )
    last = read_history_page({"history_events": [{"id": "2"}], "next_history_page_token": None}, claim=CLAIM)

    history = append_page(append_page((), first, seen_tokens=seen), last, seen_tokens=seen)

    assert [event["id"] for event in history] == ["1", "2"]


def test_a_page_token_may_not_come_twice() -> None:
    page = read_history_page({"history_events": [], "next_history_page_token": "p1"}, claim=CLAIM)

    with pytest.raises(ProtocolBreach, match="repeats a page token"):
        append_page((), page, seen_tokens={"p1"})


@pytest.mark.parametrize("changes", [{"task_id": "T2"}, {"workflow_task_attempt": 4}, {"history_events": {}}])
def test_a_page_of_another_claim_is_refused(changes: Body) -> None:
    with pytest.raises(ProtocolBreach):
        read_history_page({"task_id": "T", "history_events": [], **changes}, claim=CLAIM)


def renewal(**changes: Any) -> Body:
    return {"task_id": "T", "lease_owner": "w", "workflow_task_attempt": 3, "renewed": True, **changes}


OBSERVED: Body = {
    "request_id": "Q",
    "requested_at": stamp(0),
    "cleanup_deadline_at": stamp(600),
    "history_refresh_page_token": "MA==",
}


def test_a_renewal_shows_a_cancellation() -> None:
    observed = read_claim_renewal(renewal(cancellation_request=OBSERVED), claim=CLAIM, known=None)

    assert observed is not None
    assert observed.request_id == "Q"
    assert read_claim_renewal(renewal(), claim=CLAIM, known=None) is None


@pytest.mark.parametrize(
    "changes",
    [{"task_id": "T2"}, {"lease_owner": "v"}, {"workflow_task_attempt": "3"}, {"renewed": False}, {"renewed": 1}],
)
def test_a_renewal_that_does_not_name_the_claim_is_refused(changes: Body) -> None:
    with pytest.raises(ProtocolBreach):
        read_claim_renewal(renewal(**changes), claim=CLAIM, known=None)


@pytest.mark.parametrize(
    "later", [None, {**OBSERVED, "request_id": "Q2"}, {**OBSERVED, "cleanup_deadline_at": stamp(9)}]
)
def test_a_cancellation_that_was_seen_never_changes_or_vanishes(later: Body | None) -> None:
    known = read_observation(OBSERVED)

    with pytest.raises(ProtocolBreach):
        read_claim_renewal(renewal(cancellation_request=later), claim=CLAIM, known=known)


def register(**changes: Any) -> Body:
    return {
        "worker_id": "w",
        "registered": True,
        "registration_token": FENCE,
        "heartbeat_interval_seconds": 7,
        **changes,
    }


def test_a_fenced_registration_holds_its_token_and_hides_it() -> None:
    registration = read_registration(register(), worker_id="w", fenced=True, default_interval=10)

    assert registration == Registration("w", FENCE, 7.0)
    assert FENCE not in repr(registration)


@pytest.mark.parametrize(
    "changes",
    [
        {"worker_id": "v"},
        {"registered": False},
        {"registration_token": None},
        {"registration_token": FENCE.upper()},
        {"registration_token": FENCE + "\n"},
        {"registration_token": FENCE[:-1]},
    ],
)
def test_a_falsified_fenced_registration_is_refused(changes: Body) -> None:
    with pytest.raises(ProtocolBreach):
        read_registration(register(**changes), worker_id="w", fenced=True, default_interval=10)


def test_without_fencing_nothing_is_needed() -> None:
    assert read_registration({}, worker_id="w", fenced=False, default_interval=10) == Registration("w", None, 10.0)


@pytest.mark.parametrize("stated", [0, -1, True, "5", 3601, None, 2.5])
def test_an_unusable_interval_keeps_ours(stated: object) -> None:
    assert heartbeat_interval({"heartbeat_interval_seconds": stated}, default=10.0) == 10.0


def receipt(**changes: Any) -> Body:
    return {
        "worker_id": "w",
        "registration_token": FENCE,
        "outcome": "deregistered",
        "recovered_workflow_task_count": 2,
        **changes,
    }


def test_a_deregistration_receipt_names_this_incarnation() -> None:
    assert read_deregistration(receipt(), registration=REGISTRATION) == 2
    for changes in (
        {"worker_id": "v"},
        {"registration_token": "other"},
        {"outcome": "gone"},
        {"recovered_workflow_task_count": -1},
        {"recovered_workflow_task_count": True},
    ):
        with pytest.raises(ProtocolBreach):
            read_deregistration(receipt(**changes), registration=REGISTRATION)


def unavailable(**changes: Any) -> Body:
    return {
        "reason": "backend_unavailable",
        "operation": "deregister_worker",
        "outcome": "unknown",
        "worker_id": "w",
        "registration_token": FENCE,
        "retryable": True,
        "retry_after_seconds": 2,
        **changes,
    }


def test_only_a_complete_refusal_allows_another_deregistration() -> None:
    assert retry_deregistration_after(unavailable(), registration=REGISTRATION) == 2
    for changes in (
        {"reason": "worker_registration_lost_authority"},
        {"operation": "register_worker"},
        {"outcome": "done"},
        {"worker_id": "v"},
        {"registration_token": None},
        {"retryable": 1},
        {"retry_after_seconds": 0},
        {"retry_after_seconds": 61},
        {"retry_after_seconds": True},
    ):
        assert retry_deregistration_after(unavailable(**changes), registration=REGISTRATION) is None
    assert retry_deregistration_after("no", registration=REGISTRATION) is None
