"""Framing between owner and child: pure bytes in, bytes out; standard library only.

Owns the frame header, the size bound that is checked before the first byte is sent, and the reader that accepts
bytes cut anywhere. Leaves sockets to `owner` and `child`. One frame is a header of 24 bytes, little-endian: kind,
flags, two zero bytes, beats, dropped beats, the attempt's serial number (its low 32 bits), body length (8 bytes: 4
would end at 4 GiB); then the body.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct("<BBxxIIIQ")
HEADER_SIZE = HEADER.size
_TASK = struct.Struct("<QQQQIIIII")
_MOST = (1 << 32) - 1

BEAT_HEADER = struct.Struct("<I")
BEAT_LIMIT = 4096 - BEAT_HEADER.size
"""Most bytes of one heartbeat: with its header it fits PIPE_BUF, so the kernel never tears or interleaves it."""

FACTS_LIMIT = 2 * 1024 * 1024
"""Most bytes of the facts about a failure, where results are bounded to less. What is told is bounded, and shorter."""


class Kind:
    """What a frame carries, and in which direction it travels. Plain numbers: they are looked up for each attempt."""

    TASK = 1  # owner to child
    RESULT = 2  # child to owner: the result in codec bytes
    FAILURE = 3  # child to owner: plain JSON facts about an exception
    BEAT = 4  # child to owner: a heartbeat that did not fit the pipe, flushed with the outcome


KINDS = {Kind.TASK: "task", Kind.RESULT: "result", Kind.FAILURE: "failure", Kind.BEAT: "beat"}
"""Every kind, with its name for messages to people."""
_COMMON = frozenset({Kind.TASK, Kind.RESULT, Kind.FAILURE})

LAST = 1
"""Flag of a task or an outcome: the child exits after it."""

SHARED = 2
"""Flag of a frame whose body lies in shared memory; its descriptor travels beside the header."""

KEEP = 4
"""Flag of a task: what its handler leaves running when it returns is to live on."""


class Frame(NamedTuple):
    """One frame.

    `beats` and `dropped` count the attempt's heartbeats in an outcome, and are 0 elsewhere. `serial` says which attempt
    an outcome belongs to. `shared` is the length of a body that lies in shared memory (then `body` is empty).
    """

    kind: int
    body: bytes
    flags: int = 0
    beats: int = 0
    dropped: int = 0
    serial: int = 0
    shared: int = 0


class FrameError(ValueError):
    """Bytes that are no frame, or a frame beyond the agreed size."""


def pack(
    kind: int, body: bytes, *, limit: int, flags: int = 0, beats: int = 0, dropped: int = 0, serial: int = 0
) -> bytes:
    """Give the bytes of one frame. Raises FrameError when `body` is longer than `limit` bytes."""
    length = len(body)
    if length > limit:
        raise FrameError(f"a {KINDS[kind]} of {length} bytes is over the limit of {limit} bytes")
    return _header(kind, flags, beats, dropped, serial, length) + body


def pack_shared(kind: int, length: int, *, flags: int = 0, beats: int = 0, dropped: int = 0, serial: int = 0) -> bytes:
    """Give the header of a frame whose body of `length` bytes travels in shared memory."""
    return _header(kind, flags | SHARED, beats, dropped, serial, length)


def _header(kind: int, flags: int, beats: int, dropped: int, serial: int, length: int) -> bytes:
    return HEADER.pack(kind, flags, min(beats, _MOST), min(dropped, _MOST), serial & _MOST, length)


def is_of(frame: Frame, serial: int) -> bool:
    """Whether `frame` belongs to attempt number `serial`."""
    return frame.serial == serial & _MOST


class FrameReader:
    """Turns a stream of bytes, cut anywhere, into frames.

    `limit` bounds the body of a task or result in bytes and is applied to the announced length, so a hostile writer
    cannot make the reader reserve memory; `FACTS_LIMIT` bounds the facts of a failure where that is more, and a
    heartbeat has its own bound here as in its pipe. After a FrameError the stream is beyond repair.
    """

    __slots__ = ("_buffer", "_limit", "_limits")

    def __init__(self, *, limit: int) -> None:
        self._buffer = bytearray()  # grows in place: a stream in small pieces costs no more than a whole one
        self._limit = limit
        self._limits = {
            Kind.TASK: limit, Kind.RESULT: limit, Kind.FAILURE: max(limit, FACTS_LIMIT), Kind.BEAT: BEAT_LIMIT,
        }  # fmt: skip

    def feed(self, data: bytes) -> list[Frame]:
        """Take `data` and give each frame that is complete now. Raises FrameError."""
        if not self._buffer and len(data) >= HEADER_SIZE:  # mostly it is one frame, and a whole one
            kind, flags, beats, dropped, serial, length = HEADER.unpack_from(data)
            if HEADER_SIZE + length == len(data) and length <= self._limit and not flags & SHARED and kind in _COMMON:
                return [Frame(kind, data[HEADER_SIZE:], flags, beats, dropped, serial)]
        found: list[Frame] = []
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        position, size = 0, len(buffer)
        while size - position >= HEADER_SIZE:
            kind, flags, beats, dropped, serial, length = HEADER.unpack_from(buffer, position)
            if kind not in KINDS:
                raise FrameError(f"unknown frame kind {kind}")
            limit = self._limits[kind]
            if length > limit:
                raise FrameError(f"a {KINDS[kind]} of {length} bytes is over the limit of {limit}")
            if kind == Kind.BEAT and flags & SHARED:
                raise FrameError("a heartbeat in shared memory")
            start = position + HEADER_SIZE
            if flags & SHARED:
                found.append(Frame(kind, b"", flags, beats, dropped, serial, length))
                position = start
                continue
            if size - start < length:
                break
            position = start + length
            found.append(Frame(kind, bytes(memoryview(buffer)[start:position]), flags, beats, dropped, serial))
        if buffer is self._buffer:
            del self._buffer[:position]
        elif position < size:
            self._buffer += data[position:]
        return found

    @property
    def partial(self) -> bool:
        """Whether the stream stands in the middle of a frame."""
        return bool(self._buffer)


class TaskBody(NamedTuple):
    """What a task frame carries: the attempt's serial number, its limits (0 is none), what to call and how, and the
    bytes for it.
    """

    serial: int
    address_space_bytes: int
    cpu_seconds: int
    open_files: int
    handler: str
    codec: str
    attempt_id: str
    pickled: bytes
    context: bytes
    payload: bytes

    def pack(self) -> bytes:
        """Give the body of the task frame."""
        serial, space, seconds, files, name, codec_name, label, pickled, context, payload = self
        handler, codec, attempt_id = name.encode(), codec_name.encode(), label.encode()
        sizes = len(handler), len(codec), len(attempt_id), len(pickled), len(context)
        head = _TASK.pack(serial, space, seconds, files, *sizes)
        return b"".join((head, handler, codec, attempt_id, pickled, context, payload))

    @classmethod
    def unpack(cls, body: bytes) -> TaskBody:
        """Read the body of a task frame. Raises FrameError for anything else."""
        try:
            serial, space, seconds, files, handler, codec, attempt_id, pickled, context = _TASK.unpack_from(body)
        except struct.error as exc:
            raise FrameError(f"a task body of {len(body)} bytes is too short") from exc
        codec_at = _TASK.size + handler
        id_at = codec_at + codec
        pickled_at = id_at + attempt_id
        context_at = pickled_at + pickled
        payload_at = context_at + context
        if payload_at > len(body):
            raise FrameError("the parts of a task body are longer than the body")
        try:
            names = body[_TASK.size : codec_at].decode(), body[codec_at:id_at].decode(), body[id_at:pickled_at].decode()
        except UnicodeDecodeError as exc:
            raise FrameError("the names in a task body are not UTF-8") from exc
        rest = body[pickled_at:context_at], body[context_at:payload_at], body[payload_at:]
        return cls(serial, space, seconds, files, *names, *rest)


class BeatReader:
    """Reads the heartbeat pipe: whole beats only, newest wins.

    The writer keeps each beat within PIPE_BUF, so beats are never torn by the kernel; a writer that breaks that
    rule is a hostile one and gets FrameError.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> tuple[bytes | None, int]:
        """Take `data`; give the newest complete beat (or None) and how many complete beats it was the last of."""
        self._buffer += data
        newest: bytes | None = None
        count = position = 0
        while len(self._buffer) - position >= BEAT_HEADER.size:
            (length,) = BEAT_HEADER.unpack_from(self._buffer, position)
            if length > BEAT_LIMIT:
                raise FrameError(f"a heartbeat of {length} bytes is over the limit of {BEAT_LIMIT} bytes")
            end = position + BEAT_HEADER.size + length
            if end > len(self._buffer):
                break
            newest = bytes(memoryview(self._buffer)[position + BEAT_HEADER.size : end])
            count += 1
            position = end
        del self._buffer[:position]
        return newest, count
