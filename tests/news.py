"""Waiting for what a run's history comes to say: the server tells, nobody looks again and again."""

from __future__ import annotations

from proctor.client import Client


async def await_events(
    client: Client, workflow_id: str, kind: str, count: int = 1, *, run_id: str | None = None
) -> None:
    """Return when the history of a run (the current one, if none is named) has `count` events of a kind."""
    run = run_id or str((await client.describe(workflow_id))["run_id"])
    seen, found = 0, 0
    while found < count:
        events, _ = await client.events_after(workflow_id, run, seen)
        # Of an open run news come, or a late nothing; what is closed is silent at once.
        silent = not events and (await client.describe(workflow_id))["is_terminal"]
        assert not silent, f"{workflow_id} has ended with {found} of {count} events {kind}"
        found += sum(event["event_type"] == kind for event in events)
        seen = events[-1]["sequence"] if events else seen
