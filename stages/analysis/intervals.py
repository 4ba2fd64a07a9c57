"""Percentile bootstrap over sentences: how far a measure would move if other sentences of this kind had been scored.

B. Efron, R. J. Tibshirani (1993): An Introduction to the Bootstrap, chapter 13. Sentences are drawn with replacement,
whole, since the words of one depend on each other. Every measure is a function of sums over sentences, so one set of
draws serves all of them, and differences between models are paired.

Of a measure that grows with noise, as the calibration error does, a resample has more than the sample: on a few
sentences its interval may lie above its value.

Shapes: S sentences, K sums, R resamples.
"""

# ruff: noqa: N803, N806 (shape suffixes)

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LEVEL = 0.95


def resampled_sums(values_KS: Floats, resamples: int, source: np.random.Generator) -> Floats:
    """Sums [K, R] over the sentences of each resample."""
    sums_KR = np.empty((len(values_KS), resamples))
    sentences = values_KS.shape[1]
    for r in range(resamples):
        drawn = np.bincount(source.integers(sentences, size=sentences), minlength=sentences)
        # No matrix product: the order of its additions, and so the last digit, would depend on the processor.
        np.sum(values_KS * drawn, axis=1, out=sums_KR[:, r])
    return sums_KR


def percentile_interval(values_R: Floats) -> tuple[float, float]:
    """The bounds between which 95% of the resampled values lie."""
    low, high = np.quantile(values_R, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
