"""The report of a benchmark, as text for people and as plain JSON values. Pure.

A missed target is shown and nothing else: whether it matters is for the reader to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.bench.figures import Finding, Unit

FORMAT = 1
_HEADINGS = ("figure", "measured", "reference", "ratio", "target", "met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A probe that gave nothing in a round (from 1; 0 for none), and why. `broken` when it should have worked."""

    probe: str
    round: int
    reason: str
    broken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one run found. `left_behind` names processes that had to be killed after their probe had ended."""

    suite: str
    rounds: int
    quick: bool
    seed: int
    seconds: float
    environment: Mapping[str, Any]
    findings: Sequence[Finding]
    troubles: Sequence[Trouble] = ()
    left_behind: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether every probe that could work did."""
        return not any(trouble.broken for trouble in self.troubles)


def as_json(report: Report) -> dict[str, Any]:
    """Give the report as JSON values; times in seconds, memory in bytes."""
    return {
        "format": FORMAT,
        "suite": report.suite,
        "rounds": report.rounds,
        "quick": report.quick,
        "seed": report.seed,
        "seconds": round(report.seconds, 3),
        "environment": dict(report.environment),
        "figures": [_finding_as_json(finding) for finding in report.findings],
        "troubles": [
            {"probe": one.probe, "round": one.round, "reason": one.reason, "broken": one.broken}
            for one in report.troubles
        ],
        "left_behind": {probe: list(names) for probe, names in report.left_behind.items()},
    }


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    figure = finding.figure
    bound = figure.bound
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": str(figure.unit),
        "measured": finding.measured,
        "reference": finding.reference,
        "against": figure.against,
        "ratio": finding.ratio,
        "ratio_range": None if finding.ratio_range is None else list(finding.ratio_range),
        "ratio_is": None if figure.reference is None else _RATIO_WORDS[figure.speedup],
        "target": None if bound is None else {"of": bound.of, "relation": bound.relation, "limit": bound.limit},
        "met": finding.met,
        "rounds": finding.rounds,
        "samples": finding.samples,
    }


_RATIO_WORDS = {False: "measured / reference", True: "reference / measured"}


def as_lines(report: Report) -> list[str]:
    """Give the report as lines of text."""
    environment = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    lines = [f"proctor bench {report.suite}: {report.rounds} round(s), seed {report.seed}, {report.seconds:.0f} s"]
    lines += [environment, ""]
    lines += _table([_HEADINGS, *(_row(finding) for finding in report.findings)])
    lines += ["", "Each ratio is the median of the ratios within one round; see docs/performance.md for the methods."]
    for trouble in report.troubles:
        when = f" in round {trouble.round}" if trouble.round else ""
        lines.append(f"{'broken' if trouble.broken else 'left out'}: {trouble.probe}{when}: {trouble.reason}")
    for probe, names in report.left_behind.items():
        lines.append(f"killed after {probe} had ended: {', '.join(names)}")
    return lines


def _row(finding: Finding) -> tuple[str, ...]:
    figure = finding.figure
    reference = show(finding.reference, figure.unit)
    return (
        figure.title,
        show(finding.measured, figure.unit),
        f"{reference} {figure.against}" if figure.reference is not None else "-",
        "-" if finding.ratio is None else _show_ratio(finding.ratio),
        _show_target(finding),
        {True: "yes", False: "no", None: "-"}[finding.met],
    )


def _show_ratio(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.2f}x"


def _show_target(finding: Finding) -> str:
    bound = finding.figure.bound
    if bound is None:
        return "-"
    limit = f"{bound.limit:g}x" if bound.of == "ratio" else show(bound.limit, finding.figure.unit)
    return f"{bound.relation} {limit}"


def show(value: float | None, unit: Unit) -> str:
    """Give `value` as people read it; 1 MB is 1,000,000 bytes."""
    if value is None:
        return "-"
    match unit:
        case Unit.PER_SECOND:
            return f"{value:,.0f}/s" if value >= 10 else f"{value:.2f}/s"
        case Unit.BYTES:
            return f"{value / 1e6:.2f} MB"
        case Unit.SECONDS:
            for factor, name in ((1e6, "us"), (1e3, "ms")):
                if value * factor < 1000:
                    return (
                        f"{value * factor:.{0 if value * factor >= 100 else 1 if value * factor >= 10 else 2}f} {name}"
                    )
            return f"{value:.2f} s"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
