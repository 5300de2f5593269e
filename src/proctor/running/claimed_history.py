"""What one turn has loaded of its run's history, and the steps it made on its claim.

Which step comes when is the turn's; here is only that history is loaded whole, and that no step is made twice.
"""

from __future__ import annotations

from proctor.core.wire.tasks import Event, WorkflowTask
from proctor.errors import ProtocolBreach
from proctor.running.claim import ClaimCalls


class ClaimedHistory:
    """The history of a claimed run: `events` and the run's `arguments` are what the next replay works on."""

    def __init__(self, calls: ClaimCalls, task: WorkflowTask) -> None:
        self.arguments = task.arguments
        self.events: tuple[Event, ...] = task.history
        self._refers = task.refers
        self._calls = calls
        self._following = task.next_page_token
        self._steps: set[tuple[str, int]] = set()

    async def load_rest(self) -> None:
        """Load the pages that did not come with the task, and what it refers to."""
        if self._refers:
            self.arguments = await self._calls.payloads.resolved(self.arguments)
            self.events = tuple(await self._calls.payloads.resolved(self.events))
        if self._following is not None:
            self.events = await self._calls.history(self._following, before=self.events)

    async def reload(self, token: str) -> tuple[Event, ...]:
        """Load all of it again from `token`, which a receipt named, and give it."""
        self.events = await self._calls.history(token)
        return self.events

    def only_once(self, step: str, sequence: int) -> None:
        """Let a step of one sequence happen once on a claim: history must show it afterwards.

        Without this a server that hides what it recorded could have a second child started, or be asked for
        ever.
        """
        if (step, sequence) in self._steps:
            raise ProtocolBreach(
                f"history does not show the {step} of sequence {sequence} that the server confirmed on this claim; "
                "it is not repeated, the claim is left to expire",
                rule="prepared-local §5",
            )
        self._steps.add((step, sequence))
