"""The kill test: on our handler and on a user's, from a seed, and it says so when a promise breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from proctor.cli.kill_test import command
from proctor.errors import UsageError
from proctor.harness import SCENARIOS, Subject, kill_test, scenarios
from proctor.harness.processes import left_over, living, marking, new_mark
from proctor.harness.scenarios import Finding

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_every_promise_holds_for_a_handler_with_processes_below_it(name: str) -> None:
    report = await kill_test(Subject(arguments=(0.2,), timeout=10), [name], rounds=1)

    assert report.broken == [], report
    assert report.undisturbed == "completed"
    assert 0.2 <= report.span < 2.0
    assert [(one.scenario, one.number) for one in report.rounds] == [(name, 1)]


async def test_a_handler_that_never_ends_by_itself_is_killed_just_the_same() -> None:
    report = await kill_test(Subject("handlers.hostile:family", timeout=0.4), ["child", "owner"], rounds=1)

    assert report.broken == [], report
    assert report.undisturbed.startswith("stopped")


async def test_the_same_seed_draws_the_same_instants_whatever_else_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(subject: Subject, delay: float, mark: str) -> Finding:
        return Finding("nothing")

    async def took(subject: Subject, mark: str) -> tuple[str, float]:
        return "completed", 1.0

    monkeypatch.setattr("proctor.harness.rounds.measure", took)
    monkeypatch.setattr("proctor.harness.rounds.SCENARIOS", {"a": nothing, "b": nothing})
    both = await kill_test(Subject(), rounds=3, seed=7)
    one = await kill_test(Subject(), ["b"], rounds=3, seed=7)
    other = await kill_test(Subject(), ["b"], rounds=3, seed=8)

    assert [done.delay for done in both.rounds if done.scenario == "b"] == [done.delay for done in one.rounds]
    assert [done.delay for done in other.rounds] != [done.delay for done in one.rounds]
    assert all(0 <= done.delay <= 1.1 for done in both.rounds)


async def test_a_process_that_is_left_is_found_and_breaks_the_promise() -> None:
    mark = new_mark()
    with marking(mark):
        left = subprocess.Popen(["/bin/sleep", "60"])  # noqa: ASYNC220 - a moment
    try:
        assert set(living(mark)) == {left.pid}
        assert await left_over(mark, within=0.05) == [f"{left.pid} /bin/sleep 60"]
        finding = Finding()
        scenarios._nothing(finding, await left_over(mark, within=0.05))
        assert len(finding.broken) == 1
    finally:
        left.kill()
        await trio.to_thread.run_sync(left.wait)
    assert await left_over(mark, within=2.0) == []


def test_a_broken_promise_is_exit_1_and_in_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def breaks(subject: Subject, delay: float, mark: str) -> Finding:
        return Finding("it went on", ["it stops"])

    monkeypatch.setattr("proctor.harness.rounds.SCENARIOS", {"child": breaks})
    file = tmp_path / "report.json"
    told = CliRunner().invoke(
        command,
        ["child", "--rounds", "2", "--seed", "5", "--json", str(file), "--args", "[0.0]"],
        standalone_mode=False,
    )

    assert told.return_value == 1, told
    assert "seed 5" in told.output
    assert "2 promises broken" in told.output
    report = json.loads(file.read_text())
    assert report["broken"] == ["child #1: it stops", "child #2: it stops"]


def test_the_command_kills_around_a_handler_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import time\n\ndef nap(seconds):\n    time.sleep(seconds)\n    return {'slept': seconds}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "proctor", "kill-test", "child", "owner", "--module", "mine", "--handler", "nap",
         "--args", "[0.1]", "--rounds", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PYTHONPATH": ""},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills, every promise held, nothing is left" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--module", "m"],
        ["--args", "{}"],
        ["--args", "["],
        ["--module", "no_such_module", "--handler", "x"],
        ["--module", "handlers.blocking", "--handler", "no_such_handler"],
        ["--timeout", "0"],
    ],
)
def test_what_cannot_be_tested_is_refused_before_anything_runs(arguments: list[str]) -> None:
    told: Any = CliRunner().invoke(command, arguments, standalone_mode=False)

    assert isinstance(told.exception, UsageError), told


def test_the_scenarios_are_listed_with_what_they_prove() -> None:
    told = CliRunner().invoke(command, ["--list"], standalone_mode=False)

    assert [line.split()[0] for line in told.output.splitlines()] == list(SCENARIOS)
