"""What the demo works on: real files, and one line of one of them that a bad pattern cannot digest."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError

FILES_LIMIT = 200
_BATCH = 25
_FILE_BYTES_LIMIT = 4 * 1024 * 1024
# Each further character doubles the work: 40 keep one core busy for hours.
_LINE_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Subject:
    """The files, and the line. `skipped` says of each file that was left out why.

    `line_number` is 0 where no file has a line that would do; then the line is the first file's SHA-256 digest.
    """

    root: Path
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    path: Path
    line_number: int
    line: str

    def plan(self) -> dict[str, Any]:
        """Give the workflow's argument."""
        names = [str(file) for file in self.files]
        return {
            "batches": [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)],
            "path": str(self.path),
            "line_number": self.line_number,
            "line": self.line,
        }


def choose(path: Path | None) -> Subject:
    """Pick at most 200 files of `path`, a file or a folder; by default the standard library of this interpreter.

    Raises UsageError when `path` does not exist, cannot be read, or holds no file to work on.
    """
    root = path if path is not None else Path(sysconfig.get_path("stdlib"))
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except OSError as exc:
        raise UsageError(f"'{root}' cannot be used: {exc.strerror}. Give a file or a folder that exists.") from exc
    files: list[Path] = []
    skipped: list[str] = []
    line: tuple[Path, int, str] | None = None
    digest = ""
    for file in _walk(root) if is_folder else [root]:
        if not is_text(str(file)):
            skipped.append(f"{str(file)!a}: its name is no text")
            continue
        try:
            content = _read(file)
        except OSError as exc:
            if not is_folder:
                raise UsageError(f"'{file}' cannot be read: {exc.strerror}. Give a file you may read.") from exc
            skipped.append(f"{file}: {exc.strerror}")
            continue
        files.append(file)
        digest = digest or hashlib.sha256(content).hexdigest()
        if line is None:
            line = _find_line(file, content)
        if len(files) == FILES_LIMIT:
            break
    if not files:
        reason = f" ({skipped[0]})" if skipped else ""
        raise UsageError(f"'{root}' holds no file that can be read{reason}. Give a folder with some files in it.")
    return Subject(root, tuple(files), tuple(skipped), *(line or (files[0], 0, digest[:_LINE_LENGTH])))


def is_text(name: str) -> bool:
    """Whether a file name can travel as text; on POSIX it may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(root: Path) -> Iterator[Path]:
    """Every regular file below `root`, the nearest first, in one order on every machine."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError as exc:
        raise UsageError(f"folder '{root}' cannot be read: {exc.strerror}. Give a folder you may read.") from exc
    for entry in entries:
        if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size <= _FILE_BYTES_LIMIT:
            yield Path(entry.path)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and os.access(entry.path, os.R_OK | os.X_OK):
            yield from _walk(Path(entry.path))


def _read(file: Path) -> bytes:
    # Never wait for a writer: a named pipe or a device is no file to work on.
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(0, "not a regular file")
    return file.read_bytes()


def _find_line(file: Path, content: bytes) -> tuple[Path, int, str] | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) >= _LINE_LENGTH and line.isprintable():
            return file, number, line[:_LINE_LENGTH]
    return None
