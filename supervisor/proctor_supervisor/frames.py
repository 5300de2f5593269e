"""Framing between owner and child: pure bytes in, bytes out; standard library only.

Owns the frame header, the size bound that is checked before the first byte is sent, and the reader that accepts
bytes cut anywhere. Leaves sockets to `owner` and `child`. One frame is a header of 24 bytes, little-endian: kind,
flags, two zero bytes, beats, dropped beats, four zero bytes, body length (8 bytes: 4 would end at 4 GiB); then the
body.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("<BBxxIIxxxxQ")
_TASK = struct.Struct("<QQQQIIIII")
_COUNT_LIMIT = (1 << 32) - 1

BEAT_HEADER = struct.Struct("<I")
BEAT_LIMIT = 4096 - BEAT_HEADER.size
"""Most bytes of one heartbeat: with its header it fits PIPE_BUF, so the kernel never tears or interleaves it."""


class Kind(enum.IntEnum):
    """What a frame carries, and in which direction it travels."""

    TASK = 1  # owner to child
    RESULT = 2  # child to owner: the result in codec bytes
    FAILURE = 3  # child to owner: plain JSON facts about an exception
    BEAT = 4  # child to owner: a heartbeat that did not fit the pipe, flushed with the outcome


LAST = 1
"""Flag of a task or an outcome: the child exits after it."""


SHARED = 2
"""Flag of a frame whose body lies in shared memory; its descriptor travels beside the header."""


class Frame(NamedTuple):
    """One frame.

    `beats` and `dropped` count the attempt's heartbeats in an outcome, and are 0 elsewhere. `shared` is the length of
    a body that lies in shared memory (then `body` is empty), and 0 elsewhere.
    """

    kind: Kind
    body: bytes
    flags: int = 0
    beats: int = 0
    dropped: int = 0
    shared: int = 0


class FrameError(ValueError):
    """Bytes that are no frame, or a frame beyond the agreed size."""


def pack(kind: Kind, body: bytes, *, limit: int, flags: int = 0, beats: int = 0, dropped: int = 0) -> bytes:
    """Give the bytes of one frame. Raises FrameError when `body` is longer than `limit` bytes."""
    if len(body) > limit:
        raise FrameError(f"a {kind.name.lower()} of {len(body)} bytes is over the limit of {limit} bytes")
    return HEADER.pack(kind, flags, min(beats, _COUNT_LIMIT), min(dropped, _COUNT_LIMIT), len(body)) + body


def pack_shared(kind: Kind, length: int, *, flags: int = 0, beats: int = 0, dropped: int = 0) -> bytes:
    """Give the header of a frame whose body of `length` bytes travels in shared memory."""
    return HEADER.pack(kind, flags | SHARED, min(beats, _COUNT_LIMIT), min(dropped, _COUNT_LIMIT), length)


_KINDS = {int(kind): kind for kind in Kind}


class FrameReader:
    """Turns a stream of bytes, cut anywhere, into frames.

    `limit` bounds the body in bytes and is applied to the announced length, so a hostile writer cannot make the
    reader reserve memory. After a FrameError the stream is beyond repair.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, *, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take `data` and yield each frame that is complete. Raises FrameError."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            code, flags, beats, dropped, length = HEADER.unpack_from(self._buffer)
            kind = _KINDS.get(code)
            if kind is None:
                raise FrameError(f"unknown frame kind {code}")
            if length > self._limit:
                raise FrameError(f"a {kind.name.lower()} of {length} bytes is over the limit of {self._limit}")
            if flags & SHARED:
                del self._buffer[: HEADER.size]
                yield Frame(kind, b"", flags, beats, dropped, length)
                continue
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[HEADER.size : end])
            del self._buffer[:end]
            yield Frame(kind, body, flags, beats, dropped)

    @property
    def missing(self) -> int:
        """How many bytes the frame in progress still lacks (0 between frames); a hint for the next read."""
        if len(self._buffer) < HEADER.size:
            return 0
        length: int = HEADER.unpack_from(self._buffer)[4]
        return HEADER.size + length - len(self._buffer)

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
        texts = [self.handler.encode(), self.codec.encode(), self.attempt_id.encode()]
        sizes = [len(part) for part in (*texts, self.pickled, self.context)]
        numbers = (self.serial, self.address_space_bytes, self.cpu_seconds, self.open_files)
        return b"".join((_TASK.pack(*numbers, *sizes), *texts, self.pickled, self.context, self.payload))

    @classmethod
    def unpack(cls, body: bytes) -> TaskBody:
        """Read the body of a task frame. Raises FrameError for anything else."""
        try:
            serial, space, seconds, files, *sizes = _TASK.unpack_from(body)
        except struct.error as exc:
            raise FrameError(f"a task body of {len(body)} bytes is too short") from exc
        parts, position = [], _TASK.size
        for size in sizes:
            parts.append(body[position : position + size])
            position += size
        if position > len(body):
            raise FrameError("the parts of a task body are longer than the body")
        try:
            handler, codec, attempt_id = (part.decode() for part in parts[:3])
        except UnicodeDecodeError as exc:
            raise FrameError("the names in a task body are not UTF-8") from exc
        return cls(serial, space, seconds, files, handler, codec, attempt_id, parts[3], parts[4], body[position:])


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
