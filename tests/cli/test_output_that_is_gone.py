"""An output that is closed, or whose reader has left, is nobody's internal error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stage import Stage


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_changes_no_exit_code(stage: Stage, closed: str) -> None:
    run = subprocess.run(
        ["bash", "-c", f'exec "$0" -m proctor list --server http://127.0.0.1:9 {closed}', sys.executable],
        capture_output=True,
        text=True,
        env=stage.environment,
        timeout=60,
        check=False,
    )

    assert run.returncode == 1
    assert "internal error" not in run.stderr
    assert "Traceback" not in run.stderr


def test_a_reader_that_left_ends_the_command_without_a_word(stage: Stage) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        run = subprocess.run(
            [sys.executable, "-m", "proctor", "server", "--port", "0", "--db", str(stage.database)],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            env=stage.environment,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)

    assert (run.returncode, run.stderr) == (1, "")
