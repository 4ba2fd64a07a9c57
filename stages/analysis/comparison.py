"""Runs of several variants with the same seeds → which of them differ, and what cannot be said.

A difference is called real only where at least five seeds have a run of both variants, none of their runs diverged or
is missing, the 95% BCa interval of the paired difference leaves out 0, and its permutation p is at most 0.05 after
Holm's correction for all comparisons of the group. A winner is named only where its difference to every other variant
of its group is real (a family of its own), and neither the tuning nor the grid speaks against it.
"""

# ruff: noqa: N806 (shape suffixes)

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stages.analysis.question import Comparison, Question
from stages.analysis.resampling import (
    FEWEST,
    LEVEL,
    Floats,
    all_equal,
    holm,
    mean_interval,
    rank_intervals,
    sign_flip_p,
)
from stages.analysis.spread import spreads
from stages.analysis.words import (
    Choice,
    counted,
    levels_of,
    listed,
    of_levels,
    statements,
    tuned_where_reported,
    unequal_budgets,
)
from stages.errors import StudyError, nearest

RATES = ("lr", "factor")  # factors that are a learning rate or multiply it
_MOST = 3  # variants that stand in the way of a winner and are named
_FEWEST_LEVELS = 3  # of a grid that has an edge and an inside


Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The runs, tidy; S seeds.

    Attributes:
        variants: in the order of the factors' levels: `variant`, the level of each factor, `n`, `mean`, `diverged`,
            `missing`.
        values: [S] of the metric by variant; NaN where there is none.
        capped: the same with `start` where the run diverged or ended above it.
    """

    question: Question
    seeds: Sequence[int]
    variants: Sequence[Row]
    values: Mapping[str, Floats]
    capped: Mapping[str, Floats]
    resamples: int
    seed: int


def compare(runs: pd.DataFrame, question: Question, *, resamples: int = 10_000, seed: int = 0) -> Comparison:
    """What the runs say to the question; expectations are left empty.

    A run without a finite value counts as `diverged` if it has `diverged_at` or its value is infinite, else as
    `missing`. The order of the rows does not matter.

    `effect` is mean(d) / std(d) of the paired differences d (Cohen's d_z), without a correction for few seeds; NaN
    where all d are equal. The interval of fewer than two differences is NaN, of equal ones the value itself.

    Ranks are those within the group, with intervals from the seeds that its variants share. Variants with a run that
    diverged rank last, in no order among themselves; one without a value has no rank.

    Sensitivity is that of M. Wortsman et al. (2023): Small-scale proxies for large-scale Transformer training
    instabilities, section 2: the mean over the grid of min(value, start) minus the least of them, here for each seed,
    and then the mean over seeds. A run that diverged counts as its start; where that is not known, the seed is left
    out. Of metrics that should be high there is none.

    Args:
        runs: table `runs` of `stages.analysis.question`.
        question: what is compared.
        resamples: draws of the bootstrap, and of the sign flips of more than 16 pairs.
        seed: of these draws.

    Raises:
        StudyError: no runs, no run of the baseline, an unknown factor or level, or two runs of a variant with one seed.
    """
    _check(runs, question)
    tidy = _tidied(runs, question, resamples, seed)
    groups = [group for _, group in _split(tidy.variants, question.within)]
    edges = _edges(tidy)
    choices = [_choice(group, edges, tidy) for group in groups if len(group) > 1]
    found = Comparison(
        question=question,
        variants=_summary(runs, groups, tidy),
        differences=pd.DataFrame([row for group in groups for row in _differences(group, tidy)], columns=_DIFFERENCE),
        sensitivity=_table(_sensitivity(tidy), _SENSITIVITY, question),
        edges=_table(edges, ["over", "best"], question),
        winner=choices[0].winner if len(groups) == 1 and choices else "",
        statements=[],
    )
    return dataclasses.replace(found, statements=statements(found, choices, tidy.seeds))


def _check(runs: pd.DataFrame, question: Question) -> None:
    if runs.empty:
        raise StudyError(question.title, "there are no runs to compare")
    known = list(dict.fromkeys(runs["variant"]))
    if question.baseline not in known:
        raise StudyError(
            question.title, f"baseline: no run of {question.baseline!r}{nearest(question.baseline, known)}"
        )
    for factor in question.within:
        if factor not in question.factors:
            raise StudyError(question.title, f"within: {factor}: no such factor{nearest(factor, question.factors)}")
    for factor, labels in question.factors.items():
        for label in sorted(set(runs[factor]) - set(labels)):
            known_labels = f"expected {' or '.join(labels)}{nearest(label, labels)}"
            raise StudyError(question.title, f"{factor}: {label}: {known_labels}")
    if (twice := runs.duplicated(["variant", "seed"])).any():
        first = runs[twice].sort_values(["variant", "seed"]).iloc[0]
        raise StudyError(
            question.title, f"variant {first['variant']}: two runs with seed {first['seed']}: expected one"
        )


def _tidied(runs: pd.DataFrame, question: Question, resamples: int, seed: int) -> _Runs:
    diverged = runs["diverged_at"].notna() | np.isinf(runs["value"])
    runs = runs.assign(value=runs["value"].where(~diverged), diverged=diverged)
    capped = runs[["value", "start"]].min(axis=1)
    runs["capped"] = capped.where(runs["value"].notna() | diverged)  # a run that is missing says nothing
    places = {factor: {label: i for i, label in enumerate(labels)} for factor, labels in question.factors.items()}
    variants = runs[list(dict.fromkeys(["variant", *question.factors]))].drop_duplicates().to_dict("records")
    variants.sort(key=lambda row: ([places[factor][row[factor]] for factor in question.factors], row["variant"]))
    values, caps = (runs.pivot(index="seed", columns="variant", values=name) for name in ("value", "capped"))
    gone = runs.groupby("variant")["diverged"].sum()
    rows = []
    for variant in variants:
        value_S, count = values[variant["variant"]], int(gone[variant["variant"]])
        n = int(value_S.notna().sum())
        counts = {"n": n, "mean": value_S.mean(), "diverged": count, "missing": len(values) - n - count}
        rows.append({str(key): level for key, level in variant.items()} | counts)
    names = [row["variant"] for row in rows]
    value_of, cap_of = ({name: table[name].to_numpy(dtype=float) for name in names} for table in (values, caps))
    return _Runs(question, list(values.index), rows, value_of, cap_of, resamples, seed)


def _split(variants: Sequence[Row], factors: Sequence[str]) -> Iterator[tuple[dict[str, str], list[Row]]]:
    """The variants that have the same levels of these factors, with these levels."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in variants:
        groups.setdefault(tuple(row[factor] for factor in factors), []).append(row)
    return ((dict(zip(factors, levels, strict=True)), group) for levels, group in groups.items())


def _summary(runs: pd.DataFrame, groups: Sequence[Sequence[Row]], tidy: _Runs) -> pd.DataFrame:
    """Table `variants` of `Comparison`."""
    table = pd.DataFrame([row for group in groups for row in _ranked(group, tidy)]).set_index("variant", drop=False)
    table = table.loc[[row["variant"] for row in tidy.variants]]
    values = pd.DataFrame(tidy.values)
    _, table["std"], table["low"], table["high"] = spreads(values.to_numpy())
    table["median"] = values.median()
    to_target = runs.groupby("variant")[["steps_to_target", "seconds_to_target"]]
    table = table.join(to_target.median())
    table["reached"] = to_target.count()["steps_to_target"]
    factors = list(dict.fromkeys(["variant", *tidy.question.factors]))
    return table[[*factors, *_SUMMARY]].reset_index(drop=True)


_SUMMARY = ["n", "mean", "std", "low", "high", "median", "diverged", "missing"]
_SUMMARY += ["steps_to_target", "seconds_to_target", "reached", "rank", "rank_low", "rank_high"]


def _ranked(group: Sequence[Row], tidy: _Runs) -> Iterator[Row]:
    """The variants of a group with `rank`, `rank_low`, `rank_high`."""
    sign = _sign(tidy.question)
    sound = [row for row in group if _is_sound(row)]
    gone = sum(row["diverged"] > 0 for row in group)
    values_SV = np.array([tidy.values[row["variant"]] for row in sound]).reshape(-1, len(tidy.seeds)).T
    shared_SV = values_SV[~np.isnan(values_SV).any(axis=1)]
    lows, highs = np.full((2, len(sound)), math.nan)
    if len(shared_SV) > 1 and sound:
        lows, highs = rank_intervals(sign * shared_SV, tidy.resamples, tidy.seed)
    bounds = {row["variant"]: (low, high) for row, low, high in zip(sound, lows, highs, strict=True)}
    for row in group:
        if _is_sound(row):
            rank = 1.0 + sum(sign * other["mean"] < sign * row["mean"] for other in sound)
            low, high = bounds[row["variant"]]  # of the seeds that all share, the mean of all seeds of the variant
            yield row | {"rank": rank, "rank_low": np.minimum(low, rank), "rank_high": np.maximum(high, rank)}
        else:
            last = len(sound) + 1.0 if row["diverged"] else math.nan
            yield row | {"rank": last, "rank_low": last, "rank_high": last + gone - 1}


def _is_sound(row: Row) -> bool:
    """Whether a variant has a mean that no divergence makes look better."""
    return row["n"] > 0 and not row["diverged"]


def _best(group: Sequence[Row], question: Question) -> Row | None:
    """The variant with the best mean among the sound ones, the first of equals."""
    sound = [row for row in group if _is_sound(row)]
    return min(sound, key=lambda row: _sign(question) * row["mean"], default=None)


def _sign(question: Question) -> int:
    """1 where low values are better, else -1: values times this are better the lower they are."""
    return 1 if question.direction == "lower" else -1


_DIFFERENCE = ["variant", "baseline", "n", "difference", "low", "high", "p", "p_holm", "effect", "verdict", "reason"]


def _differences(group: Sequence[Row], tidy: _Runs) -> list[Row]:
    """Rows of table `differences` of `Comparison`, of one group."""
    others = [factor for factor in tidy.question.factors if factor not in tidy.question.within]
    first = next(row for row in tidy.variants if row["variant"] == tidy.question.baseline)
    untuned = [factor for factor in others if factor not in tidy.question.tuned]
    like = [row for row in group if all(row[factor] == first[factor] for factor in untuned)]
    if len(like) > 1:  # every level was run; else the one chosen for this group
        like = [row for row in like if all(row[factor] == first[factor] for factor in others)]
    return _against(like[0] if like else None, group, tidy)


def _against(baseline: Row | None, group: Sequence[Row], tidy: _Runs) -> list[Row]:
    """A row for each other variant of the group; they are one family."""
    rows = [_difference(row, baseline, tidy) for row in group if row is not baseline]
    adjusted = holm(np.array([row["p"] for row in rows], dtype=float))
    for row, p_holm in zip(rows, adjusted, strict=True):
        row["p_holm"] = p_holm
        row["verdict"] = "cannot be said" if row["reason"] else "not told apart"
        if not row["reason"] and p_holm <= LEVEL and not row["low"] <= 0 <= row["high"]:
            row["verdict"] = "better" if _sign(tidy.question) * row["difference"] < 0 else "worse"
    return rows


def _difference(variant: Row, baseline: Row | None, tidy: _Runs) -> Row:
    name = variant["variant"]
    if baseline is None:
        unknown = dict.fromkeys(("difference", "low", "high", "p", "effect"), math.nan)
        return {
            "variant": name,
            "baseline": "",
            "n": 0,
            "reason": "no variant of its group has the baseline's levels",
        } | unknown
    d_S = tidy.values[name] - tidy.values[baseline["variant"]]
    d_S = d_S[~np.isnan(d_S)]
    low, high = mean_interval(d_S, tidy.resamples, tidy.seed)
    return {
        "variant": name,
        "baseline": baseline["variant"],
        "n": len(d_S),
        "difference": d_S.mean() if len(d_S) else math.nan,
        "low": low,
        "high": high,
        "p": sign_flip_p(d_S, tidy.resamples, tidy.seed),
        "effect": d_S.mean() / d_S.std(ddof=1) if len(d_S) > 1 and not all_equal(d_S) else math.nan,
        "reason": _reason(variant, baseline, len(tidy.seeds)),
    }


def _reason(variant: Row, baseline: Row, seeds: int) -> str:
    """Why it cannot be said whether two variants differ, '' where it can."""
    reasons = [
        f"{row[what]} of {seeds} runs{whose} {verb}"
        for what, verb in (("diverged", "diverged"), ("missing", "are missing"))
        for whose, row in (("", variant), (f" of {baseline['variant']}", baseline))
        if row[what]
    ]
    if seeds < FEWEST:
        reasons.append(f"{counted(seeds, 'seed')}, and {FEWEST} are needed")
    return "; ".join(reasons)


def _edges(tidy: _Runs) -> list[Row]:
    """Rows of table `edges` of `Comparison`."""
    rows: list[Row] = []
    for over in tidy.question.factors:
        others = [factor for factor in tidy.question.factors if factor != over]
        for levels, group in _split(tidy.variants, others):
            best, edge = _best_level(over, group, tidy.question)
            rows += [{**levels, "over": over, "best": best}] if edge else []
    return rows


def _best_level(over: str, group: Sequence[Row], question: Question) -> tuple[str, bool]:
    """The level of a numeric factor with the best mean ('' without one), and whether it is at the edge of the grid.

    Where the runs are of the level alone that tuning chose, the grid is that of the tuning: all levels with a number.
    """
    numbers = question.numbers.get(over, {})
    numeric = [row for row in group if row[over] in numbers]
    best = numeric[0] if len(numeric) == 1 else _best(numeric, question)
    if best is None:
        return "", False
    grid = sorted(numbers.values() if over in question.tuned else {numbers[row[over]] for row in numeric})
    enough = len(grid) >= _FEWEST_LEVELS or best["variant"] in question.at_edge
    return best[over], enough and numbers[best[over]] in (grid[0], grid[-1])


_SENSITIVITY = ["over", "n", "value", "low", "high", "best", "edge"]


def _sensitivity(tidy: _Runs) -> list[Row]:
    """Rows of table `sensitivity` of `Comparison`."""
    question, rows = tidy.question, []
    for over in [factor for factor in question.factors if factor in RATES and question.direction == "lower"]:
        others = [factor for factor in question.factors if factor != over]
        for levels, group in _split(tidy.variants, others):
            numeric = [row["variant"] for row in group if row[over] in question.numbers.get(over, {})]
            if len(numeric) < _FEWEST_LEVELS:
                continue
            losses_LS = np.array([tidy.capped[name] for name in numeric])
            above_S = losses_LS.mean(axis=0) - losses_LS.min(axis=0)
            above_S = above_S[~np.isnan(above_S)]
            low, high = mean_interval(above_S, tidy.resamples, tidy.seed)
            best, edge = _best_level(over, group, question)
            measured = {
                "n": len(above_S),
                "value": above_S.mean() if len(above_S) else math.nan,
                "low": low,
                "high": high,
            }
            rows.append({**levels, "over": over, **measured, "best": best, "edge": edge})
    return rows


def _table(rows: Sequence[Row], columns: Sequence[str], question: Question) -> pd.DataFrame:
    """The rows with the factors that they have first; '' where a row is over this factor."""
    factors = [factor for factor in question.factors if any(factor in row for row in rows)]
    return pd.DataFrame([dict.fromkeys(factors, "") | row for row in rows], columns=[*factors, *columns])


def _choice(group: Sequence[Row], edges: Sequence[Row], tidy: _Runs) -> Choice:
    """The best variant of a group, and what forbids to call it the winner."""
    question = tidy.question
    where = {factor: group[0][factor] for factor in question.within}
    best = _best(group, question)
    if best is None:
        return Choice(where, "", math.nan, ["no variant has a mean without runs that diverged or are missing"])
    rows = _against(best, group, tidy)
    against = []
    if same := [row["variant"] for row in rows if row["verdict"] == "not told apart"]:
        against.append(f"it is not told apart from {listed(same, _MOST)}")
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        names = [row["variant"] for row in rows if row["reason"] == reason]
        against.append(f"it cannot be compared with {listed(names, _MOST)} ({reason})")
    for edge in edges:
        over, levels = edge["over"], levels_of(edge, question)
        if over in question.within:
            continue
        own = best[over] == edge["best"] and levels.items() <= best.items()
        rival = over in question.tuned and where.items() <= levels.items()
        if own or rival:
            against.append(f"the best {over}{of_levels(levels)}, {edge['best']}, is at the edge of its grid")
    if unequal_budgets(question):
        against.append("the budgets of tuning are unequal")
    if tuned_where_reported(question, tidy.seeds):
        against.append(f"{listed(question.tuned)} was tuned on the seeds that are reported")
    return Choice(where, best["variant"], best["mean"], against)
