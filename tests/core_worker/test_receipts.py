"""Each receipt is believed only as a whole: falsify one field, and the rule it breaks is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_worker import receipts
from core_worker.receipts import CLAIM, DEADLINES, IDENTITY, MISSING, TIMEOUTS, after, changed, refuses, stamp
from proctor.core.authority import AttemptDeadlines
from proctor.core.wire.control import Active, StopOrder, read_control, read_heartbeat
from proctor.core.wire.prepare import Prepared, Timeouts, read_prepare
from proctor.errors import ProtocolBreach

Body = dict[str, Any]
NO_TIMEOUTS = Timeouts()


def prepared(body: object, timeouts: Timeouts = TIMEOUTS) -> Prepared:
    return read_prepare(body, claim=CLAIM, nonce="nonce", timeouts=timeouts)


def controlled(body: object, deadlines: AttemptDeadlines = DEADLINES) -> Active | StopOrder:
    return read_control(body, identity=IDENTITY, deadlines=deadlines)


def beaten(body: object, timeout: int | None = 5, deadlines: AttemptDeadlines = DEADLINES) -> Active | StopOrder:
    return read_heartbeat(body, identity=IDENTITY, deadlines=deadlines, heartbeat_timeout=timeout)


# -- honest receipts -------------------------------------------------------------------------------


def test_an_honest_prepare_is_read_whole() -> None:
    receipt = prepared(receipts.prepare())

    assert receipt.identity == IDENTITY
    assert receipt.deadlines == DEADLINES
    assert receipt.lease_expires_at == after(10)
    assert receipt.server_time == after(0)


def test_a_call_without_timeouts_has_no_deadlines() -> None:
    none = {f"{name}_deadline_at": None for name in ("start_to_close", "schedule_to_close", "heartbeat")}

    assert prepared(receipts.prepare(**none), NO_TIMEOUTS).deadlines == AttemptDeadlines()


def test_an_honest_control_and_heartbeat_are_read_whole() -> None:
    kept = controlled(receipts.control())
    moved = beaten(receipts.heartbeat())

    assert kept == Active(after(1), after(11), after(11), DEADLINES)
    assert isinstance(moved, Active)
    assert moved.deadlines == AttemptDeadlines(after(30), after(60), after(6))


def test_a_heartbeat_of_a_call_without_a_timeout_moves_nothing() -> None:
    deadlines = AttemptDeadlines(after(30), after(60), None)

    moved = beaten(receipts.heartbeat(heartbeat_deadline_at=None), None, deadlines)

    assert isinstance(moved, Active)
    assert moved.deadlines == deadlines


def test_an_honest_stop_order_carries_its_cancellation() -> None:
    order = controlled(receipts.stop())

    assert isinstance(order, StopOrder)
    assert order.cancellation is not None
    assert order.cancellation.request_id == "Q2"
    assert order.cancellation.cleanup_deadline_at == after(600)


def test_a_stop_for_another_reason_has_nothing_to_acknowledge() -> None:
    assert controlled(receipts.stop(reason="run_closed")) == StopOrder("run_closed", None)


def test_an_inactive_heartbeat_is_a_stop_order() -> None:
    body = receipts.heartbeat(
        active=False,
        stop_required=True,
        reason="run_closed",
        heartbeat_recorded=False,
        heartbeat_history_event_id=None,
    )

    assert beaten(body) == StopOrder("run_closed", None)
    for key, value in (("heartbeat_recorded", True), ("heartbeat_history_event_id", "H")):
        refuses(beaten, {**body, key: value}, "prepared-local §3.10")


def test_unknown_keys_of_a_newer_server_are_ignored() -> None:
    prepared(receipts.prepare(something_new={"x": 1}))
    controlled(receipts.control(something_new=1))


# -- prepare, rules 1 to 6 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("prepared", False, "1"),
        ("prepared", 1, "1"),
        ("prepared", MISSING, "1"),
        ("duplicate", None, "1"),
        ("duplicate", 0, "1"),
        ("reason", "x", "1"),
        ("reason", MISSING, "1"),
        ("workflow_task_id", "T2", "2"),
        ("lease_owner", "v", "2"),
        ("worker_attempt_id", "other", "2"),
        ("workflow_task_attempt", 4, "2"),
        ("workflow_task_attempt", True, "2"),
        ("workflow_task_attempt", "3", "2"),
        ("workflow_task_attempt", 3.0, "2"),
        ("attempt_number", 0, "2"),
        ("attempt_number", True, "2"),
        ("attempt_number", "1", "2"),
        ("activity_execution_id", " ", "2"),
        ("activity_attempt_id", None, "2"),
        ("server_time", MISSING, "3"),
        ("server_time", "2026-10-02T12:00:00", "3"),
        ("lease_expires_at", stamp(0), "3"),
        ("lease_expires_at", stamp(-1), "3"),
        ("lease_expires_at", "soon", "3"),
        ("start_to_close_deadline_at", MISSING, "4"),
        ("start_to_close_deadline_at", stamp(0), "4"),
        ("start_to_close_deadline_at", None, "4"),
        ("schedule_to_close_deadline_at", MISSING, "4"),
        ("schedule_to_close_deadline_at", stamp(-5), "4"),
        ("schedule_to_close_deadline_at", 17, "4"),
        ("heartbeat_deadline_at", MISSING, "4"),
        ("heartbeat_deadline_at", stamp(0), "4"),
        ("heartbeat_deadline_at", None, "5"),
        ("heartbeat_deadline_at", stamp(5.000001), "5"),
        ("cancellation_cleanup", {}, "6"),
        ("cancellation_cleanup", MISSING, "6"),
    ],
)
def test_a_falsified_prepare_names_its_rule(key: str, value: Any, rule: str) -> None:
    refuses(prepared, changed(receipts.prepare(), key, value), f"prepared-local §3.{rule}")


def test_a_heartbeat_deadline_nobody_asked_for_is_refused() -> None:
    timeouts = Timeouts(start_to_close=30, schedule_to_close=60)

    refuses(lambda body: prepared(body, timeouts), receipts.prepare(), "prepared-local §3.5")


@pytest.mark.parametrize("body", [None, [], "prepared", 1, True])
def test_an_answer_that_is_no_object_is_refused(body: object) -> None:
    for read in (prepared, controlled, beaten):
        with pytest.raises(ProtocolBreach):
            read(body)


# -- control and heartbeat, rules 7 to 15 ----------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("workflow_task_id", "T2", "7"),
        ("workflow_task_attempt", 2, "7"),
        ("workflow_task_attempt", "3", "7"),
        ("activity_execution_id", "E2", "7"),
        ("activity_attempt_id", "A2", "7"),
        ("lease_owner", None, "7"),
        ("cancellation_cleanup", {"request_id": "Q"}, "7"),
        ("active", 1, "8"),
        ("renewed", None, "8"),
        ("stop_required", "no", "8"),
        ("stop_required", True, "8"),
        ("reason", MISSING, "8"),
        ("reason", "because", "9"),
        ("start_to_close_deadline_at", stamp(31), "11"),
        ("start_to_close_deadline_at", None, "11"),
        ("start_to_close_deadline_at", MISSING, "11"),
        ("schedule_to_close_deadline_at", stamp(61), "11"),
        ("schedule_to_close_deadline_at", MISSING, "11"),
        ("heartbeat_deadline_at", MISSING, "12"),
    ],
)
def test_falsified_control_and_heartbeat_answers_name_their_rule(key: str, value: Any, rule: str) -> None:
    refuses(controlled, changed(receipts.control(), key, value), f"prepared-local §3.{rule}")
    refuses(beaten, changed(receipts.heartbeat(), key, value), f"prepared-local §3.{rule}")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("renewed", False, "9"),
        ("heartbeat_recorded", True, "10"),
        ("heartbeat_history_event_id", "H", "10"),
        ("heartbeat_deadline_at", stamp(6), "12"),
        ("heartbeat_deadline_at", None, "12"),
        ("lease_expires_at", stamp(1), "13"),
        ("lease_expires_at", None, "13"),
        ("workflow_lease_expires_at", stamp(0.5), "13"),
        ("workflow_lease_expires_at", MISSING, "13"),
        ("server_time", stamp(5), "13"),
        ("server_time", MISSING, "13"),
    ],
)
def test_a_falsified_control_names_its_rule(key: str, value: Any, rule: str) -> None:
    refuses(controlled, changed(receipts.control(), key, value), f"prepared-local §3.{rule}")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("renewed", True, "9"),
        ("heartbeat_recorded", False, "10"),
        ("heartbeat_history_event_id", None, "10"),
        ("heartbeat_history_event_id", "", "10"),
        ("heartbeat_deadline_at", None, "12"),
        ("heartbeat_deadline_at", stamp(4.9), "12"),
        ("heartbeat_deadline_at", stamp(6.1), "12"),
        ("server_time", stamp(5), "12"),
        ("server_time", "now", "12"),
        ("lease_expires_at", stamp(1), "13"),
        ("workflow_lease_expires_at", None, "13"),
    ],
)
def test_a_falsified_heartbeat_names_its_rule(key: str, value: Any, rule: str) -> None:
    refuses(beaten, changed(receipts.heartbeat(), key, value), f"prepared-local §3.{rule}")


def test_a_heartbeat_may_not_invent_a_deadline() -> None:
    deadlines = AttemptDeadlines(after(30), after(60), None)

    refuses(lambda body: beaten(body, None, deadlines), receipts.heartbeat(), "prepared-local §3.12")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("stop_required", False, "§3.8"),
        ("reason", "", "§3.9"),
        ("reason", None, "§3.9"),
        ("renewed", True, "§3.9"),
        ("fenced", False, "§3.15"),
        ("fenced", 1, "§3.15"),
        ("fenced", MISSING, "§3.15"),
        ("cancellation_history_event_id", "", "§3.15"),
        ("cancellation_history_event_id", MISSING, "§3.15"),
        ("cancellation_request", MISSING, "§3.15"),
        ("cancellation_request", None, "§4"),
    ],
)
def test_a_falsified_stop_order_names_its_rule(key: str, value: Any, rule: str) -> None:
    refuses(controlled, changed(receipts.stop(), key, value), f"prepared-local {rule}")


# -- hostile values --------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def tried(read: Callable[[Any], Any], body: Any) -> tuple[Any, ProtocolBreach | None]:
    try:
        return read(body), None
    except ProtocolBreach as exc:
        return None, exc


@given(st.sampled_from(sorted(receipts.control())), json_values)
def test_any_other_value_in_a_control_is_refused_or_harmless(key: str, value: Any) -> None:
    free = {"run_status", "task_status", "history_refresh_page_token"}
    body = changed(receipts.control(), key, value)
    receipt, breach = tried(controlled, body)

    assert len(str(breach)) < 600
    assert breach is not None or key in free or isinstance(receipt, Active)


@given(st.sampled_from(sorted(receipts.prepare())), json_values)
def test_any_other_value_in_a_prepare_is_refused_or_harmless(key: str, value: Any) -> None:
    receipt, breach = tried(prepared, changed(receipts.prepare(), key, value))

    assert len(str(breach)) < 600
    assert breach is not None or (receipt.identity.claim, receipt.identity.nonce) == (CLAIM, "nonce")
