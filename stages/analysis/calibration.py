"""Does a model know how much it knows: its confidence against how often it is right.

C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger (2017): On calibration of modern neural networks. International Conference
on Machine Learning, equations 2 to 5. The confidence is the probability of the most likely word. Bin m of M = 15 holds
the confidences in ((m - 1) / M, m / M].
"""

# ruff: noqa: N803, N806 (shape suffixes)

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 15

Floats = npt.NDArray[np.float64]
Bins = npt.NDArray[np.int64]


def bins_of(confidence_N: Floats) -> Bins:
    """The bin of each confidence, from 0."""
    return np.clip(np.ceil(confidence_N * BINS).astype(np.int64) - 1, 0, BINS - 1)


def gaps(confidence_N: Floats, correct_N: npt.NDArray[np.bool_], group_N: Bins, groups: int) -> Floats:
    """Sums [groups, BINS] of confidence minus correctness.

    The expected calibration error of any collection of groups is the sum over the bins of the absolute value of
    these sums, divided by the number of tokens.
    """
    place_N = group_N * BINS + bins_of(confidence_N)
    return _sums(place_N, confidence_N - correct_N, groups * BINS).reshape(groups, BINS)


def reliability(confidence_N: Floats, correct_N: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """A row a bin: its bounds `low` and `high`, `tokens`, their mean `confidence` and `accuracy` (None without any)."""
    bin_N = bins_of(confidence_N)
    tokens = np.bincount(bin_N, minlength=BINS)
    sums = [_sums(bin_N, values, BINS) for values in (confidence_N, correct_N)]
    rows = []
    for i, (count, confidence, right) in enumerate(zip(tokens, *sums, strict=True)):
        means = {"confidence": confidence / count, "accuracy": right / count} if count else {}
        row = {"low": i / BINS, "high": (i + 1) / BINS, "tokens": int(count), "confidence": None, "accuracy": None}
        rows.append(row | {name: float(value) for name, value in means.items()})
    return rows


def _sums(place_N: Bins, values_N: npt.NDArray[Any], places: int) -> Floats:
    return np.bincount(place_N, weights=values_N, minlength=places).astype(np.float64)
