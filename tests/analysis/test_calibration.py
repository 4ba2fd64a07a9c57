"""Confidence against how often it is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.analysis.calibration import BINS, bins_of, gaps, reliability


@pytest.mark.parametrize(
    ("confidence", "place"),
    [(1e-9, 0), (1 / 15, 0), (1 / 15 + 1e-9, 1), (0.5, 7), (14 / 15, 13), (0.95, 14), (1.0, 14)],
)
def test_bins_are_equally_wide_and_hold_their_upper_bound(confidence: float, place: int) -> None:
    assert bins_of(np.array([confidence])).tolist() == [place]


def test_the_table_by_hand() -> None:
    confidence = np.array([0.9, 0.92, 0.5, 0.5, 0.5, 0.5])
    correct = np.array([True, False, True, True, True, False])
    table = reliability(confidence, correct)
    assert [row["tokens"] for row in table] == [0] * 7 + [4] + [0] * 5 + [2, 0]
    assert table[7] == {
        "low": pytest.approx(7 / 15),
        "high": pytest.approx(8 / 15),
        "tokens": 4,
        "confidence": 0.5,
        "accuracy": 0.75,
    }
    assert (table[13]["confidence"], table[13]["accuracy"]) == (pytest.approx(0.91), 0.5)
    assert (table[0]["confidence"], table[0]["accuracy"]) == (None, None)
    assert (table[0]["low"], table[-1]["high"]) == (0, 1)


def test_the_error_by_hand() -> None:
    """|4 · 0.5 - 3| + |1.82 - 1| over 6 tokens, whichever sentence they are in."""
    confidence = np.array([0.9, 0.92, 0.5, 0.5, 0.5, 0.5])
    correct = np.array([True, False, True, True, True, False])
    for owner in ([0] * 6, [0, 1, 0, 1, 0, 1], [2, 2, 1, 1, 1, 0]):
        sums = gaps(confidence, correct, np.array(owner), 3).sum(axis=0)
        assert np.abs(sums).sum() / 6 == pytest.approx(1.82 / 6, rel=1e-12)


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.booleans()), min_size=1, max_size=50))
def test_the_table_and_the_error_are_of_the_same_tokens(tokens: list[tuple[float, bool]]) -> None:
    confidence, correct = np.array([c for c, _ in tokens]), np.array([right for _, right in tokens])
    table = [row for row in reliability(confidence, correct) if row["tokens"]]
    assert sum(row["tokens"] for row in table) == len(tokens)
    assert all(row["low"] - 1e-12 <= row["confidence"] <= row["high"] + 1e-12 for row in table)
    of_table = sum(row["tokens"] * abs(row["confidence"] - row["accuracy"]) for row in table)
    of_sums = np.abs(gaps(confidence, correct, np.zeros(len(tokens), dtype=np.int64), 1)).sum()
    assert of_table == pytest.approx(of_sums, abs=1e-9)


def test_a_calibrated_model_has_a_small_error() -> None:
    source = np.random.default_rng(0)
    confidence = source.random(100_000)
    correct = source.random(100_000) < confidence
    assert np.abs(gaps(confidence, correct, np.zeros(100_000, dtype=np.int64), 1)).sum() / 100_000 < 0.01
    wrong = np.abs(gaps(confidence, ~correct, np.zeros(100_000, dtype=np.int64), 1)).sum() / 100_000
    assert wrong == pytest.approx(0.5, abs=0.01)
    assert BINS == 15
