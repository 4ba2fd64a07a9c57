"""Made-up studies with and without an effect: how often the rules find one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.analysis.comparison import compare
from stages.analysis.question import Comparison, Question
from stages.analysis.resampling import power

STUDIES = 400
FEW = 499  # resamples: as good for shares of studies

Noise = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "heavy": lambda rng, shape: rng.standard_t(3, size=shape),
}


def runs_of(values: Mapping[str, Sequence[float]], **columns: Any) -> pd.DataFrame:
    """Runs of listed variants with seeds from 0; an infinite value is that of a run that diverged at update 7."""
    rows = [
        {
            "variant": variant,
            "seed": seed,
            "value": math.nan if math.isinf(value) else value,
            "start": 4.0,
            "diverged_at": 7.0 if math.isinf(value) else math.nan,
            "steps_to_target": math.nan,
            "seconds_to_target": math.nan,
        }
        for variant, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]
    return pd.DataFrame(rows).assign(**columns)


def question_of(names: Sequence[str], **more: Any) -> Question:
    """What listed variants ask, the first one as the baseline."""
    asked: dict[str, Any] = {"title": "made up", "metric": "valid.loss", "direction": "lower"}
    return Question(**(asked | {"baseline": names[0], "factors": {"variant": list(names)}} | more))


def studies(seeds: int, comparisons: int, noise: Noise, effect: float = 0.0) -> Comparison:
    """Many studies as the groups of one comparison, each with a family of its own.

    The variants of a study share what their seeds do. `effect` is that of each last variant, in deviations of its
    paired differences.
    """
    rng = np.random.default_rng([seeds, comparisons])
    names = [f"v{i}" for i in range(comparisons + 1)]
    runs = []
    for i in range(STUDIES):
        values = 3 + rng.normal(size=(seeds, 1)) + noise(rng, (seeds, comparisons + 1))
        values[:, -1] += effect * math.sqrt(2)
        of_names = {f"{i} {name}": column for name, column in zip(names, values.T, strict=True)}
        runs.append(runs_of(of_names, study=str(i)))
    table = pd.concat(runs, ignore_index=True)
    table["level"] = table["variant"].str.partition(" ")[2]
    factors = {"study": [str(i) for i in range(STUDIES)], "level": names}
    asked = question_of(["0 v0"], factors=factors, within=["study"])
    return compare(table, asked, resamples=FEW)


def share_of(differences: pd.DataFrame, found: pd.Series[bool]) -> float:
    """The share of studies with any such difference."""
    return float(found.groupby(differences["baseline"]).any().mean())


def share_with_a_winner(found: Comparison) -> float:
    return float(np.mean([one.text.startswith("The winner") for one in found.statements[:STUDIES]]))


@pytest.mark.parametrize(
    ("seeds", "comparisons", "noise"),
    [(5, 1, "normal"), (8, 1, "skewed"), (10, 1, "heavy"), (8, 4, "normal"), (10, 4, "skewed"), (10, 9, "normal")],
)
def test_without_an_effect_at_most_7_of_100_studies_find_one(seeds: int, comparisons: int, noise: str) -> None:
    found = studies(seeds, comparisons, NOISES[noise])
    table = found.differences
    assert len(table) == STUDIES * comparisons
    assert share_of(table, table["verdict"].isin(["better", "worse"])) <= 0.07
    assert share_with_a_winner(found) <= 0.07
    # No part of the rules is enough: intervals alone find more, and so does p without a correction.
    assert share_of(table, (table["low"] > 0) | (table["high"] < 0)) > 0.07
    if comparisons > 1:
        assert share_of(table, table["p"] <= 0.05) > 0.07


def test_of_two_equally_good_variants_at_most_7_of_100_studies_name_a_winner() -> None:
    found = studies(10, 2, NOISES["normal"], effect=4.0)  # the third is far behind, so that only one comparison counts
    assert (found.differences["verdict"] == "worse").sum() >= STUDIES
    assert 0.02 < share_with_a_winner(found) <= 0.07


@pytest.mark.parametrize(("seeds", "comparisons", "effect"), [(6, 1, 1.8), (10, 1, 1.0), (10, 4, 1.5)])
def test_power_is_as_computed(seeds: int, comparisons: int, effect: float) -> None:
    table = studies(seeds, comparisons, NOISES["normal"], effect).differences
    last = table[table["variant"].str.endswith(f"v{comparisons}")]
    computed = power(seeds, effect, comparisons)
    assert 0.5 < computed < 0.95
    assert (last["verdict"] == "worse").mean() == pytest.approx(computed, abs=0.06)  # 2.5 deviations of 400 studies
    assert (last["verdict"] == "better").sum() == 0
