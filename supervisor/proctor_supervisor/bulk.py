"""Large bodies travel in sealed shared memory, not through the socket. Standard library only; used by both ends.

Owns the threshold, the seals, and the checks before anything is read: a body whose size or content its sender could
still change is refused, so neither a hostile child nor a dying one can make the reader fault or wait.
"""

from __future__ import annotations

import fcntl
import os

from proctor_supervisor.frames import FrameError

THRESHOLD = 256 * 1024
"""Bodies over this many bytes go by shared memory; below it one socket write is faster."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CHUNK = 1 << 30  # one write never moves more than about 2 GiB


def put(body: bytes) -> int:
    """Give the descriptor of sealed shared memory that holds `body`. Raises OSError when there is no room."""
    descriptor = os.memfd_create("proctor-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def take(descriptor: int, length: int) -> bytes:
    """Read the `length` bytes behind `descriptor` and close it. Raises FrameError for anything but sealed memory."""
    try:
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError as exc:
            raise FrameError(f"a body in a descriptor that is no sealed memory: {exc}") from exc
        if seals & _SEALS != _SEALS:
            raise FrameError("a body in shared memory that its sender can still change")
        size = os.fstat(descriptor).st_size
        if size != length:
            raise FrameError(f"a body of {size} bytes in shared memory, announced as {length}")
        parts, position = [], 0
        while position < length:
            part = os.pread(descriptor, min(_CHUNK, length - position), position)
            if not part:
                raise FrameError("shared memory ended early")
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)
