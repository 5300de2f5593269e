"""Opening the database file: refuse what is not ours or not usable, and hold it against a second server.

Everything is checked before SQLite may write: a refused file is left exactly as it was found. An exclusive `flock` on
the file itself keeps a second server out and ends with the process, however it ends. A new file gets its first sector
last, so that one whose making was interrupted, by power loss too, is known as such and made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import stat
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from proctor.errors import StorageError
from proctor.server.schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    STATEMENTS,
    TEMPORARY_STATEMENTS,
    UPGRADES,
    from_micros,
    tables,
)

_MAGIC = b"SQLite format 3\x00"
_SECTOR = 512  # what a disk writes whole or not at all


class Database:
    """One open database: the SQLite connection and, for a file, the lock that goes with it."""

    def __init__(self, connection: sqlite3.Connection, lock: int | None) -> None:
        self.connection = connection
        self._lock = lock

    def newest_instant(self) -> datetime | None:
        """Read the latest instant that a server has put down in this file: of an event, or of a worker's heartbeat."""
        (event,) = self.connection.execute("SELECT MAX(recorded_at) FROM event").fetchone()
        instants = [] if event is None else [from_micros(event)]
        for (body,) in self.connection.execute("SELECT body FROM registration"):
            # A row that is no registration is reported when somebody needs it; it says nothing about the time.
            with suppress(ValueError, KeyError, TypeError):
                instants.append(datetime.fromisoformat(json.loads(body)["last_heartbeat_at"]))
        return max(instants, default=None)

    def close(self) -> None:
        """Close the connection, which folds the write-ahead log into the file, then let go of the lock."""
        self.connection.close()
        # Closing any descriptor of the file drops SQLite's own locks too, so this must come last.
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_database(path: Path | None, *, power_loss_safe: bool = True) -> Database:
    """Open or create the database file; None keeps everything in memory.

    With `power_loss_safe` every commit is flushed to the disk (synchronous=FULL); without it a commit survives the
    death of the process but not that of the machine. Raises StorageError, and leaves the file alone, when it is not
    a database, belongs to another program, was written by a newer version, is damaged, cannot be written, or is in
    use by another server.
    """
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _create(connection)
        _create_temporary(connection)
        return Database(connection, None)
    lock = _lock(path)
    try:
        version = _check_header(path, lock)
        if version is None:
            _make(path, lock)
        else:
            _check_content(path, version)
        return Database(_connect(path, power_loss_safe=power_loss_safe), lock)
    except BaseException:
        os.close(lock)
        raise


