"""Mean, deviation and interval of a few values, against scipy's and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.analysis.spread import spread, spreads

VALUES = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=2, max_size=12)
T_975 = {1: 12.7062047362, 2: 4.3026527297, 4: 2.7764451052}  # of Student's distribution, from printed tables


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [([1.0, 3.0], 2.0, math.sqrt(2)), ([1.0, 2.0, 3.0], 2.0, 1.0), ([0.0, 0.0, 0.0, 0.0, 5.0], 1.0, math.sqrt(5))],
)
def test_by_hand(values: list[float], mean: float, std: float) -> None:
    half = T_975[len(values) - 1] * std / math.sqrt(len(values))
    assert spread(values) == pytest.approx({"mean": mean, "std": std, "low": mean - half, "high": mean + half})


@given(VALUES)
def test_as_scipy_has_it(values: list[float]) -> None:
    found = spread(values)
    mean, std = np.mean(values), np.std(values, ddof=1)
    scale = 1e-9 * (1 + abs(mean))
    assert found["mean"] == pytest.approx(mean, rel=1e-12, abs=scale)
    assert found["std"] == pytest.approx(std, rel=1e-9, abs=scale)
    if std > scale:  # scipy has no interval of equal values
        low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
        assert found["low"] == pytest.approx(low, rel=1e-9, abs=scale)
        assert found["high"] == pytest.approx(high, rel=1e-9, abs=scale)
    else:
        assert found["low"] == pytest.approx(mean, abs=20 * scale)


def test_the_interval_holds_the_true_mean_in_95_of_100_cases() -> None:
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4, 20_000))
    mean, _, low, high = spreads(draws)
    assert np.mean((low <= 3.0) & (high >= 3.0)) == pytest.approx(0.95, abs=0.005)
    assert mean.mean() == pytest.approx(3.0, abs=0.02)


def test_of_one_value_only_the_mean_is_known() -> None:
    assert spread([2.5]) == {"mean": 2.5, "std": None, "low": None, "high": None}


def test_equal_values_have_no_spread() -> None:
    assert spread([0.1] * 3) == pytest.approx({"mean": 0.1, "std": 0, "low": 0.1, "high": 0.1}, abs=1e-15)


def test_no_values_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no values to take the mean of"):
        spread([])
    with pytest.raises(ValueError, match="no values to take the mean of"):
        spreads(np.empty((0, 3)))


def test_a_missing_value_counts_for_nothing() -> None:
    values = np.array([[1.0, 5.0, np.nan, np.nan], [3.0, np.nan, np.nan, 2.0], [2.0, 7.0, np.nan, np.nan]])
    found = np.array(spreads(values))
    for k, column in enumerate(([1.0, 3.0, 2.0], [5.0, 7.0], None, [2.0])):
        if column is None:
            assert np.isnan(found[:, k]).all()
            continue
        expected = [math.nan if value is None else value for value in spread(column).values()]
        assert found[:, k] == pytest.approx(expected, nan_ok=True)


def test_values_that_are_not_finite_are_not_hidden() -> None:
    mean, *_ = spreads(np.array([[math.inf], [1.0]]))
    assert mean[0] == math.inf
