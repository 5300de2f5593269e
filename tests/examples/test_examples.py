"""Each example is run as its reader would run it, and does what its first line says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from processes import MARK, await_none, new_mark

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PROMISED = {
    "database_with_a_hard_timeout": [
        r"count_rows attempt 1: timed_out; stopped \(attempt_timeout\), pid \d+ gone",
        r"count_rows attempt 2: completed",
        r"result: \{'rows': 100000, 'attempt': 2\}",
    ],
    "cpu_job_that_resumes": [
        r"grind attempt 1: failed",
        r"grind attempt 2: completed",
        r"result: \{'resumed_at': 26, 'units': 40, .*\}",
    ],
    "kill_test_your_handler": [
        r"child killed after \d+ ms: ",
        r"supervisor killed after \d+ ms: ",
        r"owner killed after \d+ ms: the owner was killed",
        r"seed \d+: 3 kills, broken promises: \[\]",
    ],
    "order_with_approval": [
        r"book: \['book reserved', 'Ada paid 40'\]",
        r"lamp: \['lamp reserved', 'nobody approved'\]",
    ],
    "replay_before_deploy": [
        r"result: sent to Ada",
        r"recorded: exit 0, deterministic: workflow 'invoice' replays",
        r"careless: exit 4, .* at sequence 1: the code asks for local activity 'check', .* local activity 'send'",
        r"patched: exit 0, deterministic",
    ],
    "pipeline_that_is_cancelled": [
        r"compress attempt 1: cancelled; stopped \(cancelled\), pid \d+ gone",
        r"run: cancelled",
        r"files left: \[\]",
    ],
}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_an_example_does_what_it_says_and_leaves_nothing_behind(name: str) -> None:
    mark = new_mark()
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {MARK: mark},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for line in PROMISED[name]:
        assert re.search(line, done.stdout), f"no {line!r} in:\n{done.stdout}"
    assert await_none(mark, within=2.0) == []


def test_every_example_is_run_here() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")} - {"one_machine"}

    assert found == set(PROMISED)
