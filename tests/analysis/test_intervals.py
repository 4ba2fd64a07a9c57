"""Intervals over sentences: what scipy finds, coverage, seeds, and time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from stages.analysis.intervals import percentile_interval, resampled_sums


def interval(values: np.ndarray, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Of the mean."""
    (sums,) = resampled_sums(values[None], resamples, np.random.default_rng(seed))
    return percentile_interval(sums / len(values))


def test_it_is_the_interval_of_scipy() -> None:
    values = np.random.default_rng(1).gamma(2.0, size=80)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2))
    assert interval(values, 20_000) == pytest.approx(tuple(theirs.confidence_interval), abs=0.01)


def test_it_holds_the_true_mean_nineteen_times_of_twenty() -> None:
    source = np.random.default_rng(3)
    held = 0
    for seed in range(400):
        low, high = interval(source.normal(1.0, 2.0, size=60), 300, seed)
        held += low <= 1.0 <= high
    assert 0.91 <= held / 400 <= 0.98


def test_sentences_are_drawn_whole_and_all_sums_from_the_same_draws() -> None:
    values = np.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0], [1.0, 1.0, 1.0]])
    sums = resampled_sums(values, 200, np.random.default_rng(0))
    assert (sums[1] == 2 * sums[0]).all()
    assert (sums[2] == 3).all()
    assert len(set(sums[0])) == 10  # the ways of drawing three of three


def test_the_seed_alone_decides() -> None:
    values = np.random.default_rng(5).random(30)
    assert interval(values, seed=7) == interval(values, seed=7)
    assert interval(values, seed=7) != interval(values, seed=8)


def test_a_thousand_resamples_of_ten_thousand_sentences_take_less_than_three_seconds() -> None:
    values = np.random.default_rng(0).random((23, 10_000))  # as many sums as the evaluation has
    start = time.perf_counter()
    resampled_sums(values, 1000, np.random.default_rng(0))
    assert time.perf_counter() - start < 3
