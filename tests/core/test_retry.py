"""Retry policies: what they accept, their wire form, and the delay they give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core.retry import ActivityRetryPolicy, RetryPolicy


def test_a_policy_gives_its_wire_form_with_all_keys() -> None:
    policy = RetryPolicy(3, [1, 2], [" ValueError ", "KeyError", "ValueError"])

    assert policy.to_wire() == {
        "max_attempts": 3,
        "backoff_seconds": [1, 2],
        "non_retryable_error_types": ["ValueError", "KeyError"],
    }


def test_a_policy_without_values_is_one_attempt() -> None:
    assert RetryPolicy.from_wire({}).to_wire() == {
        "max_attempts": 1,
        "backoff_seconds": [],
        "non_retryable_error_types": [],
    }


@pytest.mark.parametrize(
    "wire",
    [
        {"max_attempts": 0},
        {"max_attempts": 101},
        {"max_attempts": 2, "backoff_seconds": [1, 1]},
        {"max_attempts": 2, "backoff_seconds": [-1]},
        {"non_retryable_error_types": [" "]},
        {"attempts": 3},
    ],
)
def test_a_value_out_of_range_or_an_unknown_key_is_a_value_error(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        RetryPolicy.from_wire(wire)


@pytest.mark.parametrize(
    "wire",
    [
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"max_attempts": None},
        {"max_attempts": 3, "backoff_seconds": [True]},
        {"max_attempts": 3, "backoff_seconds": [0.5]},
        {"max_attempts": 3, "backoff_seconds": 1},
        {"non_retryable_error_types": "ValueError"},
        {"non_retryable_error_types": [ValueError]},
    ],
)
def test_a_wrong_type_is_a_type_error(wire: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"\w"):
        RetryPolicy.from_wire(wire)


def test_the_delay_is_the_entry_of_the_failed_attempt_then_zero_then_nothing() -> None:
    policy = RetryPolicy(4, [5, 7])

    assert [policy.delay_after(attempt) for attempt in (1, 2, 3, 4, 5)] == [5, 7, 0, None, None]


def test_a_listed_class_name_or_a_non_retryable_failure_is_the_last_attempt() -> None:
    policy = RetryPolicy(3, [1], ["ValueError"])

    assert policy.delay_after(1, error_type="ValueError") is None
    assert policy.delay_after(1, error_type="builtins.ValueError") == 1
    assert policy.delay_after(1, error_type="KeyError", non_retryable=True) is None


@given(st.integers(1, 100), st.data())
def test_a_policy_survives_its_wire_form(attempts: int, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(0, 1000), max_size=attempts - 1))
    names = data.draw(st.lists(st.text(min_size=1).filter(str.strip), max_size=4))

    policy = RetryPolicy(attempts, gaps, names)

    assert RetryPolicy.from_wire(policy.to_wire()) == policy
    delays = [policy.delay_after(attempt) for attempt in range(1, attempts + 1)]
    assert delays[-1] is None
    assert None not in delays[:-1]


def test_the_exponential_rule_has_the_official_defaults() -> None:
    assert ActivityRetryPolicy().to_wire() == {
        "max_attempts": 3,
        "backoff_seconds": [1, 2],
        "non_retryable_error_types": [],
    }


def test_gaps_are_capped_and_rounded_up_to_whole_seconds() -> None:
    policy = ActivityRetryPolicy(
        max_attempts=4, initial_interval_seconds=0.1, backoff_coefficient=3, maximum_interval_seconds=5
    )

    assert policy.to_wire()["backoff_seconds"] == [1, 1, 1]
    assert ActivityRetryPolicy(max_attempts=6, maximum_interval_seconds=5).to_wire()["backoff_seconds"] == [
        1,
        2,
        4,
        5,
        5,
    ]


def test_explicit_gaps_replace_the_rule() -> None:
    assert ActivityRetryPolicy(backoff_seconds=[2.9, -1]).to_wire()["backoff_seconds"] == [2, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_attempts": 0},
        {"initial_interval_seconds": -0.1},
        {"backoff_coefficient": 0.9},
        {"maximum_interval_seconds": -1},
        {"backoff_coefficient": float("nan")},
        {"max_attempts": 5000},
    ],
)
def test_a_rule_out_of_range_is_refused_when_it_is_serialised(changes: dict[str, Any]) -> None:
    policy = ActivityRetryPolicy(**changes)

    with pytest.raises(ValueError, match=r"\w"):
        policy.to_wire()


def test_a_capped_rule_takes_any_number_of_attempts() -> None:
    gaps = ActivityRetryPolicy(max_attempts=5000, maximum_interval_seconds=60).to_wire()["backoff_seconds"]

    assert len(gaps) == 4999
    assert gaps[-1] == 60
