"""The suite in its quick mode measures all it promises and leaves nothing behind; no time is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import MARK, await_none, new_mark
from proctor.bench.supervisor import plan

_COMMAND = (sys.executable, "-m", "proctor", "bench", "supervisor")


@pytest.mark.timeout(300)
def test_the_quick_suite_measures_every_figure_and_leaves_no_process(tmp_path: Path) -> None:
    file, mark = tmp_path / "report.json", new_mark()

    run = subprocess.run(
        [*_COMMAND, "--quick", "--rounds", "1", "--seed", "7", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, MARK: mark},
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert await_none(mark, within=0) == []
    told = json.loads(file.read_text())
    assert (told["format"], told["suite"], told["rounds"], told["quick"], told["seed"]) == (
        1, "supervisor", 1, True, 7,
    )  # fmt: skip
    assert told["environment"]["cores"] >= 1
    assert [one for one in told["troubles"] if one["broken"]] == []
    assert told["left_behind"] == {}
    expected = {figure.key: figure for figure in plan.figures(peers=False)}
    assert [one["key"] for one in told["figures"]] == list(expected)
    for one in told["figures"]:
        assert one["measured"] > 0
        assert one["samples"] >= one["rounds"] == 1
        if expected[one["key"]].reference is not None:
            assert one["reference"] > 0
            assert one["ratio"] > 0
        assert (one["met"] is None) == (expected[one["key"]].bound is None)
        assert one["title"] in run.stdout


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    run = subprocess.run(
        [*_COMMAND, "--json", str(tmp_path / "absent" / "report.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert run.returncode == 2
    assert "cannot be written" in run.stderr
    assert "round 1" not in run.stderr
