"""What all work of one worker shares: the children, their places, who is told what, where large payloads go.

A place is for one child, from before its attempt is prepared until it is proven gone; how the places are used is left
to those who run the attempts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from proctor.core.jobs import Children
from proctor.running.events import Emit
from proctor.transport.external import ExternalPayloads


class Place:
    """A place for one child of the worker, from before an attempt is prepared until its child is proven gone."""

    def __init__(self, places: trio.CapacityLimiter, on_kept: Callable[[], None]) -> None:
        self._places: trio.CapacityLimiter | None = places
        self._on_kept = on_kept

    def release(self) -> None:
        """Give the place back, once."""
        if self._places is not None:
            self._places.release_on_behalf_of(self)
            self._places = None

    def keep(self) -> None:
        """Never give it back: a child may still run on it."""
        if self._places is not None:
            self._places = None
            self._on_kept()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every local call of one worker shares."""

    children: Children
    activity_types: frozenset[str]
    worker_id: str
    task_queue: str
    emit: Emit
    on_unproven: Callable[[BaseException], None] = lambda error: None
    """Called at once when a child could not be proven gone, whatever becomes of its call."""
    max_result_bytes: int = 2 * 1024 * 1024
    groups: bool = False
    """Whether the server admits groups with local members."""
    memo_updates: bool = True
    """Whether the server takes `upsert_memo`."""
    payloads: ExternalPayloads | None = None
    """Where large payloads are stored; None when the server stores none."""
    places: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(math.inf))
    """The places for children of workflow tasks."""
    on_place_kept: Callable[[], None] = lambda: None
    """Called when a place is lost for good."""

    async def place(self) -> Place:
        """Wait for a free place."""
        place = Place(self.places, self.on_place_kept)
        await self.places.acquire_on_behalf_of(place)
        return place
