"""Probes: the supervisor itself. Round trips, rates, stops, memory and large payloads.

Every outcome is checked; a probe that did not measure what it says raises.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Literal

import trio

from proctor.bench import processes
from proctor_supervisor import (
    Completed,
    Deadlines,
    Outcome,
    Stopped,
    StopPolicy,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

_HANDLERS = "proctor.bench.handlers"
_BALLAST = "proctor.bench.supervisor.ballast"
_NOOP = Task.call(f"{_HANDLERS}:noop")
_SETTLED_SECONDS = 0.05

Isolation = Literal["fresh", "reuse"]


def latency(isolation: Isolation, calls: int, warmup: int, pause: float = 0.0) -> dict[str, list[float]]:
    """Time `calls` no-op attempts one after the other, `pause` seconds apart."""
    return trio.run(_time_round_trips, isolation, calls, warmup, pause)


async def _time_round_trips(isolation: Isolation, calls: int, warmup: int, pause: float) -> dict[str, list[float]]:
    """`round_trip` lasts until `run` returns, `answer` until the result has arrived."""
    samples, answers = [], []
    async with open_supervisor(SupervisorOptions(children=2, isolation=isolation, preload=[_HANDLERS])) as supervisor:
        for number in range(warmup + calls):
            if pause:
                await trio.sleep(pause)
            begun = time.perf_counter()
            outcome = await supervisor.run(_NOOP)
            ended = time.perf_counter()
            _require_completed(outcome)
            assert outcome.answered_after is not None
            if number >= warmup:
                samples.append(ended - begun)
                answers.append(ended - begun - (outcome.duration - outcome.answered_after))
    return {"round_trip": samples, "answer": answers}


def rate(isolation: Isolation, seconds: float, children: int) -> dict[str, list[float]]:
    """Count no-op attempts per second with one task for each of `children` children."""
    return {"per_second": [trio.run(_count_attempts, isolation, seconds, children)]}


async def _count_attempts(isolation: Isolation, seconds: float, children: int) -> float:
    count = 0
    options = SupervisorOptions(children=children, standby=children, isolation=isolation, preload=[_HANDLERS])

    async def keep_busy(supervisor: Supervisor) -> None:
        nonlocal count
        while time.perf_counter() < until:
            _require_completed(await supervisor.run(_NOOP))
            count += 1

    async with open_supervisor(options) as supervisor:
        async with trio.open_nursery() as nursery:
            until = 0.0
            for _ in range(children):
                nursery.start_soon(supervisor.run, _NOOP)
        begun = time.perf_counter()
        until = begun + seconds
        async with trio.open_nursery() as nursery:
            for _ in range(children):
                nursery.start_soon(keep_busy, supervisor)
        return count / (time.perf_counter() - begun)


def stops(attempts: int, seed: int) -> dict[str, list[float]]:
    """Let a deadline end a call that holds the interpreter lock; time it to the proof, and to the return of run."""
    return trio.run(_time_stops, attempts, random.Random(seed))


async def _time_stops(attempts: int, chance: random.Random) -> dict[str, list[float]]:
    to_proof, to_return = [], []
    async with open_supervisor(SupervisorOptions(children=2, preload=[_HANDLERS])) as supervisor:
        for _ in range(attempts):
            lead = chance.uniform(0.02, 0.04)  # long enough to be in the middle of the C call
            deadline, due = trio.current_time() + lead, time.monotonic() + lead
            task = Task(
                handler=f"{_HANDLERS}:backtrack",
                deadlines=Deadlines(attempt=deadline),
                stop=StopPolicy(notice_grace=0, raise_grace=0),
            )
            outcome = await supervisor.run(task)
            returned = time.monotonic()
            if not isinstance(outcome, Stopped) or outcome.reason is not StopReason.ATTEMPT_TIMEOUT:
                raise RuntimeError(f"the attempt was to be stopped by its deadline, but it came to {outcome}")
            if "in backtrack" not in outcome.proof.last_stack:
                raise RuntimeError(f"the handler was not in its C call when it was stopped: {outcome.proof.last_stack}")
            to_proof.append(outcome.proof.stopped_at - due)
            to_return.append(returned - due)
    return {"to_proof": to_proof, "to_return": to_return}


def idle_memory(*, ballast: bool) -> dict[str, list[float]]:
    """Read the private memory of one idle standby child, with a preloaded module of 100 MB or without any module."""
    return trio.run(_read_idle_memory, [_BALLAST] if ballast else [])


async def _read_idle_memory(preload: list[str]) -> dict[str, list[float]]:
    async with open_supervisor(SupervisorOptions(children=1, standby=1, preload=preload)) as supervisor:
        assert supervisor.pid is not None
        before = None
        while True:
            # A standby child says nothing when it has settled. It has when a reading repeats.
            children = processes.children_of(supervisor.pid)
            with contextlib.suppress(OSError):
                seen = [processes.memory_of(child) for child in children]
                if seen and seen == before:
                    break
                before = seen
            await trio.sleep(_SETTLED_SECONDS)
        resident = processes.memory_of(supervisor.pid)["Rss"]
    if len(seen) != 1:
        raise RuntimeError(f"one standby child was asked for, and there are {len(seen)}")
    return {
        "private": [float(seen[0]["Private_Clean"] + seen[0]["Private_Dirty"])],
        "supervisor_resident": [float(resident)],
    }


def payload(isolation: Isolation, size: int, calls: int) -> dict[str, list[float]]:
    """Time attempts whose argument and result are `size` bytes each."""
    return {"round_trip": trio.run(_time_payloads, isolation, size, calls)}


async def _time_payloads(isolation: Isolation, size: int, calls: int) -> list[float]:
    data = random.Random(size).randbytes(size)
    task = Task(handler=f"{_HANDLERS}:echo", payload=data, codec=f"{_HANDLERS}:RAW")
    # A reused child may keep what such an attempt takes; otherwise each attempt would get another child.
    options = SupervisorOptions(children=2, isolation=isolation, preload=[_HANDLERS], reuse_growth_bytes=16 * size)
    samples = []
    async with open_supervisor(options) as supervisor:
        for number in range(calls + 1):
            begun = time.perf_counter()
            outcome = await supervisor.run(task)
            ended = time.perf_counter()
            if _require_completed(outcome).result != data:
                raise RuntimeError("the result is not the argument")
            del outcome
            if number:
                samples.append(ended - begun)
    return samples


def _require_completed(outcome: Outcome) -> Completed:
    if not isinstance(outcome, Completed):
        raise TypeError(f"the attempt was to complete, but it came to {outcome}")
    return outcome
