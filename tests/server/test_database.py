"""The database file: refused unharmed when it is not usable, held against a second server, never half written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from proctor.errors import StorageError
from proctor.server.database import open_database
from proctor.server.schema import APPLICATION_ID, SCHEMA_VERSION, UPGRADES, tables


def refused(path: Path, *words: str) -> None:
    """Check that the file is refused with these words in one paragraph, and left exactly as it was."""
    before = path.read_bytes()
    with pytest.raises(StorageError) as caught:
        open_database(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    for word in words:
        assert word in text
    assert path.read_bytes() == before
    assert sorted(child.name for child in path.parent.iterdir()) == [path.name]


def test_a_new_file_is_made_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a b%20?.db"
    open_database(path).close()
    header = path.read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
    assert int.from_bytes(header[60:64], "big") == SCHEMA_VERSION
    with open_database(path) as database:
        assert database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    with open_database(path, power_loss_safe=False) as database:
        assert database.connection.execute("PRAGMA synchronous").fetchone() == (1,)
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 20)
    refused(path, "not a database file")
    path.write_bytes(b"SQLite format 3\x00")
    refused(path, "not a database file")


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    refused(path, "another program")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    open_database(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    refused(path, "newer version", f"schema {SCHEMA_VERSION + 1}")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    open_database(path).close()
    content = bytearray(path.read_bytes())
    content[4096 + 8 : 3 * 4096] = os.urandom(2 * 4096 - 8)
    path.write_bytes(content)
    refused(path, "damaged", "left untouched")
    path.write_bytes(content[:6000])
    refused(path, "damaged")


def test_a_file_without_its_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE run (x)")
    connection.close()
    refused(path, "tables are missing")


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "frozen.db"
    open_database(path).close()
    path.chmod(0o444)
    refused(path, "chmod u+w" if os.geteuid() == 0 else "permission")


def test_a_folder_or_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a directory"):
        open_database(tmp_path)
    with pytest.raises(StorageError, match="mkdir -p"):
        open_database(tmp_path / "none" / "a.db")


def test_a_second_server_on_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    with open_database(path), pytest.raises(StorageError, match="in use by another server"):
        open_database(path)
    open_database(path).close()


def test_an_interrupted_creation_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    open_database(path).close()


def _as_version_1(path: Path) -> None:
    """Make a file as the first schema had it, with a run in it."""
    open_database(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    for table in tables(statement for later in UPGRADES.values() for statement in later):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("INSERT INTO run_payload (run_id, input) VALUES ('r', 'b')")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()


def test_a_file_of_the_first_schema_is_led_to_ours_with_all_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    _as_version_1(path)
    for _ in range(2):
        with open_database(path) as database:
            assert database.connection.execute("SELECT run_id, input FROM run_payload").fetchall() == [("r", "b")]
            for table in ("external_payload", "worker_session"):
                found = database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                assert found == (0,)
            assert int.from_bytes(path.read_bytes()[60:64], "big") == SCHEMA_VERSION


def test_a_file_of_the_first_schema_that_lacks_more_than_the_new_tables_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    _as_version_1(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE run_payload")
    connection.commit()
    connection.close()
    refused(path, "tables are missing: run_payload")
