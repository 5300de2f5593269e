"""Heartbeats on their way to the server: coalesced, limited, bounded, and never trusted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.core.beats import MAX_DETAILS_BYTES, MAX_RECORDED, Beats, details_of
from proctor.core.codec import encode_bytes
from proctor.errors import PayloadError


def test_the_first_heartbeat_is_due_at_once() -> None:
    beats = Beats(heartbeat_timeout=6)
    beats.offer(b"1")

    assert beats.due_at(50.0) == 50.0


def test_the_next_one_waits_for_the_interval_and_the_newest_wins() -> None:
    beats = Beats(heartbeat_timeout=6)
    beats.offer(b"1")
    assert beats.take(50.0) == b"1"

    beats.offer(b"2")
    beats.offer(b"3")

    assert beats.due_at(50.5) == 52.0
    assert beats.due_at(60.0) == 60.0
    assert beats.take(52.0) == b"3"
    assert beats.dropped == 1


@pytest.mark.parametrize(("timeout", "interval"), [(1, 1 / 3), (6, 2.0), (600, 10.0), (None, 5.0)])
def test_a_heartbeat_arrives_at_least_three_times_within_its_timeout(timeout: int | None, interval: float) -> None:
    assert Beats(heartbeat_timeout=timeout).interval == pytest.approx(interval)


def test_a_heartbeat_that_could_not_be_sent_comes_back_unless_a_newer_one_came() -> None:
    beats = Beats(heartbeat_timeout=6)
    beats.offer(b"1")
    taken = beats.take(0.0)
    assert taken is not None
    beats.give_back(taken)
    assert beats.take(9.0) == b"1"
    beats.offer(b"2")

    beats.give_back(b"1")

    assert beats.take(18.0) == b"2"


def test_without_a_timeout_only_so_many_become_events() -> None:
    beats = Beats(heartbeat_timeout=None)
    for number in range(MAX_RECORDED + 50):
        beats.offer(b"x")
        beats.take(number * 10.0)

    assert beats.sent == MAX_RECORDED
    assert beats.dropped == 50


def test_with_a_timeout_they_never_stop_because_the_attempt_would_be_killed() -> None:
    beats = Beats(heartbeat_timeout=6)
    for number in range(MAX_RECORDED + 50):
        beats.offer(b"x")
        beats.take(number * 10.0)

    assert beats.sent == MAX_RECORDED + 50


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=60))
def test_two_sendings_are_never_closer_than_the_interval(steps: list[tuple[float, bool]]) -> None:
    beats = Beats(heartbeat_timeout=6)
    now = 0.0
    sent: list[float] = []
    for wait, offers in steps:
        now += wait
        if offers:
            beats.offer(b"x")
        due = beats.due_at(now)
        if due is not None and due <= now and beats.take(now) is not None:
            sent.append(now)

    assert all(later - earlier >= beats.interval - 1e-9 for earlier, later in itertools.pairwise(sent))


@pytest.mark.parametrize("details", [{}, {"n": 1, "at": {"deep": [1.5, None, True, "é"]}}])
def test_details_are_a_map_of_json_values(details: dict[str, object]) -> None:
    assert details_of(encode_bytes(details)) == details


def test_no_details_are_no_details() -> None:
    assert details_of(encode_bytes(None)) == {}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80\x05pickle",
        encode_bytes([1]),
        encode_bytes("text"),
        encode_bytes({"raw": b"\x00"}),
        encode_bytes({"text": "x" * MAX_DETAILS_BYTES}),
        encode_bytes({"n": 1})[:-1],
        encode_bytes({"n": 1}) + b"\x00",
    ],
)
def test_other_bytes_of_a_child_are_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        details_of(payload)


@given(st.binary(max_size=200))
def test_no_bytes_of_a_child_break_the_worker(payload: bytes) -> None:
    try:
        details = details_of(payload)
    except PayloadError:
        return
    assert isinstance(details, dict)
