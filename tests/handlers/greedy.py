"""Handlers that want more than they get."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import NoReturn


def hold(megabytes: int) -> NoReturn:
    held = [b"x" * (1024 * 1024) * 8 for _ in range(megabytes // 8)]
    time.sleep(600)
    raise AssertionError(len(held))


def hold_in_subprocess(megabytes: int) -> None:
    code = f"import time; held = b'x' * ({megabytes} << 20); time.sleep(600)"
    subprocess.run([sys.executable, "-c", code], check=True)


def spin() -> NoReturn:
    while True:
        pass


def open_files(count: int) -> int:
    held = [open("/dev/null") for _ in range(count)]  # noqa: SIM115
    for file in held:
        file.close()
    return len(held)
