"""A disk that can lose its power: SQLite's writes are recorded as they reach the operating system, and images are made
of what would be left of the files.

`recording` puts a thin layer under SQLite by its own extension point, the virtual file system: the real one does the
work, and every write, truncation, sync and deletion is noted. An image at some instant holds what was synced, and of
the rest any part, sector by sector, as the disk pleases. Owns no database and no judgement.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

_SECTOR = 512
_POINTER = ctypes.c_void_p
_SIZE = ctypes.sizeof(_POINTER)
_FULL = 13  # SQLITE_FULL

# Names go through as the pointers they are: SQLite keeps them and reads what lies behind them.
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int, _POINTER)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_longlong)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_longlong)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)

# Places in `sqlite3_vfs` (three ints, then pointers) and in `sqlite3_io_methods` (one int, then pointers).
_VFS_POINTERS, _VFS_NAME, _VFS_OPEN, _VFS_DELETE = 19, 1, 3, 4
_IO_POINTERS, _IO_WRITE, _IO_TRUNCATE, _IO_SYNC = 18, 2, 3, 4


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("path_size", ctypes.c_int),
        ("pointers", _POINTER * _VFS_POINTERS),
    )


class _Methods(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("pointers", _POINTER * _IO_POINTERS))


@dataclass
class Disk:
    """What reached the operating system, in order: ``(what, path, ...)``, or ``("mark", anything)``."""

    log: list[tuple[Any, ...]] = field(default_factory=list)
    room: bool = True
    """Without room every write that makes a file longer is refused, as by a full disk."""

    def mark(self, what: Any) -> None:
        """Note something that happened outside, for example an acknowledgement."""
        self.log.append(("mark", what))

    def syncs(self, suffix: str) -> int:
        """Count the syncs of files with this suffix."""
        return sum(entry[0] == "sync" and entry[1].endswith(suffix) for entry in self.log)

    def image(self, cut: int, folder: Path, chance: random.Random) -> None:
        """Write into `folder` what the power left of the files when it went after the first `cut` entries."""
        contents: dict[str, bytearray] = {}
        pending: dict[str, list[Callable[[bytearray], None]]] = {}
        for what, path, *rest in self.log[:cut]:
            if what == "mark":
                continue
            if what == "delete":
                # The folder is synced with it, or the name may come back with the next start.
                if rest[0] or chance.random() < 0.5:
                    contents.pop(path, None)
                    pending.pop(path, None)
                continue
            content, waiting = contents.setdefault(path, bytearray()), pending.setdefault(path, [])
            if what == "write":
                waiting += _sectors(*rest)
            elif what == "truncate":
                waiting.append(_truncation(*rest))
            elif what == "sync":
                for change in waiting:
                    change(content)
                waiting.clear()
        folder.mkdir()
        kept = chance.choice((0.0, 0.5, 0.9, 1.0))
        for path, content in contents.items():
            for change in pending[path]:
                if chance.random() < kept:
                    change(content)
            (folder / os.path.basename(path)).write_bytes(content)


def _sectors(offset: int, data: bytes) -> list[Callable[[bytearray], None]]:
    parts = []
    start = 0
    while start < len(data):
        end = min(len(data), start + _SECTOR - (offset + start) % _SECTOR)
        parts.append(_part(offset + start, data[start:end]))
        start = end
    return parts


def _part(offset: int, data: bytes) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data

    return change


def _truncation(size: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[size:]

    return change


@contextmanager
def recording() -> Iterator[Disk]:
    """Record what SQLite and `os.pwrite` write, for databases that are opened and closed within the block."""
    library = ctypes.CDLL(_sqlite3.__file__)
    try:
        find, register, unregister = (
            getattr(library, f"sqlite3_vfs_{name}") for name in ("find", "register", "unregister")
        )
    except AttributeError:
        pytest.skip("this Python has its SQLite built in and does not show its functions")
    find.restype = ctypes.POINTER(_Vfs)
    find.argtypes = [ctypes.c_char_p]
    register.argtypes = [ctypes.POINTER(_Vfs), ctypes.c_int]
    unregister.argtypes = [ctypes.POINTER(_Vfs)]
    real = find(None)
    disk = Disk()
    layer = _Layer(disk, real.contents)
    assert register(ctypes.byref(layer.vfs), 1) == 0
    pwrite, fsync = os.pwrite, os.fsync

    def on_pwrite(file: int, data: bytes, offset: int) -> int:
        written = pwrite(file, data, offset)
        disk.log.append(("write", os.readlink(f"/proc/self/fd/{file}"), offset, data[:written]))
        return written

    def on_fsync(file: int) -> None:
        fsync(file)
        disk.log.append(("sync", os.readlink(f"/proc/self/fd/{file}")))

    try:
        with mock.patch("os.pwrite", on_pwrite), mock.patch("os.fsync", on_fsync):
            yield disk
    finally:
        unregister(ctypes.byref(layer.vfs))
        assert ctypes.addressof(find(None).contents) == ctypes.addressof(real.contents)


class _Layer:
    """The layer itself; it lives as long as SQLite may call it."""

    def __init__(self, disk: Disk, real: _Vfs) -> None:
        self._disk = disk
        self._real_open = _OPEN(real.pointers[_VFS_OPEN])
        self._real_delete = _DELETE(real.pointers[_VFS_DELETE])
        self._paths: dict[int, str] = {}
        self._sizes: dict[str, int] = {}
        self._methods: dict[int, tuple[_Methods, Any, Any, Any]] = {}
        self._kept = (_OPEN(self._open), _DELETE(self._delete))
        self._name = ctypes.create_string_buffer(b"recorded")
        self.vfs = _Vfs(real.version, real.file_size, real.path_size, real.pointers)
        self.vfs.pointers[_VFS_NAME] = ctypes.addressof(self._name)
        self.vfs.pointers[_VFS_OPEN] = ctypes.cast(self._kept[0], _POINTER).value
        self.vfs.pointers[_VFS_DELETE] = ctypes.cast(self._kept[1], _POINTER).value

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        code = self._real_open(vfs, name, file, flags, out)
        if code == 0 and name is not None:
            path = ctypes.string_at(name).decode()
            self._paths[file] = path
            self._sizes[path] = os.stat(path).st_size
            place = _POINTER.from_address(file)
            assert place.value is not None
            place.value = ctypes.addressof(self._layered(place.value))
        return int(code)

    def _layered(self, real: int) -> _Methods:
        if real not in self._methods:
            methods = _Methods.from_address(real)
            own = _Methods(methods.version, methods.pointers)
            write, truncate, sync = (
                _WRITE(methods.pointers[_IO_WRITE]),
                _TRUNCATE(methods.pointers[_IO_TRUNCATE]),
                _SYNC(methods.pointers[_IO_SYNC]),
            )

            def on_write(file: int, data: int, size: int, offset: int) -> int:
                path = self._paths[file]
                if not self._disk.room and offset + size > self._sizes[path]:
                    return _FULL
                code = write(file, data, size, offset)
                if code == 0:
                    self._sizes[path] = max(self._sizes[path], offset + size)
                    self._disk.log.append(("write", path, offset, ctypes.string_at(data, size)))
                return int(code)

            def on_truncate(file: int, size: int) -> int:
                self._sizes[self._paths[file]] = size
                self._disk.log.append(("truncate", self._paths[file], size))
                return int(truncate(file, size))

            def on_sync(file: int, flags: int) -> int:
                code = sync(file, flags)
                self._disk.log.append(("sync", self._paths[file]))
                return int(code)

            callbacks = (_WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync))
            for position, callback in zip((_IO_WRITE, _IO_TRUNCATE, _IO_SYNC), callbacks, strict=True):
                own.pointers[position] = ctypes.cast(callback, _POINTER).value
            self._methods[real] = (own, *callbacks)
        return self._methods[real][0]

    def _delete(self, vfs: int, name: int, sync_folder: int) -> int:
        code = self._real_delete(vfs, name, sync_folder)
        if code == 0:
            self._disk.log.append(("delete", ctypes.string_at(name).decode(), sync_folder))
        return int(code)
