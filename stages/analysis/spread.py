"""Mean, standard deviation and 95% interval of the mean over replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def spread(values: Sequence[float] | Floats) -> dict[str, float | None]:
    """`mean`, `std` (unbiased, of the values) and the bounds `low` and `high` of the mean's 95% interval.

    The interval is Student's, mean ± t(0.975, n - 1) · std / √n: right for normal values, and fair where the
    replicas are few. With one value all but the mean are None.

    Raises:
        ValueError: no values.
    """
    mean, std, low, high = spreads(np.asarray(values, dtype=np.float64)[:, None])
    return {"mean": _number(mean), "std": _number(std), "low": _number(low), "high": _number(high)}


def spreads(values_NK: Floats) -> tuple[Floats, Floats, Floats, Floats]:  # noqa: N803 (shape)
    """Mean, std, low and high of each of K columns of N values; NaN marks a value that is missing.

    Raises:
        ValueError: no values.
    """
    from scipy.special import stdtrit  # 0.3 s that only replicas need

    if not len(values_NK):
        raise ValueError("no values to take the mean of")
    present = ~np.isnan(values_NK)
    n = present.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(present, values_NK, 0.0).sum(axis=0) / n
        squares = np.where(present, (values_NK - mean) ** 2, 0.0).sum(axis=0)
        std = np.where(n > 1, np.sqrt(squares / (n - 1)), np.nan)
        half = stdtrit(np.maximum(n - 1, 1), 0.975) * std / np.sqrt(n)
    return mean, std, mean - half, mean + half


def _number(value: Floats) -> float | None:
    return None if np.isnan(value[0]) else float(value[0])
