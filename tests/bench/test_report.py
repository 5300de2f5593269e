"""The report shows every figure, met or not, and says what could not be measured."""

from __future__ import annotations

import json

import pytest

from proctor.bench.figures import Bound, Figure, Finding, Source, Unit
from proctor.bench.report import Report, Trouble, as_json, as_lines, show

_RATIO = Figure(
    key="trip",
    title="a trip",
    unit=Unit.SECONDS,
    measured=Source("ours", "s"),
    reference=Source("theirs", "s"),
    against="a socketpair",
    bound=Bound("<=", 1.3),
)
_ABSOLUTE = Figure(
    key="stop",
    title="a stop",
    unit=Unit.SECONDS,
    measured=Source("stops", "s"),
    bound=Bound("<=", 0.003, "measured"),
)


def _report(*findings: Finding, troubles: tuple[Trouble, ...] = ()) -> Report:
    return Report(
        suite="supervisor",
        rounds=5,
        quick=False,
        seed=7,
        seconds=12.34567,
        environment={"python": "3.11"},
        findings=findings,
        troubles=troubles,
        left_behind={"loky": ["python -m tracker"]},
    )


_WHOLE = _report(
    Finding(
        figure=_RATIO,
        measured=0.0001,
        reference=0.00008,
        ratio=1.25,
        ratio_range=(1.2, 1.3),
        met=True,
        rounds=5,
        samples=10,
    ),
    Finding(figure=_ABSOLUTE, measured=0.004, met=False, rounds=5, samples=10),
)


def _row(lines: list[str], title: str) -> str:
    return next(line for line in lines if line.startswith(title))


def test_a_line_holds_measured_reference_ratio_target_and_verdict() -> None:
    lines = as_lines(_WHOLE)

    for text in ("100 us", "80.0 us a socketpair", "1.25x", "<= 1.3x", "yes"):
        assert text in _row(lines, "a trip")
    for text in ("4.00 ms", "<= 3.00 ms", "no"):
        assert text in _row(lines, "a stop")


def test_the_columns_stand_below_each_other() -> None:
    lines = as_lines(_WHOLE)
    heading = _row(lines, "figure")

    assert _row(lines, "a trip")[heading.index("target") :].startswith("<= 1.3x")
    assert _row(lines, "a stop")[heading.index("target") :].startswith("<= 3.00 ms")


def test_the_seed_and_the_machine_are_named() -> None:
    lines = as_lines(_WHOLE)

    assert "seed 7" in lines[0]
    assert "python 3.11" in lines[1]


def test_json_keeps_base_units_and_says_how_a_ratio_was_formed() -> None:
    told = json.loads(json.dumps(as_json(_WHOLE)))

    trip, stop = told["figures"]
    assert (trip["measured"], trip["unit"], trip["met"]) == (0.0001, "seconds", True)
    assert trip["ratio_range"] == [1.2, 1.3]
    assert trip["ratio_is"] == "measured / reference"
    assert trip["target"] == {"of": "ratio", "relation": "<=", "limit": 1.3}
    assert stop["target"] == {"of": "measured", "relation": "<=", "limit": 0.003}
    assert (stop["ratio"], stop["ratio_is"], stop["met"]) == (None, None, False)
    assert told["seed"] == 7
    assert told["left_behind"] == {"loky": ["python -m tracker"]}


def test_what_was_not_measured_is_a_dash_and_has_its_reason() -> None:
    troubles = (
        Trouble(probe="loky", round=0, reason="package loky is not installed", broken=False),
        Trouble(probe="ours", round=2, reason="exit status 1: boom", broken=True),
    )
    report = _report(Finding(figure=_RATIO), troubles=troubles)
    lines = as_lines(report)

    assert _row(lines, "a trip").split() == ["a", "trip", "-", "-", "a", "socketpair", "-", "<=", "1.3x", "-"]
    assert "left out: loky: package loky is not installed" in lines
    assert "broken: ours in round 2: exit status 1: boom" in lines
    assert not report.is_whole


def test_a_missed_target_and_an_absent_peer_leave_the_report_whole() -> None:
    absent = Trouble(probe="loky", round=0, reason="package loky is not installed", broken=False)

    assert _report(*_WHOLE.findings, troubles=(absent,)).is_whole


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, Unit.SECONDS, "-"),
        (0.0000051, Unit.SECONDS, "5.10 us"),
        (0.000051, Unit.SECONDS, "51.0 us"),
        (0.00051, Unit.SECONDS, "510 us"),
        (0.0051, Unit.SECONDS, "5.10 ms"),
        (1.5, Unit.SECONDS, "1.50 s"),
        (12345.6, Unit.PER_SECOND, "12,346/s"),
        (2.5, Unit.PER_SECOND, "2.50/s"),
        (1_500_000, Unit.BYTES, "1.50 MB"),
    ],
)
def test_values_are_shown_as_people_read_them(value: float | None, unit: Unit, text: str) -> None:
    assert show(value, unit) == text
