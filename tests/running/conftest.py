"""What the tests of the running worker share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Give a function that finds a port on which nothing listens."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Give a named pipe into which a handler writes its pid."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path
