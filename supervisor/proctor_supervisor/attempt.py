"""What a handler may ask about its own attempt, inside the child. Standard library only.

Owns the current attempt of this process, heartbeats, and the exception by which a stop reaches the handler. In any
process that is not a child, `current` gives None.
"""

from __future__ import annotations

import os
import time

from proctor_supervisor import frames
from proctor_supervisor.board import Board
from proctor_supervisor.reasons import StopReason


class AttemptCancelled(BaseException):
    """The attempt is being stopped; let it pass, after cleaning up. `reason` says why.

    It is no `Exception`, so that ``except Exception`` does not swallow it.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(f"the attempt is being stopped: {reason}")
        self.reason = reason


class HeartbeatTooLarge(ValueError):
    """Heartbeat details over the limit of one heartbeat (about 4 KB); nothing was sent."""


class Attempt:
    """One attempt, as seen from inside its child."""

    __slots__ = ("_beat", "_board", "_pending", "_pipe", "attempt_id", "context")

    def __init__(self, attempt_id: str, context: bytes, beat: int, pipe: int, board: Board) -> None:
        self.attempt_id = attempt_id
        self.context = context
        self._beat = beat
        self._pipe = pipe
        self._board = board
        self._pending: bytes | None = None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the attempt is being stopped, or None while it may go on. Costs one memory read."""
        return self._board.stop

    def raise_if_stopped(self) -> None:
        """Raise AttemptCancelled when the attempt is being stopped."""
        reason = self._board.stop
        if reason is not None:
            raise AttemptCancelled(reason)

    def heartbeat(self, payload: bytes) -> None:
        """Tell the owner that the handler is alive, with `payload` as its newest progress. Never blocks.

        When the owner is slow the newest payload wins and the replaced ones are counted as dropped. Raises
        HeartbeatTooLarge over `frames.BEAT_LIMIT` bytes, and AttemptCancelled when the attempt is being stopped.
        """
        if len(payload) > frames.BEAT_LIMIT:
            raise HeartbeatTooLarge(
                f"heartbeat details of {len(payload)} bytes are over the limit of {frames.BEAT_LIMIT}; "
                f"keep progress small and put large state into a file whose name you send"
            )
        self._board.note_beat(time.monotonic_ns())
        try:
            self._send(frames.BEAT_HEADER.pack(len(payload)) + payload)
        except OSError:  # the pipe is full; or the handler has closed it, and the newest goes beside the outcome
            if self._pending is not None:
                self._board.note_dropped()
            self._pending = payload
        else:
            if self._pending is not None:
                self._board.note_dropped()
                self._pending = None
        self.raise_if_stopped()

    def _send(self, data: bytes) -> None:
        if os.fstat(self._beat).st_ino != self._pipe:
            raise OSError("the handler put something of its own in the place of the heartbeat pipe")
        os.write(self._beat, data)

    def take_pending(self) -> bytes | None:
        """Give the newest heartbeat that did not fit the pipe, for delivery beside the outcome."""
        pending, self._pending = self._pending, None
        return pending


_current: Attempt | None = None


def current() -> Attempt | None:
    """Give the attempt that runs in this process, or None."""
    return _current


def begin(attempt_id: str, context: bytes, *, beat: int, pipe: int, board: Board) -> Attempt:
    """Make a new attempt the current one, and give it; `beat` is the descriptor of the heartbeat `pipe` (its inode).

    For the child's entry only.
    """
    global _current
    _current = Attempt(attempt_id, context, beat, pipe, board)
    return _current
