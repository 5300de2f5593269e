"""Cancellation on the wire: contexts, observations, deliveries, and what history must repeat of them."""

from __future__ import annotations

from typing import Any

import pytest

from core_worker import receipts
from core_worker.receipts import stamp
from proctor.core.wire.cancellation import (
    CancellationObservation,
    DeliveryBoundary,
    check_delivery_event,
    check_request_event,
    read_context,
    read_delivery,
    read_observation,
)
from proctor.errors import ProtocolBreach

Body = dict[str, Any]


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "durable-workflow.cancellation-context/v2"},
        {"scope_origin": {}},
        {"request_id": ""},
        {"request_id": "Q3"},
        {"root_request_id": "Q9"},
        {"root_workflow_run_id": "R9"},
        {"parent_request_id": None},
        {"parent_request_id": "Q9"},
        {"requester": {}},
        {"requester": None},
        {"requester": {"type": ""}},
        {"requester": {"type": "operator", "secret": "x"}},
        {"lineage": []},
        {"lineage": "Q"},
        {"lineage": [receipts.context()["lineage"][1]] * 2},
        {"lineage": receipts.context()["lineage"][:1]},
        {"requested_at": "2026-10-02"},
        {"cleanup_deadline_at": stamp(0)},
        {"cleanup_deadline_at": None},
    ],
)
def test_a_falsified_cancellation_context_is_refused(changes: Body) -> None:
    with pytest.raises(ProtocolBreach) as caught:
        read_context(receipts.context(**changes), run_id="R")

    assert caught.value.rule.startswith("prepared-local §4")


def test_a_context_of_another_run_is_refused() -> None:
    with pytest.raises(ProtocolBreach):
        read_context(receipts.context(), run_id="R9")


# -----------------------------------------------------------------------


def observation(**changes: Any) -> Body:
    return {
        "request_id": "Q",
        "requested_at": stamp(0),
        "cleanup_deadline_at": stamp(600),
        "delivery_sequence": None,
        "delivered_at": None,
        "history_refresh_page_token": "MA==",
        **changes,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("request_id", " "),
        ("requested_at", "2026-10-02T12:00:00"),
        ("cleanup_deadline_at", stamp(0)),
        ("cleanup_deadline_at", None),
        ("history_refresh_page_token", ""),
    ],
)
def test_a_falsified_observation_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ProtocolBreach):
        read_observation(observation(**{key: value}))


def test_an_observation_of_another_deadline_is_another_request() -> None:
    seen = read_observation(observation())

    assert seen.same_request(read_observation(observation(delivered_at=stamp(3), delivery_sequence=1)))
    assert not seen.same_request(read_observation(observation(cleanup_deadline_at=stamp(601))))


def delivered(**changes: Any) -> Body:
    return {
        "delivered": True,
        "task_id": "T",
        "workflow_run_id": "R",
        "request_id": "Q",
        "sequence": 4,
        "call_kind": "local_activity",
        "sequence_span": 1,
        "reason": None,
        **changes,
    }


WAITING: Body = {
    "delivered": False,
    "reason": "cancellation_waiting_for_activity",
    "claim_released": True,
    "request_id": None,
    "sequence": None,
    "call_kind": None,
    "sequence_span": None,
}


def read_delivered(body: Body) -> Any:
    return read_delivery(body, task_id="T", run_id="R", request_id="Q", boundary=DeliveryBoundary(4))


def test_a_delivery_waits_or_is_done() -> None:
    assert read_delivered(delivered()).delivered is True
    assert read_delivered(delivered(operation_sequence_span=1)).delivered is True
    assert read_delivered(delivered(**WAITING)).claim_released is True


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delivered", 1),
        ("task_id", "T2"),
        ("workflow_run_id", "R2"),
        ("request_id", "Q2"),
        ("sequence", 5),
        ("call_kind", "timer"),
        ("sequence_span", 2),
        ("reason", "x"),
    ],
)
def test_a_falsified_delivery_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ProtocolBreach):
        read_delivered(delivered(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("reason", "cancellation_waiting_for_child"), ("claim_released", False), ("sequence", 4), ("reason", None)],
)
def test_a_falsified_waiting_delivery_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ProtocolBreach):
        read_delivered(delivered(**{**WAITING, key: value}))


def requested_event(**changes: Any) -> Body:
    payload = {
        "workflow_command_id": "Q",
        "workflow_run_id": "R",
        "cleanup_deadline_at": stamp(600),
        "cancellation": receipts.context(),
        **changes,
    }
    return {"event_type": "CooperativeCancellationRequested", "payload": payload}


def seen_and_context() -> tuple[CancellationObservation, Any]:
    return read_observation(observation()), read_context(receipts.context(), run_id="R")


def test_history_must_repeat_the_observed_request() -> None:
    seen, context = seen_and_context()

    check_request_event([requested_event()], observation=seen, context=context)
    check_request_event([requested_event(cancellation=None)], observation=seen, context=context)
    for history in (
        [],
        [requested_event(), requested_event()],
        [requested_event(workflow_command_id="Q9")],
        [requested_event(cleanup_deadline_at=stamp(601))],
        [requested_event(cleanup_deadline_at=None)],
        [requested_event(cancellation=receipts.context(source="elsewhere"))],
    ):
        with pytest.raises(ProtocolBreach):
            check_request_event(history, observation=seen, context=context)


def test_history_must_show_the_confirmed_delivery() -> None:
    payload = {"workflow_command_id": "Q", "sequence": 4, "call_kind": "local_activity"}
    event = {"event_type": "CooperativeCancellationDelivered", "payload": payload}

    check_delivery_event([event], request_id="Q", boundary=DeliveryBoundary(4))
    for history in ([], [{**event, "payload": {**payload, "sequence": 5}}], [event, event]):
        with pytest.raises(ProtocolBreach):
            check_delivery_event(history, request_id="Q", boundary=DeliveryBoundary(4))
