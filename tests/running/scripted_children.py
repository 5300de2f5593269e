"""Scripted children: each attempt follows a behaviour, and is stopped by its reins and limits as a real one
would be.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from proctor.core.attempt import ChildEnd, Raised, Returned, StopCause, Unproven, WasStopped
from proctor.core.codec import encode, encode_bytes
from proctor.core.jobs import Job
from proctor.errors import StopUnconfirmed

Beat = Callable[[bytes], None]
Behaviour = Callable[[Job, Beat], Awaitable[ChildEnd]]


class ScriptedReins:
    """Reins that remember what was asked."""

    def __init__(self) -> None:
        self.stops: list[tuple[StopCause, str]] = []
        self.authority: float | None = None
        self.moves: list[float] = []
        self.pulled = trio.Event()

    def request_stop(self, cause: StopCause, detail: str) -> None:
        self.stops.append((cause, detail))
        self.pulled.set()

    def extend_authority(self, until: float) -> None:
        self.authority = until
        self.moves.append(until)


class ScriptedChildren:
    """Satisfies `proctor.core.jobs.Children`; runs one behaviour per attempt, in order."""

    def __init__(self, *behaviours: Behaviour, provable: bool = True, enforcing: bool = True) -> None:
        self.enforcing = enforcing
        self.behaviours = list(behaviours)
        self.provable = provable
        self.jobs: list[Job] = []
        self.all_reins: list[ScriptedReins] = []
        self.ends: list[ChildEnd] = []
        self.ended_at: list[float] = []
        self.running = 0
        self.started = trio.Event()
        self._moved = trio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for children to begin or end until something holds."""
        while not condition():
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def reins(self) -> ScriptedReins:
        self.all_reins.append(ScriptedReins())
        return self.all_reins[-1]

    async def run(self, job: Job, reins: Any, on_heartbeat: Beat) -> ChildEnd:
        behaviour = self.behaviours.pop(0)
        self.jobs.append(job)
        self.running += 1
        self.started.set()
        self._move()
        end: ChildEnd | None = None
        last_beat = trio.current_time()

        def beat(payload: bytes) -> None:
            nonlocal last_beat
            last_beat = trio.current_time()
            on_heartbeat(payload)

        async def act() -> None:
            nonlocal end
            end = await behaviour(job, beat)
            nursery.cancel_scope.cancel()

        async def guard() -> None:
            nonlocal end
            while True:
                limits = {
                    StopCause.ATTEMPT_TIMEOUT: job.limits.attempt,
                    StopCause.TOTAL_TIMEOUT: job.limits.total,
                    StopCause.AUTHORITY_LOST: reins.authority or job.limits.authority,
                }
                if job.limits.heartbeat_timeout is not None:
                    limits[StopCause.HEARTBEAT_TIMEOUT] = last_beat + job.limits.heartbeat_timeout
                known = {cause: instant for cause, instant in limits.items() if instant is not None}
                if not self.enforcing:
                    known = {StopCause.OWNER_DEATH: float("inf")}
                cause = min(known, key=lambda cause: known[cause])
                if reins.pulled.is_set():
                    end = self._stopped(reins.stops[0][0])
                elif known[cause] <= trio.current_time():
                    end = self._stopped(cause)
                else:
                    with trio.move_on_at(min(known[cause], trio.current_time() + 0.05)):
                        await reins.pulled.wait()
                    continue
                nursery.cancel_scope.cancel()
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
            nursery.start_soon(guard)
        self.running -= 1
        assert end is not None
        self.ends.append(end)
        self.ended_at.append(trio.current_time())
        self._move()
        return end

    def _stopped(self, cause: StopCause) -> ChildEnd:
        if not self.provable:
            return Unproven(StopUnconfirmed("child 4711 was killed but is not proven gone"))
        return WasStopped(cause, {"pid": 4711, "reason": str(cause)})


def returns(value: Any, *, after: float = 0.1) -> Behaviour:
    async def behaviour(job: Job, beat: Beat) -> ChildEnd:
        await trio.sleep(after)
        return Returned(encode(value))

    return behaviour


def raises(name: str, *, after: float = 0.1, non_retryable: bool = False) -> Behaviour:
    async def behaviour(job: Job, beat: Beat) -> ChildEnd:
        await trio.sleep(after)
        return Raised(name, "it broke", non_retryable)

    return behaviour


def hangs() -> Behaviour:
    async def behaviour(job: Job, beat: Beat) -> ChildEnd:
        await trio.sleep_forever()

    return behaviour


def beats(*details: Any, every: float = 0.05, then: Behaviour) -> Behaviour:
    async def behaviour(job: Job, beat: Beat) -> ChildEnd:
        for item in details:
            beat(item if isinstance(item, bytes) else encode_bytes(item))
            await trio.sleep(every)
        return await then(job, beat)

    return behaviour


def blob_of(value: Any) -> str:
    return base64.b64encode(encode_bytes(value)).decode("ascii")
