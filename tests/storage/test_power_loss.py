"""Power loss: at every instant the disk holds what was acknowledged, whatever it kept of what was not synced yet.

Shown on what SQLite really wrote: each draw makes the files that a power cut would have left and opens them.
"""

from __future__ import annotations

import random
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from proctor.server.database import open_database
from proctor.server.schema import UPGRADES, tables
from server.wire import Reply, Wire, running_server
from storage.ledger import Ledger, check, work
from storage.recorded_disk import Disk, recording

LANES = 6
ROUNDS = 4


class Acknowledging:
    """A server that notes on the disk's record what was acknowledged when."""

    def __init__(self, wire: Wire, disk: Disk, ledger: Ledger) -> None:
        self._wire, self._disk, self._ledger = wire, disk, ledger
        self._marked = 0

    async def worker(self, *arguments: Any, **options: Any) -> Reply:
        self._note()
        return await self._wire.worker(*arguments, **options)

    async def control(self, *arguments: Any, **options: Any) -> Reply:
        self._note()
        return await self._wire.control(*arguments, **options)

    def _note(self) -> None:
        # The ledger was brought up to date after the last answer of this lane.
        if len(self._ledger) > self._marked:
            self._marked = len(self._ledger)
            self._disk.mark(self._ledger.copy())


async def recorded(path: Path, *, power_loss_safe: bool) -> tuple[Disk, Ledger]:
    """Run load on a server over a new file and give what the disk saw."""
    ledger = Ledger()
    with recording() as disk:
        async with running_server(database=path, power_loss_safe=power_loss_safe) as wire:
            face = Acknowledging(wire, disk, ledger)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for lane in range(LANES):
                        nursery.start_soon(partial(work, face, ledger, str(lane), rounds=ROUNDS))
            disk.mark(ledger.copy())
    return disk, ledger


def lost(disk: Disk, folder: Path, seed: int, draws: int) -> list[str]:
    """Cut the power at drawn instants and give what each image lacked."""
    chance = random.Random(seed)
    problems = []
    for draw in range(draws):
        cut = chance.randrange(1, len(disk.log) + 1)
        marks = [entry[1] for entry in disk.log[:cut] if entry[0] == "mark"]
        place = folder / f"{seed}-{draw}"
        disk.image(cut, place, chance)
        if not (place / "a.db").exists():
            assert not marks
            continue
        try:
            check(place / "a.db", marks[-1] if marks else Ledger())
        except Exception as problem:  # noqa: BLE001 - any refusal or loss is what is counted
            problems.append(f"seed {seed}, draw {draw}, cut {cut} of {len(disk.log)}: {problem!r}"[:500])
    return problems


async def test_no_power_cut_loses_what_was_acknowledged_or_leaves_half_of_a_transaction(tmp_path: Path) -> None:
    disk, ledger = await recorded(tmp_path / "a.db", power_loss_safe=True)
    assert len(ledger.completed) == LANES * ROUNDS
    assert lost(disk, tmp_path, seed=random.randrange(10**6), draws=60) == []


async def test_acknowledgements_share_a_sync(tmp_path: Path) -> None:
    disk, ledger = await recorded(tmp_path / "a.db", power_loss_safe=True)
    assert 0 < disk.syncs("-wal") < len(ledger)


async def test_the_proof_above_can_fail(tmp_path: Path) -> None:
    """Without full synchronisation the same cuts do lose acknowledged writes."""
    disk, _ = await recorded(tmp_path / "a.db", power_loss_safe=False)
    assert lost(disk, tmp_path, seed=7, draws=30) != []


async def test_a_cut_while_the_file_is_made_leaves_one_that_opens(tmp_path: Path) -> None:
    with recording() as disk:
        open_database(tmp_path / "a.db").close()
    chance = random.Random(random.randrange(10**6))
    for cut in range(1, len(disk.log) + 1):
        place = tmp_path / str(cut)
        disk.image(cut, place, chance)
        check(place / "a.db", Ledger())


async def test_a_cut_while_an_older_file_is_upgraded_leaves_one_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    open_database(path).close()
    with sqlite3.connect(path) as connection:
        for table in tables(statement for later in UPGRADES.values() for statement in later):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with recording() as disk:
        disk.log += [("write", str(path), 0, path.read_bytes()), ("sync", str(path))]
        open_database(path).close()
    chance = random.Random(random.randrange(10**6))
    for cut in range(2, len(disk.log) + 1):
        place = tmp_path / str(cut)
        disk.image(cut, place, chance)
        check(place / "a.db", Ledger())


@pytest.mark.parametrize("size", [511, 512, 513, 4096])
def test_an_image_keeps_synced_writes_and_any_part_of_the_others(tmp_path: Path, size: int) -> None:
    disk = Disk(
        [
            ("write", "/f", 0, b"a" * size),
            ("sync", "/f"),
            ("write", "/f", 0, b"b" * size),
            ("truncate", "/f", 5),
            ("delete", "/g", 1),
        ]
    )
    seen = set()
    for draw in range(40):
        disk.image(len(disk.log), tmp_path / str(draw), random.Random(draw))
        seen.add((tmp_path / str(draw) / "f").read_bytes())
    assert {b"a" * size, b"b" * 5} <= seen
