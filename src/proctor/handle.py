"""`WorkflowHandle`: one run, what can be asked of it, and waiting for its end.

Where the server holds a request for history until the next event, the end is heard of at once. Where it answers at once
without news, or will not be asked so, the description of the run is read twice a second instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

import trio

from proctor.core.codec import decode_value
from proctor.errors import ServerRefused, ServerUnreachable, UpdateFailed, UsageError, WorkflowFailed

_T = TypeVar("_T")
_POLL_SECONDS = 0.5
_NEWS_PAUSE_SECONDS = 0.05
"""After news that is not the end: a busy run is not asked about event by event."""
_PATIENCE_SECONDS = 30.0
_TERMINAL = frozenset({"completed", "failed", "terminated", "canceled", "cancelled"})
_FAILED = {
    "WorkflowFailed": "failed",
    "WorkflowCancelled": "cancelled",
    "WorkflowTerminated": "terminated",
    "WorkflowTimedOut": "timed_out",
}
_ENDS = frozenset({*_FAILED, "WorkflowCompleted", "WorkflowContinuedAsNew"})
_Event = Mapping[str, Any]


class Calls(Protocol):
    """What a handle asks of its client; `proctor.client.Client` says what each call does."""

    async def describe(self, workflow_id: str) -> dict[str, Any]: ...  # noqa: D102
    async def history(self, workflow_id: str, run_id: str | None = None) -> list[dict[str, Any]]: ...  # noqa: D102
    async def events_after(  # noqa: D102
        self, workflow_id: str, run_id: str, sequence: int
    ) -> tuple[list[dict[str, Any]], bool]: ...
    async def whole(self, value: Mapping[str, Any]) -> Mapping[str, Any]: ...  # noqa: D102
    def parking(self) -> AbstractContextManager[bool]: ...  # noqa: D102
    async def signal(self, workflow_id: str, name: str, args: Sequence[Any] = ()) -> dict[str, Any]: ...  # noqa: D102
    async def query(self, workflow_id: str, name: str, args: Sequence[Any] = ()) -> Any: ...  # noqa: D102
    async def update(self, workflow_id: str, name: str, args: Sequence[Any] = ()) -> dict[str, Any]: ...  # noqa: D102


class WorkflowHandle:
    """One run, or the current run of a workflow id when `run_id` is None."""

    def __init__(self, client: Calls, workflow_id: str, run_id: str | None) -> None:
        self._client = client
        self.workflow_id = workflow_id
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r}, run_id={self.run_id!r})"

    async def result(self) -> Any:
        """Wait until the run is closed and give its decoded result; bound the wait with a Trio cancel scope.

        A run that continued as new is followed to the last run of its chain. A server that is away for less than
        30 s at a time, restarting perhaps, does not end the wait.

        Raises WorkflowFailed, whose `status` is failed, cancelled, terminated or timed_out, when there is none.
        """
        run = self.run_id or (await self._described()).get("run_id")
        while True:
            if not isinstance(run, str) or not run:
                raise UsageError(f"workflow {self.workflow_id!r} has no run to wait for")
            events, described = await self._end(run)
            successor = _successor(events)
            if successor is None:
                return self._conclude(events, described)
            run = successor

    async def _end(self, run: str) -> tuple[Sequence[_Event], Mapping[str, Any]]:
        """Wait for the end of a run: give the event that closed it, or all events and the description of the run."""
        seen, waits = 0, True
        while True:
            asked = trio.current_time()
            news: Sequence[_Event] = ()
            more = False
            if waits:
                found = await self._news(run, seen)
                waits = found is not None
                news, more = found or ((), False)
            for event in news:
                if _kind(event) in _ENDS:
                    return [await self._client.whole(event)], {}
            if news:
                last = news[-1].get("sequence")
                # A server that gives the same again does not understand what it is asked.
                waits = type(last) is int and last > seen
                seen = last if type(last) is int else seen
                await trio.sleep(0 if more else _NEWS_PAUSE_SECONDS)
                continue
            described = await self._described()
            current = described.get("run_id")
            closed = str(described.get("status")) in _TERMINAL or described.get("is_terminal") is True
            # A run of the past is closed in any case; only its history tells how.
            if closed or (isinstance(current, str) and current != run):
                return await self._patiently(partial(self._client.history, self.workflow_id, run)), described
            await trio.sleep_until(asked + _POLL_SECONDS)

    async def _news(self, run: str, seen: int) -> tuple[Sequence[_Event], bool] | None:
        """Give the events behind `seen` and whether there are more at once; None when the server will not be asked."""
        with self._client.parking() as may_park:
            if not may_park:
                return (), False
            try:
                return await self._patiently(partial(self._client.events_after, self.workflow_id, run, seen))
            except ServerRefused as refusal:
                if refusal.status in (400, 422):
                    return None
                raise

    async def _described(self) -> Mapping[str, Any]:
        return await self._patiently(partial(self._client.describe, self.workflow_id))

    async def _patiently(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a reading call while the server is away, up to the patience of `result`."""
        given_up_at: float | None = None
        while True:
            try:
                return await read()
            except ServerUnreachable:
                now = trio.current_time()
                given_up_at = now + _PATIENCE_SECONDS if given_up_at is None else given_up_at
                if now >= given_up_at:
                    raise
            await trio.sleep(_POLL_SECONDS)

    async def signal(self, name: str, *args: Any) -> dict[str, Any]:
        """Send a signal to the current run of this workflow id."""
        return await self._client.signal(self.workflow_id, name, args)

    async def query(self, name: str, *args: Any) -> Any:
        """Ask the workflow code of the current run of this workflow id."""
        return await self._client.query(self.workflow_id, name, args)

    async def update(self, name: str, *args: Any) -> Any:
        """Send an update to the current run of this workflow id and give what its handler answered.

        Raises UpdateFailed when the handler failed or has not answered in time; `Client.update` says more.
        """
        told = await self._client.update(self.workflow_id, name, args)
        if told.get("update_status") != "completed":
            raise UpdateFailed(
                f"update {name!r} of workflow {self.workflow_id!r} is accepted, but not answered yet",
                workflow_id=self.workflow_id,
                update_id=told.get("update_id"),
            )
        return told["result"]

    async def describe(self) -> dict[str, Any]:
        """Give the description of the current run of this workflow id."""
        return await self._client.describe(self.workflow_id)

    async def history(self) -> list[dict[str, Any]]:
        """Give all events of this run."""
        return await self._client.history(self.workflow_id, self.run_id)

    def _conclude(self, events: Sequence[_Event], described: Mapping[str, Any]) -> Any:
        for event in reversed(events):
            kind = _kind(event)
            stated = event.get("payload")
            payload: Mapping[str, Any] = stated if isinstance(stated, Mapping) else {}
            if kind == "WorkflowCompleted":
                codec = payload.get("payload_codec")
                return decode_value(payload.get("output"), codec if isinstance(codec, str) else None)
            if kind in _FAILED:
                status = _FAILED[str(kind)]
                told = payload.get("message") or payload.get("reason") or payload.get("exception_type")
                why = f": {told}" if isinstance(told, str) and told else ""
                raise WorkflowFailed(
                    f"workflow {self.workflow_id!r} ended as {status}{why}",
                    status=status,
                    workflow_id=self.workflow_id,
                )
        status = str(described.get("status"))
        if status == "completed":
            return None
        raise WorkflowFailed(
            f"workflow {self.workflow_id!r} ended as {status} without a closing event in its history",
            status=status,
            workflow_id=self.workflow_id,
        )


def _kind(event: _Event) -> str:
    return str(event.get("event_type") or event.get("type"))


def _successor(events: Sequence[_Event]) -> str | None:
    """Give the run that a run continued as, when its history ends so."""
    last = events[-1] if events else {}
    payload = last.get("payload")
    if _kind(last) != "WorkflowContinuedAsNew" or not isinstance(payload, Mapping):
        return None
    run = payload.get("continued_to_run_id")
    return run if isinstance(run, str) and run else None
