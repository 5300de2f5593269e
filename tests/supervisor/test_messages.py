"""Messages survive the way between the two processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor_supervisor import messages

_NUMBER = st.integers(0, (1 << 32) - 1)
_SERIAL = st.integers(0, (1 << 64) - 1)
_INSTANT = st.floats(allow_nan=False)
_TEXT = st.text(max_size=20)
_STOP = st.none() | st.fixed_dictionaries({"reason": _TEXT, "begun_at": st.floats(0, 1e9), "steps": st.just([])})
_MESSAGES = st.one_of(
    st.builds(messages.Open, _SERIAL, _SERIAL, st.booleans(), st.lists(_TEXT), st.lists(_TEXT)),
    st.builds(messages.Fork, _NUMBER),
    st.builds(messages.Arm, _NUMBER, _SERIAL, *[_INSTANT] * 5, _SERIAL, st.booleans(), *[_INSTANT] * 4),
    st.builds(messages.Disarm, _NUMBER),
    st.builds(messages.Authority, _NUMBER, _INSTANT),
    st.builds(messages.Stop, _NUMBER, _SERIAL, st.booleans(), *[_INSTANT] * 4, _TEXT, _TEXT),
    st.builds(messages.Ping),
    st.builds(messages.Pong),
    st.builds(messages.Ready, _NUMBER),
    st.builds(messages.Refused, st.booleans(), _TEXT, st.none() | _TEXT),
    st.builds(messages.Forked, _NUMBER, _NUMBER),
    st.builds(messages.ForkFailed, _NUMBER, _TEXT),
    st.builds(messages.Stepped, _NUMBER, _INSTANT, _TEXT),
    st.builds(
        messages.Settled,
        _NUMBER,
        _NUMBER,
        st.booleans(),
        *[_SERIAL] * 3,
        *[_INSTANT] * 2,
        _SERIAL,
        _INSTANT,
        st.booleans(),
        _NUMBER,
        st.just(()) | st.lists(_NUMBER, min_size=1),
        st.just(()) | st.lists(st.lists(_NUMBER, min_size=2, max_size=2), min_size=1),
        _STOP,
    ),
    st.builds(messages.Unconfirmed, _NUMBER, _NUMBER),
)


def _plain(message: messages.Message) -> list[object]:
    return [list(field) if isinstance(field, tuple) else field for field in message]


@given(_MESSAGES)
def test_every_message_comes_back_equal(message: messages.Message) -> None:
    received = messages.decode(messages.encode(message))

    assert type(received) is type(message)
    assert _plain(received) == _plain(message)


@given(st.binary(max_size=60))
def test_anything_else_is_a_value_error(noise: bytes) -> None:
    try:
        message = messages.decode(noise)
    except ValueError:
        return
    assert messages.decode(messages.encode(message)) == message or "nan" in repr(message)


@pytest.mark.parametrize("noise", [b"", b"\xff", b"\x01", messages.encode(messages.Fork(1)) + b"[2]"])
def test_what_is_cut_or_too_long_is_a_value_error(noise: bytes) -> None:
    with pytest.raises(ValueError):
        messages.decode(noise)
