"""The open local members of an admitted group, run side by side on one claim (prepared-local.md §2.2).

As many at once as there are children; each is prepared when a place for its child is free, in authored order. A retry
ends the claim for all, so a report that leads to one waits until the other members have ended, or until it would not
be true any more. When the claim ends for one, the others are stopped with proof and publish nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio

from proctor.core.attempt import Abandon, KeepCapacity
from proctor.core.replay.decision import LocalCall
from proctor.core.wire.outcome import Closed
from proctor.core.wire.tasks import WorkflowTask
from proctor.running.claim import ClaimCalls
from proctor.running.local_call import SIBLING, Acknowledged, CallEnd, Fenced, LocalCallRun
from proctor.running.surroundings import Surroundings


class Quorum:
    """Who of a group has not ended yet, and does not wait for the others either. Members are named by sequence."""

    def __init__(self, members: Iterable[int]) -> None:
        self._undecided = set(members)
        self._decided = trio.Event()

    def decide(self, member: int) -> None:
        """Note that nobody has to wait for a member any more."""
        self._undecided.discard(member)
        if not self._undecided:
            self._decided.set()

    async def wait(self, member: int, *, until: float) -> None:
        """Wait until all the others have ended or wait as well, at most until an instant."""
        self.decide(member)
        with trio.move_on_at(until):
            await self._decided.wait()


class SiblingsRun:
    """Runs the open members of one group to their ends. Made for one group on one claim, used once."""

    def __init__(
        self,
        around: Surroundings,
        calls: ClaimCalls,
        task: WorkflowTask,
        members: Sequence[LocalCall],
        *,
        draining: Callable[[], bool],
    ) -> None:
        self.ends: list[tuple[LocalCall, CallEnd]] = []
        """How members ended, in that order; those that were not begun are not in it."""
        self._around = around
        self._calls = calls
        self._task = task
        self._members = members
        self._draining = draining
        self._quorum = Quorum(call.sequence for call in members)
        self._running: dict[int, LocalCallRun] = {}
        self._opening = trio.CancelScope()

    async def run(self) -> None:
        """Run all members; only cancellation leaves as an exception, with every child proven gone before it."""
        async with trio.open_nursery() as nursery:
            begun = 0
            with self._opening:
                for call in self._members:
                    place = await self._around.place()
                    if self._draining() or self._opening.cancel_called:
                        # A draining worker finishes what runs and starts nothing; and a place that was given back by
                        # the end of the claim may come before the cancellation that this end brings.
                        place.release()
                        break
                    begun += 1
                    run = LocalCallRun(
                        self._around,
                        self._calls,
                        self._task,
                        call,
                        place,
                        quorum=self._quorum,
                        on_claim_over=partial(self._give_up_all_but, call.sequence),
                    )
                    self._running[call.sequence] = run
                    nursery.start_soon(self._run_one, run, call)
                    await run.admitted.wait()
            for call in self._members[begun:]:
                self._quorum.decide(call.sequence)

    async def _run_one(self, run: LocalCallRun, call: LocalCall) -> None:
        try:
            end = await run.run()
        finally:
            del self._running[call.sequence]
            self._quorum.decide(call.sequence)
        self.ends.append((call, end))
        if isinstance(end, Closed) and not end.claim_released:
            return
        self._opening.cancel()
        if isinstance(end, Closed | Abandon | KeepCapacity):
            self._give_up_all_but(call.sequence, "claim_released" if isinstance(end, Closed) else SIBLING)

    def _give_up_all_but(self, member: int, reason: str) -> None:
        """End the claim for the others, at once: the stop of one child may take longer than the report of another."""
        self._opening.cancel()
        for sequence, other in self._running.items():
            if sequence != member:
                other.give_up(reason)

    @property
    def renews_the_claim(self) -> bool:
        """Tell whether an attempt runs: its control calls renew both leases."""
        return bool(self._running)

    @property
    def breaking_end(self) -> CallEnd | None:
        """The end that decides over the claim: an unproven stop, a release, what gave it up, a cancellation."""
        ends = [end for _, end in self.ends]
        for kind in (KeepCapacity, Closed, Abandon, Acknowledged, Fenced):
            for end in ends:
                if isinstance(end, kind) and not (isinstance(end, Closed) and not end.claim_released):
                    return end
        return None
