"""The command line against real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    opened = Stage(tmp_path)
    try:
        yield opened
    finally:
        opened.close()
