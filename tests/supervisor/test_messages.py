"""Messages survive the way between the two processes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proctor_supervisor import messages


@given(st.one_of([st.from_type(kind) for kind in messages.Message.__args__ if kind is not messages.Settled]))
def test_every_message_comes_back_equal(message: messages.Message) -> None:
    assume("nan" not in repr(message))  # not a number is no instant, and not equal to itself
    assert messages.decode(messages.encode(message)) == message


def test_a_settlement_comes_back_equal() -> None:
    settled = messages.Settled(
        3, None, 9, True, 5, 4, 1, 0.5, 0.25, 1024, 12.5, True, [9], [[7, 8]], 1, {"reason": "cancelled"}
    )

    assert messages.decode(messages.encode(settled)) == settled


@pytest.mark.parametrize("noise", [b"", b"{}", b"[]", b'["Nobody"]', b'["Fork"]', b'["Fork",1,2]', b"\xff"])
def test_anything_else_is_a_value_error(noise: bytes) -> None:
    with pytest.raises(ValueError):
        messages.decode(noise)
