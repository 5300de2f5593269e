"""Quantiles are exact where they can be checked by hand, and hold their order for any samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.bench.statistics import median, quantile

_SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        ([3.0], 0.0, 3.0),
        ([3.0], 0.99, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5),
        ([5.0, 1.0, 3.0], 0.5, 3.0),
        ([0.0, 10.0], 0.25, 2.5),
        ([float(number) for number in range(101)], 0.99, 99.0),
        ([1.0, 2.0, 3.0], 0.0, 1.0),
        ([1.0, 2.0, 3.0], 1.0, 3.0),
    ],
)
def test_a_quantile_lies_between_its_neighbours(samples: list[float], share: float, expected: float) -> None:
    assert quantile(samples, share) == pytest.approx(expected)


def test_the_samples_stay_as_they_were() -> None:
    samples = [2.0, 1.0]

    quantile(samples, 0.5)

    assert samples == [2.0, 1.0]


@given(_SAMPLES, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_never_gives_a_smaller_value(samples: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))

    assert min(samples) <= quantile(samples, low) <= quantile(samples, high) + 1e-6
    assert quantile(samples, high) <= max(samples)


@given(_SAMPLES)
def test_half_of_the_samples_lie_on_each_side_of_the_median(samples: list[float]) -> None:
    middle = median(samples)

    assert sum(sample <= middle + 1e-6 for sample in samples) * 2 >= len(samples)
    assert sum(sample >= middle - 1e-6 for sample in samples) * 2 >= len(samples)


@pytest.mark.parametrize(
    ("samples", "share"),
    [([], 0.5), ([1.0], -0.1), ([1.0], 1.1), ([1.0], math.nan), ([math.nan], 0.5), ([1.0, math.inf], 0.5)],
)
def test_what_has_no_quantile_is_refused(samples: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"quantile|finite"):
        quantile(samples, share)
