"""Nothing grows: descriptors, processes, zombies, threads, files and memory are flat under random kills.

The long version is `make soak` (marker ``soak``); the short one runs with all other tests.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from handlers import blocking, hostile, meddling
from processes import MARK, marked, new_mark, state
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Deadlines,
    Failed,
    Outcome,
    Stopped,
    StopPolicy,
    StopReason,
    Supervisor,
    SupervisorOptions,
    Task,
    open_supervisor,
)

CHILDREN = 3
PRELOAD = ["handlers.blocking", "handlers.hostile", "handlers.meddling"]
MIB = 1 << 20


@dataclass(frozen=True)
class Footprint:
    """What the owner, the supervisor process and all below it take up."""

    owner_descriptors: int
    owner_threads: int
    owner_bytes: int
    zygote_descriptors: int
    zygote_bytes: int
    processes: int
    zombies: int
    files: int

    def __str__(self) -> str:
        return (
            f"owner: {self.owner_descriptors} descriptors, {self.owner_threads} threads, "
            f"{self.owner_bytes / MIB:.1f} MiB; supervisor: {self.zygote_descriptors} descriptors, "
            f"{self.zygote_bytes / MIB:.1f} MiB; {self.processes} processes, {self.zombies} zombies, {self.files} files"
        )


def _resident(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _files() -> int:
    folders = [Path(tempfile.gettempdir()), Path("/dev/shm")]
    return sum(1 for folder in folders if folder.is_dir() for name in folder.iterdir() if "proctor-" in name.name)


def _footprint(supervisor: Supervisor, mark: str) -> Footprint:
    zygote = supervisor.pid
    assert zygote is not None
    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    return Footprint(
        owner_descriptors=len(os.listdir("/proc/self/fd")),
        owner_threads=threading.active_count(),
        owner_bytes=_resident("self"),
        zygote_descriptors=len(os.listdir(f"/proc/{zygote}/fd")),
        zygote_bytes=_resident(zygote),
        processes=len(marked(mark)),
        zombies=sum(state(int(pid)) == "Z" for pid in children),
        files=_files(),
    )


async def _one(supervisor: Supervisor, draw: random.Random, *, kill_supervisor: bool) -> Outcome | None:
    """One attempt that ends in one of many ways; None when its caller was cancelled."""
    control = AttemptControl()

    def stop(_beat: object) -> None:
        control.request_stop(StopReason.CANCELLED)

    def kill(_beat: object) -> None:
        assert control.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(control.pid, draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]))

    way = draw.randrange(12)
    if way == 0:
        return await supervisor.run(Task.call(blocking.sleep, 600), control=control, on_heartbeat=stop)
    if way == 1:
        return await supervisor.run(Task.call(blocking.sleep, 600), control=control, on_heartbeat=kill)
    if way == 2:
        with trio.move_on_after(draw.uniform(0, 0.01)):
            return await supervisor.run(Task.call(blocking.sleep, 600), control=control)
        return None
    if way == 3:
        return await supervisor.run(Task.call(hostile.family), control=control, on_heartbeat=stop)
    if way == 4:
        return await supervisor.run(Task.call(blocking.leave_daemon_behind))
    if way == 5:
        return await supervisor.run(Task.call(blocking.echo, "x" * draw.choice([1000, 100_000, 400_000])))
    if way == 6:
        deadline = Deadlines(attempt=trio.current_time() + draw.uniform(0, 0.01))
        return await supervisor.run(Task(handler=blocking.sleep, payload=b"[[600],{}]", deadlines=deadline))
    if way == 7:
        handler = draw.choice([hostile.write_garbage, hostile.die_in_mid_result, meddling.send_many_descriptors])
        return await supervisor.run(Task.call(handler))
    if way == 8 and kill_supervisor and draw.random() < 0.05 and supervisor.pid is not None:
        os.kill(supervisor.pid, signal.SIGKILL)
    return await supervisor.run(Task.call(blocking.beat, 3, "x"))


async def _soak(isolation: str, *, attempts: int, samples: int, seed: int) -> list[Footprint]:
    """Run `attempts` attempts, three at a time; give the footprint after each of `samples` equal parts."""
    draw = random.Random(seed)
    options = SupervisorOptions(
        children=CHILDREN,
        isolation=isolation,  # type: ignore[arg-type]
        preload=PRELOAD,
        stop=StopPolicy(notice_grace=0.002, raise_grace=0.002),
    )
    mark = new_mark()
    os.environ[MARK] = mark
    found: list[Footprint] = []
    try:
        async with open_supervisor(options) as supervisor:
            for part in range(samples):
                # In the first half the supervisor process is killed, too; in the second its own growth would show.
                kill_supervisor = part < samples // 2

                async def some(count: int, kill_supervisor: bool = kill_supervisor) -> None:
                    for _ in range(count):
                        with trio.fail_after(60):
                            outcome = await _one(supervisor, draw, kill_supervisor=kill_supervisor)
                        assert outcome is None or isinstance(outcome, Completed | Failed | Stopped)

                async with trio.open_nursery() as nursery:
                    for _ in range(CHILDREN):
                        nursery.start_soon(some, attempts // samples // CHILDREN)
                assert supervisor.running == 0, f"seed {seed}"
                await supervisor.run(Task.call(blocking.pid))
                await trio.testing.wait_all_tasks_blocked(0.05)
                found.append(_footprint(supervisor, mark))
                print(f"{isolation}, after {attempts // samples * (part + 1)} attempts: {found[-1]}")
        assert marked(mark) == [], f"seed {seed}"
    finally:
        del os.environ[MARK]
    return found


def _assert_flat(found: list[Footprint], seed: int, *, growth_bytes: int) -> None:
    """Compare the last sample with the first of the second half, when everything is warm."""
    first, last = found[len(found) // 2], found[-1]
    idle = CHILDREN  # so many idle children more or less may be there
    assert abs(last.owner_descriptors - first.owner_descriptors) <= 5 * idle, f"seed {seed}"
    assert abs(last.zygote_descriptors - first.zygote_descriptors) <= idle, f"seed {seed}"
    assert last.processes <= 1 + idle, f"seed {seed}"
    assert last.zombies == 0, f"seed {seed}"
    assert last.owner_threads <= first.owner_threads + 2, f"seed {seed}"  # Trio keeps idle worker threads for a while
    assert last.files == first.files, f"seed {seed}"
    assert last.owner_bytes - first.owner_bytes < growth_bytes, f"seed {seed}"
    assert last.zygote_bytes - first.zygote_bytes < growth_bytes, f"seed {seed}"


@pytest.mark.parametrize("isolation", ["fresh", "reuse"])
async def test_nothing_grows_in_some_hundred_attempts(isolation: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    _assert_flat(await _soak(isolation, attempts=360, samples=4, seed=seed), seed, growth_bytes=16 * MIB)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("isolation", ["fresh", "reuse"])
async def test_nothing_grows_in_ten_thousand_attempts(isolation: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    _assert_flat(await _soak(isolation, attempts=10_200, samples=17, seed=seed), seed, growth_bytes=4 * MIB)
