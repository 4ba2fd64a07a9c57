"""Intervals, p-values and ranks of a few paired values by resampling, and which differences they could have shown.

    interval   BCa: B. Efron (1987): Better bootstrap confidence intervals. Journal of the American Statistical
               Association 82, as scipy has it
    p          sign flips: R. A. Fisher (1935): The Design of Experiments, section 21. If a variant makes no difference,
               each paired difference is as likely with either sign
    family     S. Holm (1979): A simple sequentially rejective multiple test procedure. Scandinavian Journal of
               Statistics 6
    power      J. Cohen (1988): Statistical Power Analysis for the Behavioral Sciences, chapter 2 (noncentral t)

Every function draws from a generator of its own, so that no number depends on what else was asked.
Shapes: S seeds, V variants, R resamples, K comparisons.
"""

# ruff: noqa: N803, N806 (shape suffixes)

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

LEVEL = 0.05
FEWEST = 5  # seeds below which no difference is called real
_EXACT = 16  # pairs up to which all sign flips are tried
_COUNTED = 12  # pairs up to which power is counted
_STUDIES = 4000  # in which it is counted
_ROUNDING = 1e-12  # of the largest value: differences that should be equal are not, in the last digits

Floats = npt.NDArray[np.float64]


def all_equal(values_S: Floats) -> bool:
    """Whether they differ by no more than rounding."""
    return bool(np.ptp(values_S) <= _ROUNDING * np.abs(values_S).max())


def mean_interval(values_S: Floats, resamples: int, seed: int) -> tuple[float, float]:
    """95% BCa interval of the mean; NaN of fewer than two values, the value itself where all are equal."""
    if len(values_S) < 2:
        return math.nan, math.nan
    if all_equal(values_S):
        return float(values_S.mean()), float(values_S.mean())
    from scipy.stats import bootstrap

    rng = np.random.default_rng(seed)
    low, high = bootstrap((values_S,), np.mean, n_resamples=resamples, method="BCa", rng=rng).confidence_interval
    return float(low), float(high)


def sign_flip_p(differences_S: Floats, resamples: int, seed: int) -> float:
    """Two-sided p of the mean of paired differences, NaN without any.

    Up to 16 pairs all 2^S flips are tried, and the p is exact; of more, `resamples` are drawn, and the p counts what
    was found as one of them (B. Phipson, G. K. Smyth (2010): Permutation p-values should never be zero).
    """
    pairs = len(differences_S)
    if not pairs:
        return math.nan
    exact = pairs <= _EXACT
    rng = np.random.default_rng(seed)
    signs_RS = _all_signs(pairs) if exact else 1 - 2 * rng.integers(2, size=(resamples, pairs))
    sums_R = np.abs((signs_RS * differences_S).sum(axis=1))
    least = abs(differences_S.sum()) - _ROUNDING * np.abs(differences_S).sum()  # ties count, whatever their last digit
    extreme = int((sums_R >= least).sum())
    return extreme / len(sums_R) if exact else (extreme + 1) / (resamples + 1)


def holm(p_K: Floats) -> Floats:
    """Holm's adjusted p-values; a comparison without one (NaN) counts for the size of the family all the same."""
    order = np.argsort(p_K)  # NaN last
    steps = np.maximum.accumulate(p_K[order] * np.arange(len(p_K), 0, -1))
    adjusted = np.empty(len(p_K))
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


def rank_intervals(values_SV: Floats, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """95% percentile intervals [V] and [V] of the rank of each variant's mean, 1 for the least.

    Seeds are drawn with replacement, the same ones for all variants, since these are paired.
    """
    from scipy.stats import rankdata

    seeds = len(values_SV)
    drawn_RS = np.random.default_rng(seed).integers(seeds, size=(resamples, seeds))
    means_RV = np.stack([values_S[drawn_RS].mean(axis=1) for values_S in values_SV.T], axis=1)
    ranks_RV = rankdata(means_RV, method="min", axis=1)
    low_V, high_V = np.quantile(ranks_RV, [LEVEL / 2, 1 - LEVEL / 2], axis=0, method="inverted_cdf")
    return low_V, high_V


def smallest_p(n: int, comparisons: int = 1) -> float:
    """The smallest p after Holm that sign flips of n pairs can have in a family of so many comparisons."""
    return min(1.0, comparisons / 2.0 ** (n - 1))


def seeds_needed(comparisons: int = 1) -> int:
    """The fewest seeds with which the smallest p is at most 0.05."""
    return max(FEWEST, (40 * comparisons).bit_length())  # 2^n ≥ 40 · comparisons, which is no power of two


def power(n: int, effect: float, comparisons: int = 1) -> float:
    """The share of studies that would call a difference real, and with its right sign.

    The level is 0.05 / comparisons (Bonferroni, a lower bound of Holm's). Beyond 12 pairs it is the power of the paired
    t test. Of fewer there are too few p-values for that (2/2^n, 4/2^n, …): it is counted in 4 000 studies of normal
    differences, to about 0.01.

    Args:
        effect: mean of the paired differences over their standard deviation, not negative.
    """
    level = LEVEL / comparisons
    if n < seeds_needed(comparisons):
        return 0.0
    if n <= _COUNTED:
        differences_RS = np.random.default_rng(0).standard_normal((_STUDIES, n)) + effect
        sum_R = differences_RS.sum(axis=1)
        p_R = (np.abs(differences_RS @ _all_signs(n).T) >= sum_R[:, None] * (1 - _ROUNDING)).mean(axis=1)
        return float(((p_R <= level) & (sum_R > 0)).mean())
    from scipy.stats import nct, t

    return float(nct.sf(t.isf(level / 2, n - 1), n - 1, effect * math.sqrt(n)))


@cache
def smallest_effect(n: int, comparisons: int = 1, share: float = 0.8) -> float:
    """The effect that so large a share of studies would call real; infinite where there are too few seeds for any."""
    if n < seeds_needed(comparisons):
        return math.inf
    from scipy.optimize import brentq

    return float(brentq(lambda effect: power(n, effect, comparisons) - share, 0.0, 10.0, xtol=1e-3))


def _all_signs(pairs: int) -> Floats:
    """[2^(S-1), S]: every choice of signs but for that of the last, since flipping all changes nothing on two sides."""
    flips: Floats = (np.arange(2 ** (pairs - 1))[:, None] >> np.arange(pairs) & 1).astype(np.float64)
    return 1 - 2 * flips
