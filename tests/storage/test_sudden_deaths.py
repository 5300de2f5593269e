"""SIGKILL of the server at drawn instants under load: what was acknowledged is there afterwards, and whole."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from storage.ledger import Gone, Ledger, check, work
from storage.processes import Forks, http_face, server_forks

DRAWS = 60
LANES = 4


async def test_sigkill_at_any_instant_loses_nothing_acknowledged_and_leaves_nothing_half(tmp_path: Path) -> None:
    """Each draw kills the server some acknowledgements and up to 4 ms after its start; the file lives on."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path, ledger = tmp_path / "a.db", Ledger()
    async with server_forks() as forks:
        for draw in range(DRAWS):
            with trio.fail_after(30):
                await _one_life(forks, path, ledger, chance)
            # Sometimes the next server finds the file as its predecessor left it, sometimes the check has been there.
            if chance.random() < 0.4 or draw == DRAWS - 1:
                check(path, ledger)
    assert len(ledger.completed) > DRAWS / 2
    assert len(ledger) > 8 * DRAWS


async def _one_life(forks: Forks, path: Path, ledger: Ledger, chance: random.Random) -> None:
    pid, url = await forks.start(path)
    goal = len(ledger) + chance.randrange(1, 30)
    reached = trio.Event()

    async with http_face(url) as face, trio.open_nursery() as nursery:

        class Counting:
            def __getattr__(self, name: str) -> Any:
                if len(ledger) >= goal:
                    reached.set()
                return getattr(face, name)

        async def lane(number: int) -> None:
            with suppress(Gone):
                await work(Counting(), ledger, str(number))

        for number in range(LANES):
            nursery.start_soon(lane, number)
        await reached.wait()
        await trio.sleep(chance.uniform(0, 0.004))
        await forks.kill(pid)
