"""``proctor bench`` without a suite runs all of them; what each measures is for the tests of the suites."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from proctor.bench.figures import Bound, Figure, Finding, Source, Unit
from proctor.bench.report import Report, Trouble
from proctor.cli import bench as command
from proctor.errors import UsageError

_FIGURE = Figure(
    key="pace", title="the pace", unit=Unit.PER_SECOND, measured=Source("p", "s"), bound=Bound(">=", 9, of="measured")
)


class _Suite:
    def __init__(self, name: str, troubles: Sequence[Trouble] = ()) -> None:
        self.name = name
        self.troubles = troubles
        self.asked: dict[str, Any] = {}

    async def run(self, **asked: Any) -> Report:
        await trio.lowlevel.checkpoint()
        self.asked = asked
        return Report(
            suite=self.name, rounds=asked["rounds"] or 1, quick=asked["quick"], seed=0, seconds=1.0, environment={},
            findings=[Finding(figure=_FIGURE, measured=8.0, met=False)], troubles=self.troubles,
        )  # fmt: skip


_SUITES = ("supervisor", "replay", "server")


def _bench(monkeypatch: pytest.MonkeyPatch, *arguments: str, **suites: _Suite) -> Any:
    for name in _SUITES:
        monkeypatch.setattr(command, f"{name}_suite", suites.setdefault(name, _Suite(name)))
    return command.bench.main(args=list(arguments), prog_name="bench", standalone_mode=False)


def test_all_suites_run_and_are_written_as_one_object(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    suites = {name: _Suite(name) for name in _SUITES}

    code = _bench(monkeypatch, "--peers", "--rounds", "2", "--json", str(file), **suites)

    assert code == 0  # a missed target is shown, not an error
    told = json.loads(file.read_text())
    assert [one["suite"] for one in told["suites"]] == list(_SUITES)
    assert [one["figures"][0]["met"] for one in told["suites"]] == [False] * 3
    assert suites["supervisor"].asked["peers"] is True
    assert [suite.asked["rounds"] for suite in suites.values()] == [2] * 3
    assert capsys.readouterr().out.count("the pace") == 3


def test_a_broken_probe_of_any_suite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = _Suite("replay", [Trouble(probe="p", round=1, reason="it fell over", broken=True)])

    assert _bench(monkeypatch, "--quick", replay=broken) == 1
    assert broken.asked["quick"] is True


@pytest.mark.parametrize("name", _SUITES)
def test_a_named_suite_runs_alone(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    suites = {each: _Suite(each) for each in _SUITES}

    assert _bench(monkeypatch, name, "--json", str(file), **suites) == 0

    assert json.loads(file.read_text())["suite"] == name
    assert [each for each, suite in suites.items() if suite.asked] == [name]


@pytest.mark.parametrize("option", [["--quick"], ["--peers"], ["--rounds", "2"], ["--json", "file"]])
def test_options_before_the_name_of_a_suite_are_refused(option: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="options stand after the name of the suite: proctor bench replay"):
        _bench(monkeypatch, *option, "replay")
