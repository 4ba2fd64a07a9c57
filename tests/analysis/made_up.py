"""Comparisons with made-up numbers, for tests of pictures and pages: the statistics are simple stand-ins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from stages.analysis.question import Comparison, Expectation, Question, Statement
from stages.analysis.spread import spread

NOT_FINITE = math.nan
UPDATES = 300
_NUMBERS = ("difference", "low", "high", "effect")  # missing where nothing can be said


class Made(NamedTuple):
    """A comparison and the tables that it is of."""

    comparison: Comparison
    runs: pd.DataFrame
    curves: pd.DataFrame
    rates: pd.DataFrame


def grid(**factors: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the levels."""
    return [dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())]


def name_of(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{factor}={level}" for factor, level in levels.items())


def made(
    variants: Mapping[str, Mapping[str, str]],
    loss: Callable[[Mapping[str, str]], float],
    *,
    baseline: str,
    seeds: int = 5,
    gone: Mapping[tuple[str, int], int] | None = None,
    **changes: Any,
) -> Made:
    """Variants with their levels; a run ends at `loss` of its levels and a little noise of its seed.

    `gone` holds the update at which a variant diverged with a seed. Verdicts are by the interval alone.
    """
    gone = gone or {}
    factors = {factor: list(dict.fromkeys(levels[factor] for levels in variants.values()))
               for factor in next(iter(variants.values()))}  # fmt: skip
    numbers = {factor: {level: float(level) for level in levels if _is_number(level)}
               for factor, levels in factors.items()}  # fmt: skip
    question = Question(**{
        "title": "Warm-up and optimisers", "text": "Does post-norm need a ramp?", "metric": "valid.loss",
        "direction": "lower", "baseline": baseline, "factors": factors, "numbers": numbers, "target": 2.8,
        "command": "noam study run warm-up", **changes,
    })  # fmt: skip
    runs, curves, rates = [], [], []
    for number, (name, levels) in enumerate(variants.items()):
        final = loss(levels)
        for seed in range(seeds):
            end = final + 0.03 * math.sin(7 * seed) + 0.05 * math.sin(5 * number + 3 * seed)
            lost = gone.get((name, seed), NOT_FINITE)
            value = end if math.isnan(lost) else NOT_FINITE
            runs.append({"variant": name, "seed": seed, "value": value, "start": 4.2, "diverged_at": lost,
                         "steps_to_target": 150.0, "seconds_to_target": 2.5, **levels})  # fmt: skip
            steps = np.arange(0, UPDATES + 1, 30)
            losses = end + (4.2 - end) * np.exp(-steps / 60)
            here = steps[~(steps >= lost)]
            curves += [{"variant": name, "seed": seed, "step": int(step), "loss": float(value)}
                       for step, value in zip(here, losses, strict=False)]  # fmt: skip
        warmup = numbers.get("warmup", {}).get(levels.get("warmup", ""), 1.0)
        peak = float(levels.get("lr", 0.003))
        rates += [{"variant": name, "step": step, "lr": peak * min(1.0, step / warmup)}
                  for step in range(1, UPDATES + 1, 10)]  # fmt: skip
    table = pd.DataFrame(runs)
    return Made(_answer(question, table), table, pd.DataFrame(curves), pd.DataFrame(rates))


def _answer(question: Question, runs: pd.DataFrame) -> Comparison:
    rows = []
    for name, own in runs.groupby("variant", sort=False):
        values = own["value"].dropna().to_list()
        over = spread(values) if values else dict.fromkeys(("mean", "std", "low", "high"))
        rows.append({"variant": name, **own.iloc[0][list(question.factors)].to_dict() | {"variant": name},
                     "n": len(values), **over, "median": own["value"].median(),
                     "diverged": int(own["diverged_at"].notna().sum()), "missing": 0, "steps_to_target": 150.0,
                     "seconds_to_target": 2.5, "reached": len(values)})  # fmt: skip
    variants = pd.DataFrame(rows)
    for column in ("mean", "std", "low", "high"):
        variants[column] = variants[column].astype(float)
    variants["rank"] = variants["mean"].fillna(np.inf).rank(ascending=question.direction == "lower")
    variants["rank_low"], variants["rank_high"] = (variants["rank"] - 1).clip(1), variants["rank"] + 1
    wide = runs.pivot(index="seed", columns="variant", values="value")
    differences = []
    for _, row in variants.iterrows():
        same = variants[(variants[list(question.within)] == row[list(question.within)]).all(axis=1)]
        first = question.baseline if question.baseline in set(same["variant"]) else same["variant"].iloc[0]
        if row["variant"] != first:
            differences.append({"variant": row["variant"], "baseline": first,
                                **_difference((wide[row["variant"]] - wide[first]).dropna())})  # fmt: skip
    return Comparison(
        question=question,
        variants=variants,
        differences=pd.DataFrame(differences).astype(dict.fromkeys(_NUMBERS, float)) if differences else pd.DataFrame(),
        sensitivity=pd.DataFrame(),
        edges=pd.DataFrame(),
        winner="",
        statements=[
            Statement("real", "A is better than B by 0.777 nats/token."),
            Statement("not real", "C is not told apart from B."),
            Statement("cannot be said", "D has 3 seeds, fewer than five."),
            Statement("note", "The best lr lies at the edge of its grid."),
        ],
        expectations=[
            Expectation("post-norm without a ramp stays at the unigram: mean ≥ 3.2", 3.376, True),
            Expectation("pre-norm needs no ramp: |difference| ≤ 0.1", 0.131, False),
            Expectation("depth matters", None, None, "no run with two layers"),
        ],
    )


def _difference(pairs: pd.Series) -> dict[str, Any]:
    over = spread(pairs.to_list()) if len(pairs) else dict.fromkeys(("mean", "std", "low", "high"))
    low, high = over["low"], over["high"]
    if len(pairs) < 5 or low is None or high is None:
        verdict, reason = "cannot be said", f"{len(pairs)} pairs of seeds, fewer than five"
    else:
        verdict, reason = ("better" if high < 0 else "worse" if low > 0 else "not told apart"), ""
    effect = over["mean"] / over["std"] if over["std"] else NOT_FINITE
    return {"n": len(pairs), "difference": over["mean"], "low": low, "high": high, "p": 0.0625, "p_holm": 0.125,
            "effect": effect, "verdict": verdict, "reason": reason}  # fmt: skip


def _is_number(level: str) -> bool:
    try:
        return math.isfinite(float(level))
    except ValueError:
        return False


def of_grid(
    loss: Callable[[Mapping[str, str]], float],
    levels: Mapping[str, Sequence[str]],
    baseline: Mapping[str, str],
    **changes: Any,
) -> Made:
    """`made` of every combination of the levels."""
    return made({name_of(one): one for one in grid(**levels)}, loss, **{"baseline": name_of(baseline), **changes})


def warm_ups(**changes: Any) -> Made:
    """Two blocks, with and without ramps: the worst diverges with one seed."""

    def loss(levels: Mapping[str, str]) -> float:
        ramp = levels["warmup"] != "none"
        return (2.41 if ramp else 2.4) if levels["block"] == "pre" else (2.6 if ramp else 3.37)

    gone = {("block=post, warmup=none", 2): 120}
    levels = {"block": ["post", "pre"], "warmup": ["none", "10", "100", "200"]}
    return of_grid(loss, levels, {"block": "post", "warmup": "100"}, **{"within": ("block",), "gone": gone, **changes})


def rates_and_ramps(**changes: Any) -> Made:
    """A grid of rates and ramps: the best rate is the highest, at the edge."""

    def loss(levels: Mapping[str, str]) -> float:
        return 2.3 + 0.3 * (math.log10(float(levels["lr"])) + 2) ** 2 + 0.05 * (levels["warmup"] == "10")

    levels = {"lr": ["0.0003", "0.001", "0.003", "0.01"], "warmup": ["10", "100", "200"]}
    return of_grid(loss, levels, {"lr": "0.003", "warmup": "100"}, **changes)


def optimizers(**changes: Any) -> Made:
    """Three factors, more variants than one picture holds: 4 optimisers, 3 ramps, 2 rates."""
    worth = {"adam": 0.0, "radam": 0.05, "muon": -0.1, "sgd": 0.6}

    def loss(levels: Mapping[str, str]) -> float:
        ramp = 0.3 * abs(math.log10(float(levels["warmup"])) - 2)
        return 2.5 + worth[levels["optimizer"]] + ramp + (0.1 if levels["lr"] == "0.001" else 0.0)

    levels = {"optimizer": list(worth), "warmup": ["10", "100", "1000"], "lr": ["0.001", "0.003"]}
    return of_grid(loss, levels, {"optimizer": "adam", "warmup": "100", "lr": "0.003"}, **changes)


def corpora(**changes: Any) -> Made:
    """Two warm-ups on three corpora: one is best on two of them, and nearly so on the third."""
    losses = {("100", "a"): 2.0, ("100", "b"): 2.2, ("100", "c"): 2.0, ("10", "a"): 4.0, ("10", "b"): 2.0,
              ("10", "c"): 3.0}  # fmt: skip
    return of_grid(
        lambda levels: losses[levels["warmup"], levels["corpus"]],
        {"warmup": ["10", "100"], "corpus": ["a", "b", "c"]},
        {"warmup": "100", "corpus": "a"},
        **{"within": ("corpus",), **changes},
    )
