"""What a child inherits, what the supervisor process loads, and that nothing grows."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import blocking
from proctor_supervisor import (
    AttemptControl,
    Completed,
    Heartbeat,
    Stopped,
    StopPolicy,
    StopReason,
    SupervisorOptions,
    Task,
    open_supervisor,
)


async def _surroundings(**options: Any) -> dict[str, Any]:
    async with open_supervisor(SupervisorOptions(children=1, **options)) as supervisor:
        outcome = await supervisor.run(Task.call("handlers.blocking:surroundings"))
    assert isinstance(outcome, Completed), outcome
    found: dict[str, Any] = json.loads(outcome.result)
    return found


async def test_a_child_has_its_own_channels_and_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, Path(__file__).open() as file:  # noqa: ASYNC230
        os.set_inheritable(listening.fileno(), True)
        os.set_inheritable(file.fileno(), True)
        seen = await _surroundings()

    descriptors = {int(name): target for name, target in seen["descriptors"].items()}
    descriptors = {number: target for number, target in descriptors.items() if not target.startswith("/proc/")}
    assert sorted(descriptors) == [0, 1, 2, 3, 4, 5]
    assert descriptors[0] == "/dev/null"
    assert descriptors[3].startswith("socket:")


async def test_a_child_starts_with_default_signals_in_its_main_thread_and_its_own_session() -> None:
    seen = await _surroundings()

    assert seen["unusual_signals"] == []
    assert seen["mask"] == 0
    assert seen["threads"] == 1
    assert seen["main_thread"]
    assert seen["session"]
    assert seen["core_limit"] == 0
    assert seen["cwd"] == os.getcwd()


async def test_withheld_variables_never_reach_the_supervisor_or_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.setenv("PLAIN", "shown")
    async with open_supervisor(SupervisorOptions(children=1, withhold=("SECRET_TOKEN",))) as supervisor:
        outcome = await supervisor.run(Task.call("handlers.blocking:surroundings"))
        zygote = Path(f"/proc/{supervisor.pid}/environ").read_bytes()

    assert isinstance(outcome, Completed)
    environment = json.loads(outcome.result)["environment"]
    assert "SECRET_TOKEN" not in environment
    assert environment["PLAIN"] == "shown"
    assert b"hush" not in zygote


async def test_neither_supervisor_nor_child_loads_a_heavy_library() -> None:
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        outcome = await supervisor.run(Task.call("builtins:eval", "sorted(__import__('sys').modules)"))
    assert isinstance(outcome, Completed)
    heavy = {"trio", "anyio", "psutil", "structlog", "msgspec", "httpx2", "cloudpickle", "fastavro", "proctor"}

    assert not heavy & set(json.loads(outcome.result))


async def test_a_stop_signal_for_the_terminal_does_not_reach_the_supervisor() -> None:
    async with open_supervisor(SupervisorOptions(children=1)) as supervisor:
        assert supervisor.pid is not None
        assert os.getsid(supervisor.pid) != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(supervisor.pid, number)

        assert isinstance(await supervisor.run(Task.call(blocking.pid)), Completed)


async def test_nothing_grows_over_many_attempts_with_random_stops() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    policy = StopPolicy(notice_grace=0, raise_grace=0)
    async with open_supervisor(SupervisorOptions(children=2, stop=policy)) as supervisor:
        assert supervisor.pid is not None

        async def some(count: int) -> None:
            for _ in range(count):
                control = AttemptControl()
                if draw.random() < 0.5:
                    outcome = await supervisor.run(Task.call(blocking.pid), control=control)
                    assert isinstance(outcome, Completed)
                else:

                    def stop(_beat: Heartbeat, control: AttemptControl = control) -> None:
                        control.request_stop(StopReason.CANCELLED)

                    outcome = await supervisor.run(Task.call(blocking.sleep, 600), control=control, on_heartbeat=stop)
                    assert isinstance(outcome, Stopped)

        async def count() -> tuple[int, int]:
            # A last attempt settles what the one before it left to the next turn of the loop.
            await supervisor.run(Task.call(blocking.pid))
            await trio.testing.wait_all_tasks_blocked(0.02)
            return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{supervisor.pid}/fd"))

        await some(20)
        before = await count()
        await some(100)
        after = await count()

    assert after == before, f"seed {seed}"
