"""Files that a server must not use, of many kinds: each is refused in one paragraph with the remedy and left alone.

The plain cases are in `tests/server/test_database.py`; here are those of a real folder, of a log beside the file and of
damage at drawn places.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor.errors import StorageError
from proctor.server.database import open_database
from proctor.server.schema import SCHEMA_VERSION
from server.wire import running_server
from storage.ledger import Ledger, check, work
from storage.processes import http_face, server_forks

NOBODY = 65534


def contents(folder: Path) -> dict[str, bytes]:
    """Give what a folder holds; the index of a log is no content."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


def refusal(path: Path) -> str | None:
    """Open and close a file, or give its refusal."""
    try:
        open_database(path).close()
    except StorageError as told:
        return str(told)
    return None


def refused(path: Path, *words: str) -> None:
    before = contents(path.parent)
    with pytest.raises(StorageError) as caught:
        open_database(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    for word in words:
        assert word in text, text
    assert contents(path.parent) == before


@pytest.fixture
async def used(tmp_path: Path) -> Path:
    """Give a file that a server has worked with and closed."""
    folder = tmp_path / "used"
    folder.mkdir()
    path = folder / "a.db"
    async with running_server(database=path) as wire:
        await work(wire, Ledger(), "a", rounds=20)
    return path


@pytest.fixture
async def killed(tmp_path: Path) -> tuple[Path, Ledger]:
    """Give a file whose server was killed, so that most of it is in the log beside it."""
    folder = tmp_path / "killed"
    folder.mkdir()
    path, ledger = folder / "a.db", Ledger()
    async with server_forks() as forks:
        pid, url = await forks.start(path)
        async with http_face(url) as face:
            await work(face, ledger, "a", rounds=5)
        await forks.kill(pid)
    assert (folder / "a.db-wal").stat().st_size > 0
    return path, ledger


async def test_damage_anywhere_is_refused_or_harmless(used: Path, tmp_path: Path) -> None:
    """Pages are overwritten at drawn places: never a crash, never a change, and what opens is sound."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    content = used.read_bytes()
    damaged = 0
    for draw in range(40):
        folder = tmp_path / str(draw)
        folder.mkdir()
        path = folder / "a.db"
        spoilt = bytearray(content)
        start = chance.randrange(100, len(spoilt))
        length = chance.choice((1, 16, 512, 4096, 20_000))
        kind = chance.choice(("noise", "zeros", "cut"))
        if kind == "cut":
            del spoilt[start:]
        else:
            part = bytes(len(spoilt[start : start + length]))
            spoilt[start : start + length] = chance.randbytes(len(part)) if kind == "noise" else part
        path.write_bytes(spoilt)
        told = refusal(path)
        if told is not None:
            damaged += 1
            assert "left untouched" in told
            assert path.read_bytes() == spoilt
            assert [file.name for file in folder.iterdir()] == ["a.db"]
    assert damaged > 5


async def test_a_log_that_was_cut_or_spoilt_gives_back_whole_transactions_only(
    killed: tuple[Path, Ledger], tmp_path: Path
) -> None:
    """What is behind the first damaged place of the log is gone; what is before it is whole."""
    path, _ = killed
    log = path.with_name("a.db-wal").read_bytes()
    chance = random.Random(random.randrange(10**6))
    for draw in range(25):
        folder = tmp_path / f"log-{draw}"
        folder.mkdir()
        shutil.copy(path, folder / "a.db")
        spoilt = bytearray(log)
        place = chance.randrange(len(spoilt))
        if chance.random() < 0.5:
            del spoilt[place:]
        else:
            spoilt[place] ^= 0xFF
        (folder / "a.db-wal").write_bytes(spoilt)
        check(folder / "a.db", Ledger())


async def test_a_log_of_another_file_is_not_mixed_in(killed: tuple[Path, Ledger], used: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    path = folder / "a.db"
    shutil.copy(used, path)
    shutil.copy(killed[0].with_name("a.db-wal"), folder / "a.db-wal")
    # SQLite takes a log with valid checksums for the file's own: what comes of it must be refused or sound.
    told = refusal(path)
    if told is not None:
        assert "damaged" in told
        return
    with open_database(path) as database:
        assert database.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_newer_schema_in_the_log_is_refused(tmp_path: Path) -> None:
    """The header of the file does not say yet what the log does."""
    path = tmp_path / "a.db"
    open_database(path).close()
    program = f"""
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA user_version = {SCHEMA_VERSION + 1}")
connection.commit()
os._exit(0)  # without closing: the log stays
"""
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert int.from_bytes(path.read_bytes()[60:64], "big") == SCHEMA_VERSION
    refused(path, "newer version", f"schema {SCHEMA_VERSION + 1}")


async def test_a_second_server_leaves_the_first_alone(tmp_path: Path) -> None:
    path, ledger = tmp_path / "a.db", Ledger()
    async with running_server(database=path) as wire:
        await work(wire, ledger, "a", rounds=2)
        for _ in range(3):
            with pytest.raises(StorageError, match=r"in use by another server.*--db"):
                open_database(path)
        await work(wire, ledger, "b", rounds=2)
    check(path, ledger)


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """Give a folder that another user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="proctor-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def open_as_nobody(path: Path) -> str:
    """Let a process without rights open the file, and give its refusal."""
    program = f"""
import os, pathlib, sys
from proctor.errors import StorageError
from proctor.server.database import open_database
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
try:
    open_database(pathlib.Path(sys.argv[1])).close()
except StorageError as refusal:
    print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("what", ["folder", "file", "new"])
def test_what_may_not_be_written_is_refused_with_the_remedy(foreign_folder: Path, what: str) -> None:
    path = foreign_folder / "a.db"
    if what != "new":
        open_database(path).close()
        path.chmod(0o666 if what == "folder" else 0o444)
    foreign_folder.chmod(0o777 if what == "file" else 0o555)
    before = contents(foreign_folder)
    told = open_as_nobody(path)
    assert str(path) in told
    assert "permission" in told or "chmod u+w" in told
    assert "--db" in told
    assert contents(foreign_folder) == before
