"""Receipts that close an attempt or a prefix are believed only as a whole, and only when history agrees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core_worker import receipts
from core_worker.receipts import CLAIM, COMMANDS, IDENTITY, MISSING, changed, honest_checkpoint, refuses
from proctor.core.wire.checkpoint import attempt_nonce, checkpoint_id, read_checkpoint
from proctor.core.wire.outcome import (
    check_outcome_event,
    check_recovery_event,
    read_acknowledgement,
    read_outcome,
    read_recovery,
)
from proctor.errors import ProtocolBreach

Body = dict[str, Any]


def checkpointed(body: object) -> str:
    identity = checkpoint_id(CLAIM, start=4, commands=COMMANDS)
    return read_checkpoint(body, claim=CLAIM, identity=identity, start=4, commands=COMMANDS)


def recovered(body: object) -> Any:
    return read_recovery(body, claim=CLAIM, execution_id="E", attempt_id="A")


@pytest.mark.parametrize("kind", ["ActivityCompleted", "ActivityFailed", "ActivityTimedOut"])
def test_an_honest_outcome_keeps_the_claim(kind: str) -> None:
    assert read_outcome(receipts.outcome(event_type=kind), identity=IDENTITY).claim_released is False


def test_an_honest_retry_releases_the_claim() -> None:
    body = receipts.outcome(event_type="ActivityRetryScheduled", claim_released=True, created_task_ids=["T2"])

    assert read_outcome(body, identity=IDENTITY).claim_released is True


def test_an_honest_checkpoint_gives_the_token() -> None:
    assert checkpointed(honest_checkpoint()) == "MA=="


def test_an_honest_recovery_and_acknowledgement_are_read() -> None:
    acknowledged: Body = {"acknowledged": True, "duplicate": True, "reason": None, "history_event_id": "K"}

    assert recovered(receipts.recovery()).claim_released is True
    assert read_acknowledgement(acknowledged) == "K"


@pytest.mark.parametrize("body", [None, [], "recorded", 1, True])
def test_an_answer_that_is_no_object_is_refused(body: object) -> None:
    for read in (checkpointed, recovered, read_acknowledgement, lambda it: read_outcome(it, identity=IDENTITY)):
        with pytest.raises(ProtocolBreach):
            read(body)


# -- outcome, acknowledgement, recovery, rules 16 to 21 --------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("recorded", False, "16"),
        ("duplicate", MISSING, "16"),
        ("reason", "x", "16"),
        ("reason", MISSING, "16"),
        ("workflow_task_id", "T2", "16"),
        ("workflow_task_attempt", 4, "16"),
        ("activity_execution_id", "E2", "16"),
        ("activity_attempt_id", "A2", "16"),
        ("workflow_run_id", "R2", "16"),
        ("worker_attempt_id", "other", "16"),
        ("lease_owner", "v", "16"),
        ("event_type", "ActivityCancelled", "16"),
        ("event_type", None, "16"),
        ("claim_released", True, "17"),
        ("claim_released", "no", "17"),
        ("created_task_ids", ["T2"], "17"),
        ("created_task_ids", None, "17"),
        ("created_task_ids", MISSING, "17"),
        ("event_id", " ", "17"),
        ("recorded_at", "2026-10-02", "17"),
        ("history_refresh_page_token", "", "17"),
    ],
)
def test_a_falsified_outcome_names_its_rule(key: str, value: Any, rule: str) -> None:
    body = changed(receipts.outcome(), key, value)

    refuses(lambda given_body: read_outcome(given_body, identity=IDENTITY), body, f"prepared-local §3.{rule}")


@pytest.mark.parametrize(
    "changes",
    [
        {"claim_released": False, "created_task_ids": []},
        {"created_task_ids": []},
        {"created_task_ids": ["T2", "T3"]},
        {"created_task_ids": [""]},
    ],
)
def test_a_retry_must_release_the_claim_for_exactly_one_task(changes: Body) -> None:
    retry: Body = {"event_type": "ActivityRetryScheduled", "claim_released": True, "created_task_ids": ["T2"]}
    body = receipts.outcome(**{**retry, **changes})

    refuses(lambda given_body: read_outcome(given_body, identity=IDENTITY), body, "prepared-local §3.17")


def recorded_event(**changes: Any) -> Body:
    payload = {"sequence": 4, "activity_execution_id": "E", "activity_attempt_id": "A"}
    return {"id": "V", "event_type": "ActivityCompleted", "payload": payload, **changes}


@pytest.mark.parametrize(
    "event",
    [
        recorded_event(id="V2"),
        recorded_event(event_type="ActivityFailed"),
        recorded_event(payload=None),
        recorded_event(payload={"sequence": 5, "activity_execution_id": "E", "activity_attempt_id": "A"}),
        recorded_event(payload={"sequence": 4, "activity_execution_id": "E2", "activity_attempt_id": "A"}),
        recorded_event(payload={"sequence": 4, "activity_execution_id": "E", "activity_attempt_id": "A2"}),
        recorded_event(payload={"activity_execution_id": "E", "activity_attempt_id": "A"}),
    ],
)
def test_an_outcome_that_history_does_not_show_is_not_believed(event: Body) -> None:
    closed = read_outcome(receipts.outcome(), identity=IDENTITY)

    refuses(lambda given: check_outcome_event(given, closed, sequence=4), [event], "prepared-local §3.18")


@pytest.mark.parametrize("key", ["sequence", "workflow_sequence"])
def test_an_outcome_that_history_shows_is_believed(key: str) -> None:
    closed = read_outcome(receipts.outcome(), identity=IDENTITY)
    payload = {key: 4, "activity_execution_id": "E", "activity_attempt_id": "A"}

    check_outcome_event([recorded_event(id="V0"), recorded_event(payload=payload)], closed, sequence=4)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("acknowledged", False),
        ("acknowledged", MISSING),
        ("duplicate", "no"),
        ("reason", "x"),
        ("reason", MISSING),
        ("history_event_id", ""),
        ("history_event_id", None),
    ],
)
def test_a_falsified_acknowledgement_names_its_rule(key: str, value: Any) -> None:
    honest: Body = {"acknowledged": True, "duplicate": False, "reason": None, "history_event_id": "K"}

    refuses(read_acknowledgement, changed(honest, key, value), "prepared-local §3.19")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("recovered", 1),
        ("duplicate", None),
        ("reason", MISSING),
        ("workflow_task_id", "T2"),
        ("activity_execution_id", "E2"),
        ("activity_attempt_id", "A2"),
        ("callback_stop_state", "stopped"),
        ("event_type", "ActivityCompleted"),
        ("claim_released", False),
        ("created_task_ids", []),
        ("event_id", None),
    ],
)
def test_a_falsified_recovery_names_its_rule(key: str, value: Any) -> None:
    refuses(recovered, changed(receipts.recovery(), key, value), "prepared-local §3.20")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workflow_task_id", "T2"),
        ("workflow_task_attempt", 2),
        ("lease_owner", "v"),
        ("callback_stop_state", "stopped"),
        ("callback_stop_state", MISSING),
    ],
)
def test_a_recovery_of_another_claim_in_history_is_not_believed(key: str, value: Any) -> None:
    final = receipts.recovery(event_type="ActivityFailed", claim_released=False, created_task_ids=[])
    closed = recovered(final)
    honest: Body = {
        "workflow_task_id": "T",
        "workflow_task_attempt": 3,
        "lease_owner": "w",
        "callback_stop_state": "unknown",
    }

    def event(local_recovery: Body) -> Body:
        payload = {**recorded_event()["payload"], "local_recovery": local_recovery}
        return recorded_event(event_type="ActivityFailed", payload=payload)

    check_recovery_event([event(honest)], closed, claim=CLAIM, sequence=4)
    with pytest.raises(ProtocolBreach) as caught:
        check_recovery_event([event(changed(honest, key, value))], closed, claim=CLAIM, sequence=4)
    assert caught.value.rule.startswith("prepared-local §3.21")


# -- checkpoint, rules of section 2.1 --------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("checkpointed", False, "1"),
        ("duplicate", 1, "1"),
        ("reason", MISSING, "1"),
        ("checkpoint_id", "other", "2"),
        ("task_id", "T2", "2"),
        ("workflow_run_id", "R2", "2"),
        ("lease_owner", "v", "2"),
        ("workflow_task_attempt", True, "3"),
        ("start_sequence", 5, "3"),
        ("start_sequence", "4", "3"),
        ("next_sequence", 5, "3"),
        ("next_sequence", MISSING, "3"),
        ("history_refresh_page_token", " ", "4"),
        ("history_refresh_page_token", MISSING, "4"),
    ],
)
def test_a_falsified_checkpoint_names_its_rule(key: str, value: Any, rule: str) -> None:
    refuses(checkpointed, changed(honest_checkpoint(), key, value), f"prepared-local §2.1.{rule}")


def test_the_same_commands_on_the_same_claim_have_the_same_identity() -> None:
    first = checkpoint_id(CLAIM, start=4, commands=[{"a": 1, "b": 2}])

    assert first == checkpoint_id(CLAIM, start=4, commands=[{"b": 2, "a": 1}])
    assert first != checkpoint_id(CLAIM, start=5, commands=[{"a": 1, "b": 2}])
    assert len(first) == 64


def test_a_nonce_names_one_claim_and_one_sequence() -> None:
    nonces = {
        attempt_nonce(CLAIM, sequence=1),
        attempt_nonce(CLAIM, sequence=2),
        attempt_nonce(replace(CLAIM, epoch=4), sequence=1),
        attempt_nonce(replace(CLAIM, lease_owner="v"), sequence=1),
        attempt_nonce(replace(CLAIM, run_id="R2"), sequence=1),
        attempt_nonce(replace(CLAIM, task_id="T2"), sequence=1),
    }

    assert len(nonces) == 6
