"""Runs that somebody made by hand → variants to compare: those that differ in a parameter, whatever their seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stages.analysis.question import Direction, Question
from stages.errors import StudyError, nearest
from stages.params import WITHOUT_EFFECT, EvaluateParams, Params, PlotsParams
from stages.studies.collect import Tables
from stages.studies.spec import label_of

# What says how results are shown or measured; runs that differ in these alone are the same.
_SHOWN = (EvaluateParams.model_fields.keys() | PlotsParams.model_fields.keys()) - {
    "corpus",
    "grammar_depth",
    "numerics",
}
IGNORED = frozenset({"seed", "snapshots", *WITHOUT_EFFECT, *_SHOWN})
_WHERE = "command line"


@dataclass(frozen=True)
class Made:
    """Runs with the same parameters: an experiment of DVC, or a run in MLflow.

    Attributes:
        name: of the experiment or run.
        params: by name, as text.
        origin: what `tables` can read it from: a commit, or the id of a run.
    """

    name: str
    params: dict[str, str]
    origin: str


def plain(params: Mapping[str, str]) -> dict[str, str]:
    """Parameters as labels, however they are spelled: MLflow has 0.0010 and True as somebody's program wrote them."""
    found: dict[str, str] = {}
    for key, text in params.items():
        try:
            value = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            value = text
        found |= as_text({key: value})
    return found


def as_text(params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as labels; lists and the like as JSON."""
    found: dict[str, str] = {}
    for key, value in params.items():
        try:
            found[key] = label_of(value)
        except ValueError:
            found[key] = json.dumps(value, ensure_ascii=False)
    return found


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`warmup=400` → {'warmup': '400'}, several with commas in one text as well.

    Raises:
        StudyError: no such parameter, or no value.
    """
    found = {}
    for pair in (part.strip() for text in texts for part in text.split(",")):
        key, sign, value = (part.strip() for part in pair.partition("="))
        if not sign:
            raise StudyError(_WHERE, f"{option} {pair!r}: expected KEY=VALUE")
        found[_known(key, option)] = value
    return found


def parse_keys(texts: Iterable[str]) -> list[str]:
    """Names of parameters, several with commas in one text as well.

    Raises:
        StudyError: no such parameter.
    """
    return [_known(key.strip(), "--group") for text in texts for key in text.split(",")]


def _known(key: str, option: str) -> str:
    if key not in Params.model_fields:
        raise StudyError(_WHERE, f"{option} {key}: no such parameter{nearest(key, Params.model_fields)}")
    return key


def chosen(made: Sequence[Made], where: Mapping[str, str]) -> list[Made]:
    """Those with these values.

    Raises:
        StudyError: none.
    """
    found = [one for one in made if all(_same(one.params.get(key, ""), value) for key, value in where.items())]
    if not found:
        conditions = ", ".join(f"{key}={value}" for key, value in where.items())
        raise StudyError(_WHERE, f"no run{f' with {conditions}' if conditions else ''} among {len(made)}")
    return found


def factors_of(made: Sequence[Made], group: Sequence[str]) -> list[str]:
    """The parameters whose values make the variants: `group`, or all in which the runs differ.

    Raises:
        StudyError: with `group`, the runs differ in something else that matters; or they do not differ.
    """
    keys = dict.fromkeys(key for one in made for key in one.params if key not in IGNORED)
    values = {key: list(dict.fromkeys(one.params.get(key, "") for one in made)) for key in keys}
    differing = {key: found for key, found in values.items() if len(found) > 1}
    others = {key: found for key, found in differing.items() if key not in group}
    if group and others:
        listed = "; ".join(f"{key} ({', '.join(found[:4])}{', …' * (len(found) > 4)})" for key, found in others.items())
        raise StudyError(
            _WHERE,
            f"the runs differ in more than {', '.join(group)}: {listed}; "
            "choose with --where KEY=VALUE, or add to --group",
        )
    if not differing:
        raise StudyError(_WHERE, f"{len(made)} run(s) that differ in nothing that matters but their seeds")
    return list(group) or list(differing)


def name_of(one: Made, factors: Sequence[str]) -> str:
    """The variant that a run is of."""
    return ", ".join(f"{factor}={one.params.get(factor, '')}" for factor in factors)


def merged(tables: Sequence[Tables]) -> tuple[Tables, int]:
    """One set of tables, and the number of runs left out since a later one has the same variant and seed.

    Args:
        tables: the earlier runs first.
    """
    runs = pd.concat([one.runs for one in tables], ignore_index=True)
    kept = runs.drop_duplicates(["variant", "seed"], keep="last")
    curves = _of_the_last([one.curves for one in tables], ["variant", "seed"])
    rates = _of_the_last([one.rates for one in tables], ["variant"])
    return Tables(kept.reset_index(drop=True), curves, rates), len(runs) - len(kept)


def _of_the_last(tables: Sequence[pd.DataFrame], keys: list[str]) -> pd.DataFrame:
    """All rows, of these keys those of the last table that has them: two curves are not mixed."""
    whole = pd.concat([table.assign(_table=i) for i, table in enumerate(tables)], ignore_index=True)
    last = whole.groupby(keys)["_table"].transform("max")
    return whole[whole["_table"] == last].drop(columns="_table").reset_index(drop=True)


def question_by_hand(
    made: Sequence[Made],
    factors: Sequence[str],
    baseline: Mapping[str, str],
    metric: str,
    direction: Direction,
    target: float | None,
) -> Question:
    """What is asked of them.

    Raises:
        StudyError: the baseline is none of the variants, or several.
    """
    variants = {name_of(one, factors): {factor: one.params.get(factor, "") for factor in factors} for one in made}
    fitting = [
        name
        for name, levels in variants.items()
        if all(_same(levels.get(key, value), value) for key, value in baseline.items())
    ]
    unknown = sorted(baseline.keys() - set(factors))
    if unknown or (baseline and len(fitting) != 1):
        shown = ", ".join(f"{key}={value}" for key, value in baseline.items())
        raise StudyError(_WHERE, f"--baseline {shown}: expected one of {'; '.join(variants)}")
    labels = {factor: _ordered(levels[factor] for levels in variants.values()) for factor in factors}
    return Question(
        title="comparison",
        metric=metric,
        direction=direction,
        baseline=fitting[0] if baseline else next(iter(variants)),
        factors=labels,
        target=target,
        numbers={factor: _numbers(found) for factor, found in labels.items()},
    )


def _ordered(labels: Iterable[str]) -> list[str]:
    distinct = list(dict.fromkeys(labels))
    numbers = _numbers(distinct)
    return sorted(distinct, key=lambda label: (label in numbers, numbers.get(label, 0.0)))


def _numbers(labels: Iterable[str]) -> dict[str, float]:
    found = {}
    for label in labels:
        try:
            found[label] = float(label)
        except ValueError:
            continue
    return found


def _same(one: str, other: str) -> bool:
    """The same value in whatever spelling: 400 and 4e2."""
    return plain({"": one}) == plain({"": other})
