"""What a study file expects, held against what came out."""

from __future__ import annotations

import math

import pandas as pd

from stages.analysis.question import Comparison, Expectation
from stages.studies.plan import Plan
from stages.studies.spec import Expected, Selector


def check(plan: Plan, comparison: Comparison, runs: pd.DataFrame) -> list[Expectation]:
    """Each expectation of a study: held, not held, or not to be checked and why."""
    return [_check(one, plan, comparison, runs) for one in plan.study.expectations]


def _check(one: Expected, plan: Plan, comparison: Comparison, runs: pd.DataFrame) -> Expectation:
    text = f"{one.says}: {_rule(one)}"
    if one.measure == "sensitivity":
        found, remark = _sensitivities(one, comparison)
    else:
        found, remark = _measured(one, plan, runs)
    if found is None or not math.isfinite(found):
        return Expectation(text, None, None, remark or "no run has a value")
    value = abs(found) if one.absolute else found
    return Expectation(text, float(value), _holds(one, value), remark)


def _holds(one: Expected, value: float) -> bool:
    return (
        (one.at_least is None or value >= one.at_least)
        and (one.at_most is None or value <= one.at_most)
        and (one.above is None or value > one.above)
        and (one.below is None or value < one.below)
    )


def _rule(one: Expected) -> str:
    what = {"diverged": "number of diverged runs", "sensitivity": "sensitivity"}.get(one.measure, one.measure)
    what = f"{what} difference" if one.minus is not None else what
    what = f"|{what}|" if one.absolute else what
    bounds = {"≥": one.at_least, "≤": one.at_most, ">": one.above, "<": one.below}
    return what + " and".join(f" {sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)


def _measured(one: Expected, plan: Plan, runs: pd.DataFrame) -> tuple[float | None, str]:
    first = _values(one.of, plan, runs)
    if first is None:
        return None, f"there is no run of {_shown(one.of)}"
    if one.measure == "diverged":
        return float(first["diverged_at"].notna().sum()), f"of {len(first)} runs"
    values = first["value"]
    if one.minus is not None:
        second = _values(one.minus, plan, runs)
        if second is None:
            return None, f"there is no run of {_shown(one.minus)}"
        values = values - second["value"]
    if missing := int(values.isna().sum()):
        # What the others say is what survivors say: a mean without the runs that diverged is too good.
        return None, f"{missing} of {len(values)} seeds have no value: they diverged, or have no run"
    over = {"mean": values.mean, "median": values.median, "lowest": values.min, "highest": values.max}[one.measure]
    return float(over()), f"{len(values)} seeds"


def _values(selector: Selector, plan: Plan, runs: pd.DataFrame) -> pd.DataFrame | None:
    """The runs of the one variant that is meant, by seed; with tuning, the one that was chosen."""
    names = [one.name for one in plan.matching(selector)]
    found = runs[runs["variant"].isin(names)]
    return None if found.empty else found.set_index("seed")[["value", "diverged_at"]].sort_index()


def _sensitivities(one: Expected, comparison: Comparison) -> tuple[float | None, str]:
    first = _sensitivity(one.of, comparison)
    second = _sensitivity(one.minus, comparison) if one.minus is not None else 0.0
    if first is None or second is None:
        return None, "there is no such grid of rates"
    return first - second, f"{first:.3g}" + (f" against {second:.3g}" if one.minus is not None else "")


def _sensitivity(selector: Selector, comparison: Comparison) -> float | None:
    table = comparison.sensitivity
    for factor, label in selector.items():
        if factor not in table.columns:
            return None
        table = table[table[factor] == label]
    return float(table["value"].iloc[0]) if len(table) == 1 else None


def _shown(selector: Selector) -> str:
    return ", ".join(f"{factor}={label}" for factor, label in selector.items())
