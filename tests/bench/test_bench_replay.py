"""The suite in its quick mode measures all it promises; no time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.bench.replay import histories, plan
from proctor.bench.replay.own import replayer

_COMMAND = (sys.executable, "-m", "proctor", "bench", "replay")


@pytest.mark.timeout(120)
def test_the_quick_suite_measures_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("durable_workflow", reason="the official SDK is a development dependency")
    file = tmp_path / "report.json"

    run = subprocess.run([*_COMMAND, "--quick", "--json", str(file)], capture_output=True, text=True, timeout=100)

    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(file.read_text())
    assert (told["suite"], told["rounds"], told["quick"]) == ("replay", 1, True)
    assert [one["key"] for one in told["figures"]] == [figure.key for figure in plan.figures(size=plan.QUICK_SIZE)]
    assert all(one["measured"] > 0 and one["reference"] > 0 and one["ratio"] > 0 for one in told["figures"])


@pytest.mark.parametrize("shape", histories.SHAPES)
def test_each_shape_is_a_history_that_replays_to_its_end(shape: str) -> None:
    events, _ = histories.build(shape, 100)

    assert 100 <= len(events) < 103
    replayer(shape, 100)()
