"""Framing survives bytes cut anywhere and refuses everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor_supervisor import frames

_COUNT = st.integers(0, (1 << 32) - 1)
_FRAMES = st.lists(
    st.builds(
        frames.Frame,
        st.sampled_from(sorted(frames.KINDS)),
        st.binary(max_size=300),
        st.integers(0, 1),
        _COUNT,
        _COUNT,
        _COUNT,
        shared=st.just(0),
    ),
    max_size=6,
)


@given(_FRAMES, st.data())
def test_frames_cut_at_any_byte_come_out_whole(sent: list[frames.Frame], data: st.DataObject) -> None:
    stream = b"".join(
        frames.pack(
            one.kind, one.body, limit=300, flags=one.flags, beats=one.beats, dropped=one.dropped, serial=one.serial
        )
        for one in sent
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = frames.FrameReader(limit=300)

    received: list[frames.Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received.extend(reader.feed(stream[start:end]))

    assert received == sent
    assert not reader.partial


@given(st.binary(min_size=12, max_size=200))
def test_any_bytes_give_frames_or_a_frame_error(noise: bytes) -> None:
    reader = frames.FrameReader(limit=64)
    try:
        for frame in reader.feed(noise):
            assert frame.kind in frames.KINDS
            assert len(frame.body) <= 64
    except frames.FrameError:
        pass


def test_an_announced_length_over_the_limit_is_refused_before_the_body_arrives() -> None:
    reader = frames.FrameReader(limit=10)

    with pytest.raises(frames.FrameError, match="over the limit of 10"):
        list(reader.feed(frames.HEADER.pack(frames.Kind.RESULT, 0, 0, 0, 0, 11)))


def test_the_facts_of_a_failure_have_a_bound_of_their_own() -> None:
    reader = frames.FrameReader(limit=10)
    sent = frames.pack(frames.Kind.FAILURE, b"x" * 11, limit=11)

    assert reader.feed(sent) == [frames.Frame(frames.Kind.FAILURE, b"x" * 11)]
    with pytest.raises(frames.FrameError, match="over the limit"):
        reader.feed(frames.HEADER.pack(frames.Kind.FAILURE, 0, 0, 0, 0, frames.FACTS_LIMIT + 1))


@pytest.mark.parametrize("limit", [10, 1 << 26])
def test_a_heartbeat_has_the_same_bound_on_both_ways(limit: int) -> None:
    fits = b"x" * frames.BEAT_LIMIT
    sent = frames.pack(frames.Kind.BEAT, fits, limit=len(fits))

    assert frames.FrameReader(limit=limit).feed(sent) == [frames.Frame(frames.Kind.BEAT, fits)]
    with pytest.raises(frames.FrameError, match=f"over the limit of {frames.BEAT_LIMIT}"):
        frames.FrameReader(limit=limit).feed(frames.pack(frames.Kind.BEAT, fits + b"x", limit=1 << 20))
    with pytest.raises(frames.FrameError, match="in shared memory"):
        frames.FrameReader(limit=limit).feed(frames.pack_shared(frames.Kind.BEAT, 10))


def test_a_shared_body_is_announced_by_its_header_alone() -> None:
    reader = frames.FrameReader(limit=100)

    (frame,) = reader.feed(frames.pack_shared(frames.Kind.RESULT, 77, flags=frames.LAST, beats=3))

    assert frame == frames.Frame(frames.Kind.RESULT, b"", frames.LAST | frames.SHARED, 3, 0, 0, 77)
    with pytest.raises(frames.FrameError, match="over the limit"):
        list(reader.feed(frames.pack_shared(frames.Kind.RESULT, 101)))


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(frames.FrameError, match="11 bytes is over the limit of 10"):
        frames.pack(frames.Kind.TASK, b"x" * 11, limit=10)


_TEXT = st.text(max_size=10)


@given(st.builds(frames.TaskBody, *[st.integers(0, 1 << 60)] * 4, _TEXT, _TEXT, _TEXT, *[st.binary(max_size=20)] * 3))
def test_a_task_body_comes_apart_as_it_was_packed(body: frames.TaskBody) -> None:
    assert frames.TaskBody.unpack(body.pack()) == body


@given(st.binary(max_size=80))
def test_any_body_is_a_task_or_a_frame_error(noise: bytes) -> None:
    try:
        body = frames.TaskBody.unpack(noise)
    except frames.FrameError:
        return
    assert body.pack() == noise


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(1, 50))
def test_the_newest_beat_wins_and_all_are_counted(beats: list[bytes], chunk: int) -> None:
    stream = b"".join(frames.BEAT_HEADER.pack(len(beat)) + beat for beat in beats)
    reader = frames.BeatReader()

    newest, total = None, 0
    for start in range(0, len(stream), chunk):
        payload, count = reader.feed(stream[start : start + chunk])
        newest = payload if payload is not None else newest
        total += count

    assert (newest, total) == (beats[-1], len(beats))


def test_a_beat_over_the_pipe_bound_is_refused() -> None:
    with pytest.raises(frames.FrameError, match="heartbeat"):
        frames.BeatReader().feed(frames.BEAT_HEADER.pack(frames.BEAT_LIMIT + 1))
