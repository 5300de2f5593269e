"""ULIDs: their layout, their bounds, and that they ascend."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.server.ids import Ids, is_ulid, ulid_number, ulid_text


def test_the_layout_is_that_of_the_specification() -> None:
    assert ulid_text(ulid_number(1_469_918_176_385, bytes(10))) == "01ARYZ6S410000000000000000"
    assert ulid_text(ulid_number(2**48 - 1, b"\xff" * 10)) == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10), st.integers(0, 2**48 - 1))
def test_text_sorts_like_time(first: int, randomness: bytes, second: int) -> None:
    one, other = (ulid_text(ulid_number(moment, randomness)) for moment in (first, second))
    assert (one < other) == (first < second)
    assert len(one) == 26
    assert is_ulid(one)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="48 bits"):
        ulid_number(2**48, bytes(10))
    with pytest.raises(ValueError, match="10 random bytes"):
        ulid_number(0, bytes(9))


def test_ids_of_one_instant_ascend() -> None:
    ids, now = Ids(), datetime(2026, 1, 1, tzinfo=UTC)
    made = [ids.ulid(now) for _ in range(1000)]
    assert made == sorted(set(made))