def _lock(path: Path) -> int:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except IsADirectoryError as exc:
        raise StorageError(f"{path} is a directory. Give the server a file, for example {path}/proctor.db.") from exc
    except FileNotFoundError as exc:
        raise StorageError(f"The folder of {path} does not exist. Create it first: mkdir -p {path.parent}") from exc
    except OSError as exc:
        raise StorageError(
            f"The database file {path} cannot be opened for writing ({exc.strerror}). Give this user write "
            "permission for the file and its folder, or choose another file with --db."
        ) from exc
    try:
        _check_kind(path, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(lock)
        raise StorageError(
            f"The database file {path} is in use by another server. Stop that one first, or choose another file "
            "with --db: two servers on one file would give the same task to two workers."
        ) from exc
    except BaseException:
        os.close(lock)
        raise
    return lock


def _check_kind(path: Path, lock: int) -> None:
    facts = os.fstat(lock)
    if not stat.S_ISREG(facts.st_mode):
        raise StorageError(f"{path} is not a regular file. Choose another file with --db.")
    if not facts.st_mode & 0o222:
        raise StorageError(
            f"The database file {path} is marked read-only. Allow writing (chmod u+w {path}), or choose another "
            "file with --db."
        )


def _check_header(path: Path, lock: int) -> int | None:
    """Look at the first 100 bytes and give the schema version; None for a new file, which has no content yet."""
    header = os.pread(lock, 100, 0)
    if not any(header) and _is_unmade(lock):
        return None
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise StorageError(
            f"{path} is not a database file of this server: it does not begin like an SQLite file. It was left "
            "untouched. Choose another file with --db, or move this one away."
        )
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StorageError(
            f"{path} is an SQLite database of another program. It was left untouched. Choose another file with --db."
        )
    version = int.from_bytes(header[60:64], "big")
    _check_version(path, version)
    return version


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise StorageError(
            f"{path} was written by a newer version of this server (schema {version}, this one knows "
            f"{SCHEMA_VERSION}). It was left untouched. Upgrade, or choose another file with --db."
        )


def _check_content(path: Path, version: int) -> None:
    """Read the whole file once, read-only, so that damage is found before anything is written."""
    # After a clean end there is no write-ahead log, and an immutable connection makes no companion files either; after
    # a crash there is one, and what it holds must be read too.
    crashed = path.with_name(f"{path.name}-wal").exists()
    access = "mode=ro" if crashed else "immutable=1"
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{access}", uri=True)
        try:
            problems = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            # What the log holds may be newer than what the header of the file says.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as exc:
        problems, names = [str(exc)], set()
    _check_version(path, version)
    missing_yet = (statement for older, later in UPGRADES.items() if version <= older for statement in later)
    expected = tables(STATEMENTS) - tables(missing_yet)
    if problems == ["ok"] and not expected <= names:
        problems = [f"tables are missing: {', '.join(sorted(expected - names))}"]
    if problems != ["ok"]:
        # SQLite reports over several lines; an error is one paragraph.
        details = " ".join("; ".join(problems).split())
        raise StorageError(
            f"The database file {path} is damaged ({details}). It was left untouched. Restore a copy, "
            "or move it away and let the server make a new one; runs recorded in it are then gone."
        )


def _is_unmade(lock: int) -> bool:
    """Tell an empty file, or one whose making was interrupted, from any other file that begins with zeros."""
    image = _image()
    size = os.fstat(lock).st_size
    if size > len(image):
        return False
    content = os.pread(lock, size, 0)
    return not any(content[:_SECTOR]) and all(
        not any(sector) or image.startswith(sector, start)
        for start in range(_SECTOR, size, _SECTOR)
        for sector in (content[start : start + _SECTOR],)
    )


def _make(path: Path, lock: int) -> None:
    """Write a new database; until the last write the file counts as not made."""
    image = _image()
    try:
        _write(lock, image[_SECTOR:], _SECTOR)
        _write(lock, image[:_SECTOR], 0)
    except OSError as exc:
        os.ftruncate(lock, 0)
        raise StorageError(
            f"The database file {path} cannot be made: {exc.strerror}. Free some space on its disk, or choose another "
            "file with --db."
        ) from exc


def _write(file: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written
    os.fsync(file)


def _image() -> bytes:
    """Give the content of a new database file."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _create(connection)
        image = bytearray(connection.serialize())
    finally:
        connection.close()
    # Versions 2 for writing and reading: the file has a write-ahead log from the start and never a rollback journal.
    image[18:20] = b"\x02\x02"
    return bytes(image)


def _connect(path: Path, *, power_loss_safe: bool) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            _check_mode(path, mode)
            # In one transaction, which makes the log and its index, too: a refusal must not come with a request.
            _upgrade(connection)
            connection.execute(f"PRAGMA synchronous = {'FULL' if power_loss_safe else 'NORMAL'}")
            _create_temporary(connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as exc:
        raise StorageError(
            f"The database file {path} cannot be used: {exc}. Check the disk's free space and the permissions of the "
            "folder (SQLite keeps two companion files beside it), or choose another file with --db."
        ) from exc
    return connection


def _check_mode(path: Path, mode: str) -> None:
    if mode != "wal":
        raise StorageError(
            f"{path} lies where SQLite cannot keep a write-ahead log (it offers mode {mode!r}). Choose a file on a "
            "local disk with --db."
        )


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in STATEMENTS:
        connection.execute(statement)
    connection.execute("COMMIT")


def _create_temporary(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA temp_store = MEMORY")
    for statement in TEMPORARY_STATEMENTS:
        connection.execute(statement)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Lead a file of an older version to ours in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for older in range(version, SCHEMA_VERSION):
        for statement in UPGRADES[older]:
            connection.execute(statement)
    if version < SCHEMA_VERSION:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
    if version < SCHEMA_VERSION:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # into the header, where older servers look
