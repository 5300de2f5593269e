"""The suite in its quick mode measures all it promises; no time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.bench.server import filled, plan, service, traffic

_COMMAND = (sys.executable, "-m", "proctor", "bench", "server")


@pytest.mark.timeout(120)
def test_the_quick_suite_measures_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("durable_workflow", reason="the official SDK is a development dependency")
    file = tmp_path / "report.json"

    run = subprocess.run([*_COMMAND, "--quick", "--json", str(file)], capture_output=True, text=True, timeout=100)

    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(file.read_text())
    assert (told["suite"], told["rounds"], told["quick"]) == ("server", 1, True)
    assert [one["key"] for one in told["figures"]] == [figure.key for figure in plan.figures(plan.QUICK)]
    assert all(one["measured"] > 0 for one in told["figures"])
    assert all(one["ratio"] > 0 for one in told["figures"] if one["reference"] is not None)
    assert told["troubles"] == []
    assert told["left_behind"] == {}


def test_a_filled_run_has_ten_events() -> None:
    with service.server() as server, traffic.Line(server.url) as line:
        line.register()
        filled.fill(server.url, "run", 3)

        runs = [line.describe(f"run-{number}") for number in range(3)]
        assert [run["status"] for run in runs] == ["completed"] * 3
        assert [len(line.history(f"run-{number}", run["run_id"])) for number, run in enumerate(runs)] == [10, 10, 10]


def test_an_unexpected_answer_ends_a_probe_with_what_was_said() -> None:
    with (
        service.server() as server,
        traffic.Line(server.url) as line,
        pytest.raises(RuntimeError, match=r"GET /workflows/nobody was answered with 404: .*instance_not_found"),
    ):
        line.describe("nobody")
