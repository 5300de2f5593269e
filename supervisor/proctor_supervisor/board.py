"""The notice board: one page of memory that a child shares with the supervisor process.

Owns its layout. It carries what must never wait for anybody: the stop notice towards the handler, and the instant of
the newest heartbeat towards the supervisor. Each field is one aligned 8-byte word, written by one side only, so
neither side locks. What a child writes is a claim: `proctor_supervisor.deadman` bounds it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from proctor_supervisor.reasons import StopReason

_REASONS = tuple(StopReason)


class Board:
    """One child's page. Create it before the fork; both sides use the same object."""

    __slots__ = ("_page", "_words")

    _STOP, _BEAT_AT, _BEATS, _DROPPED, _BEGUN, _KEPT = range(6)

    def __init__(self, descriptor: int = -1) -> None:
        """Map a new anonymous page, or the memory behind `descriptor`, which outlives an exec."""
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)  # shared, both ways
        self._words = memoryview(self._page).cast("Q")

    def hide_from_later_forks(self) -> None:
        """Keep the page out of children forked from now on: each sees its own page only."""
        self._page.madvise(mmap.MADV_DONTFORK)

    def close(self) -> None:
        """Unmap the page on this side."""
        self._words.release()
        self._page.close()

    # -- written by the supervisor process ------------------------------------------------------------------

    def post_stop(self, reason: StopReason) -> None:
        """Show the handler that it is told to stop."""
        self._words[self._STOP] = _REASONS.index(reason) + 1

    @property
    def stop(self) -> StopReason | None:
        """The posted reason, or None."""
        code = self._words[self._STOP]
        return _REASONS[code - 1] if code else None

    # -- written by the child -------------------------------------------------------------------------------

    def note_beat(self, at_ns: int) -> None:
        """Record a heartbeat at the CLOCK_MONOTONIC instant `at_ns` (nanoseconds)."""
        self._words[self._BEAT_AT] = at_ns
        self._words[self._BEATS] += 1

    def note_dropped(self) -> None:
        """Record that a heartbeat was replaced by a newer one before the owner could see it."""
        self._words[self._DROPPED] += 1

    def begin(self, attempt: int) -> None:
        """Record that something of the user's is about to run, for the attempt with this serial number."""
        self._words[self._BEATS] = self._words[self._DROPPED] = self._words[self._BEAT_AT] = 0
        self._words[self._BEGUN] = attempt

    @property
    def last_beat(self) -> float:
        """The instant of the newest heartbeat in CLOCK_MONOTONIC seconds; 0 when there was none."""
        return self._words[self._BEAT_AT] / 1e9

    @property
    def beats(self) -> int:
        """How many heartbeats the attempt made."""
        return self._words[self._BEATS]

    @property
    def dropped(self) -> int:
        """How many of them were replaced unseen."""
        return self._words[self._DROPPED]

    def keep(self, pids: Sequence[int]) -> None:
        """Record the processes that live on after a handler that may leave some; more than fit are not kept."""
        kept = list(pids)[: len(self._words) - self._KEPT - 1]
        for place, pid in enumerate(kept, start=self._KEPT + 1):
            self._words[place] = pid
        self._words[self._KEPT] = len(kept)

    @property
    def kept(self) -> list[int]:
        """The processes recorded by `keep`."""
        count = min(self._words[self._KEPT], len(self._words) - self._KEPT - 1)
        return list(self._words[self._KEPT + 1 : self._KEPT + 1 + count])

    @property
    def begun(self) -> int:
        """The serial number of the attempt that was last begun; 0 before the first."""
        return self._words[self._BEGUN]
