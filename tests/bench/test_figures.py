"""A figure follows from the samples: a value per round, ratios within rounds, and a verdict only where there is one."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest

from proctor.bench.figures import Bound, Figure, Reading, Source, Unit, find
from proctor.bench.supervisor import plan

_FIGURE = Figure(
    key="k",
    title="t",
    unit=Unit.SECONDS,
    measured=Source("ours", "s"),
    reference=Source("theirs", "s"),
    against="them",
    bound=Bound("<=", 1.5),
)


def _rounds(*samples: list[float] | None) -> list[Reading | None]:
    return [None if one is None else {"s": one} for one in samples]


def test_the_ratio_is_formed_within_a_round_before_the_median_is_taken() -> None:
    # The machine was ten times slower in the second round, for both sides.
    finding = find(_FIGURE, {"ours": _rounds([2.0], [20.0], [3.0]), "theirs": _rounds([2.0], [10.0], [2.0])})

    assert finding.measured == 3.0
    assert finding.reference == 2.0
    assert finding.ratio == 1.5
    assert finding.ratio_range == (1.0, 2.0)
    assert finding.met is True
    assert (finding.rounds, finding.samples) == (3, 3)


def test_each_round_counts_once_however_many_samples_it_has() -> None:
    finding = find(_FIGURE, {"ours": _rounds([1.0] * 100, [5.0], [5.0]), "theirs": _rounds([1.0], [1.0], [1.0])})

    assert finding.measured == 5.0


def test_a_pooled_figure_takes_the_quantile_of_all_samples() -> None:
    pooled = dataclasses.replace(_FIGURE, pooled=True, reference=None, bound=Bound("<=", 1.0, "measured"))

    finding = find(pooled, {"ours": _rounds([1.0] * 3, [5.0], [9.0])})

    assert finding.measured == 1.0
    assert finding.ratio is None
    assert finding.met is True


def test_a_speedup_is_the_reference_over_the_measured_value() -> None:
    faster = dataclasses.replace(_FIGURE, speedup=True, bound=Bound(">=", 300.0))

    finding = find(faster, {"ours": _rounds([0.001]), "theirs": _rounds([0.4])})

    assert finding.ratio == pytest.approx(400.0)
    assert finding.met is True


def test_the_share_of_the_source_is_taken_on_both_sides() -> None:
    tail = dataclasses.replace(_FIGURE, measured=Source("ours", "s", 1.0), reference=Source("theirs", "s", 1.0))

    finding = find(tail, {"ours": _rounds([1.0, 2.0, 9.0]), "theirs": _rounds([1.0, 1.0, 3.0])})

    assert (finding.measured, finding.reference, finding.ratio) == (9.0, 3.0, 3.0)


def test_a_missing_reference_leaves_the_verdict_open() -> None:
    finding = find(_FIGURE, {"ours": _rounds([1.0])})

    assert finding.measured == 1.0
    assert (finding.reference, finding.ratio, finding.met) == (None, None, None)


def test_a_round_that_broke_on_one_side_forms_no_ratio() -> None:
    finding = find(_FIGURE, {"ours": _rounds([1.0], [9.0]), "theirs": _rounds([1.0], None)})

    assert finding.ratio == 1.0
    assert finding.rounds == 2


def test_nothing_measured_is_no_verdict_and_no_error() -> None:
    finding = find(_FIGURE, {"ours": _rounds(None), "theirs": _rounds([1.0])})

    assert (finding.measured, finding.ratio, finding.met, finding.samples) == (None, None, None, 0)


def test_a_reference_of_zero_forms_no_ratio() -> None:
    assert find(_FIGURE, {"ours": _rounds([1.0]), "theirs": _rounds([0.0])}).ratio is None


@pytest.mark.parametrize(
    ("relation", "value", "holds"),
    [("<=", 1.0, True), ("<=", 1.1, False), ("<", 1.0, False), ("<", 0.9, True), (">=", 1.0, True), (">=", 0.9, False)],
)
def test_a_bound_means_what_it_says(relation: Literal["<=", "<", ">="], value: float, *, holds: bool) -> None:
    assert Bound(relation, 1.0).holds(value) is holds


@pytest.mark.parametrize("peers", [False, True])
def test_every_figure_of_the_plan_has_its_probes_and_a_name_of_its_own(*, peers: bool) -> None:
    probes = [probe.name for probe in plan.probes(plan.FULL, peers=peers)]
    figures = plan.figures(peers=peers)
    sources = [source for one in figures for source in (one.measured, one.reference) if source is not None]

    assert len(set(probes)) == len(probes)
    assert {source.probe for source in sources} == set(probes)
    assert len({figure.key for figure in figures}) == len(figures)
    assert all(figure.against for figure in figures if figure.reference is not None)
