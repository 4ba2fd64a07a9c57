"""The records of one run or of several replicas, as the rows of reports/history.json and reports/validation.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from stages.analysis.spread import spreads
from stages.training.records import Update, Validation

_MEASURES = ("loss", "perplexity", "accuracy", "grad_norm")


def rows_of(replicas: Sequence[Sequence[Update] | Sequence[Validation]]) -> list[dict[str, Any]]:
    """One row a step.

    Of one run its records as they are. Of several replicas the mean of each measure under its own name, with
    `loss_std`, `loss_low` and `loss_high` (95% interval of the mean) and `replicas`, the number of those that got
    that far: one that diverged is in the mean up to its end.
    """
    if len(replicas) == 1:
        return [asdict(record) for record in replicas[0]]
    longest = max(replicas, key=len)
    columns: dict[str, list[Any]] = {}
    for name in asdict(longest[0]) if longest else ():
        if name not in _MEASURES:
            columns[name] = [getattr(record, name) for record in longest]
            continue
        values_NK = np.full((len(replicas), len(longest)), np.nan)
        for row, records in zip(values_NK, replicas, strict=True):
            row[: len(records)] = [_measured(record, name) for record in records]
        mean, std, low, high = spreads(values_NK)
        found = {name: mean}
        if name == "loss":
            found |= {f"{name}_std": std, f"{name}_low": low, f"{name}_high": high}
        columns |= {key: [None if np.isnan(one) else float(one) for one in column] for key, column in found.items()}
    columns["replicas"] = [sum(len(records) > k for records in replicas) for k in range(len(longest))]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _measured(record: Update | Validation, name: str) -> float:
    value = getattr(record, name)
    return np.nan if value is None else value
