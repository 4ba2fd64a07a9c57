"""A comparison in sentences: what is real, what is not, and what cannot be said.

Sentences name variants as they are called, and give numbers with four significant digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stages.analysis.outcome import number
from stages.analysis.question import Comparison, Question, Statement
from stages.analysis.resampling import LEVEL, seeds_needed, smallest_effect, smallest_p

_ORDER = ("real", "not real", "cannot be said", "note")
_SHOWN = 4  # variants of a note whose numbers stand in a table as well
_POWER = 0.8  # that is told


@dataclass(frozen=True)
class Choice:
    """The best variant of a group.

    Attributes:
        where: levels of the factors that the group keeps fixed; empty where all variants are one group.
        best: its name; '' where no variant can be called so.
        mean: of the metric.
        against: what forbids to call it the winner, in words.
    """

    where: Mapping[str, str]
    best: str
    mean: float
    against: Sequence[str]

    @property
    def winner(self) -> str:
        """Name of the winner, '' where there is none."""
        return "" if self.against else self.best


def statements(found: Comparison, choices: Sequence[Choice], seeds: Iterable[int]) -> list[Statement]:
    """The sentences, the most important first.

    Args:
        found: the comparison; its own statements are not read.
        choices: of each group with more than one variant.
        seeds: of the runs that are compared.
    """
    told = [
        *_differences(found),
        *_counts(found),
        *_edges(found),
        *_tuning(found.question, seeds),
        *_sensitivity(found),
        *_targets(found),
    ]
    first = [_choice(choice, found) for choice in choices]
    return first + sorted(told, key=lambda one: _ORDER.index(one.kind))


def unequal_budgets(question: Question) -> bool:
    """Whether some levels were tuned with more runs than others."""
    return len(set(question.trials.values())) > 1


def tuned_where_reported(question: Question, seeds: Iterable[int]) -> bool:
    """Whether something was tuned on seeds that are reported too, or on no seeds of its own."""
    return bool(question.tuned) and (not question.tuning_seeds or not set(question.tuning_seeds).isdisjoint(seeds))


def levels_of(row: Mapping[Any, Any], question: Question) -> dict[str, str]:
    """The levels that a row of `sensitivity` or `edges` keeps fixed."""
    return {factor: row[factor] for factor in question.factors if factor != row["over"]}


def of_levels(levels: Mapping[str, str]) -> str:
    """` of norm=pre, warmup=100`, or nothing; a listed variant by its name."""
    return f" of {_levels(levels)}" if levels else ""


def listed(names: Iterable[Any], most: int | None = None) -> str:
    """Names or numbers in a row, with semicolons where one has a comma; beyond the first `most` only how many."""
    words = [str(name) for name in names]
    more = f" and {len(words) - most} more" if most is not None and len(words) > most else ""
    return ("; " if any("," in word for word in words) else ", ").join(words[:most]) + more


def counted(n: int, what: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{n} {what}{'s' * (n != 1)}"


def _levels(levels: Mapping[str, str]) -> str:
    return ", ".join(label if factor == "variant" else f"{factor}={label}" for factor, label in levels.items())


def _digits(value: float, sign: str = "") -> str:
    return number(round(value)) if abs(value) >= 1e4 else f"{value:{sign}.4g}"


def _unit(question: Question) -> str:
    return " nats/token" if question.metric.rpartition(".")[2] in ("loss", "excess") else ""


def _in(unit: str) -> str:
    return f" in {unit.strip()}" if unit else ""


def _interval(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["low"]):
        return "no interval"
    return f"95% interval {_digits(row['low'])} to {_digits(row['high'])}"


def _choice(choice: Choice, found: Comparison) -> Statement:
    place = f" where {_levels(choice.where)}" if choice.where else ""
    metric = found.question.metric
    if not choice.best:
        return Statement("cannot be said", f"No winner is named{place}: {'; '.join(choice.against)}.")
    mean = f"{metric} {_digits(choice.mean)}{_unit(found.question)}"
    if choice.against:
        reasons = "; ".join(choice.against)
        sound = " of those without diverged runs" if found.variants["diverged"].any() else ""
        best = f"{choice.best} has the best mean{sound} ({mean})"
        return Statement("cannot be said", f"No winner is named{place}: {best}, but {reasons}.")
    text = f"The winner{place} is {choice.best} (mean {mean}): its difference to every other variant is real."
    return Statement("real", text)


def _differences(found: Comparison) -> list[Statement]:
    told = []
    for baseline, family in found.differences.groupby("baseline", sort=False):
        told += _real(family, found.question)
        told += _not_real(str(baseline), family, found.question)
        told += _unsaid(str(baseline), family, found.variants)
    return told


def _real(family: pd.DataFrame, question: Question) -> list[Statement]:
    told = []
    after = f" after Holm's correction for {len(family)} comparisons" if len(family) > 1 else ""
    for row in family[family["verdict"].isin(["better", "worse"])].to_dict("records"):
        effect = "" if math.isnan(row["effect"]) else f", effect {row['effect']:.3g}"
        proof = f"{row['n']} pairs, p {row['p_holm']:.3g}{after}{effect}"
        differs = f"{row['variant']} is {row['verdict']} than {row['baseline']} in {question.metric}"
        by = f"{_digits(row['difference'], '+')}{_unit(question)}"
        told.append(Statement("real", f"{differs}: {by}, {_interval(row)} ({proof})."))
    return told


def _not_real(baseline: str, family: pd.DataFrame, question: Question) -> list[Statement]:
    """What was not told apart from the baseline, and what so many seeds could have shown."""
    rows = family[family["verdict"] == "not told apart"].to_dict("records")
    if not rows:
        return []
    what = f"{question.metric}{_in(_unit(question))}" + "; p after Holm's correction" * (len(family) > 1)
    measured = [
        f"{row['variant']} {_digits(row['difference'], '+')} ({_interval(row)}, p {row['p_holm']:.3g})" for row in rows
    ]
    n, comparisons = rows[0]["n"], len(family)  # every row has all seeds: no run is missing
    size = f"With {n} seeds and {counted(comparisons, 'comparison')}"
    if (least := smallest_p(n, comparisons)) > LEVEL:
        limit = (
            f"{size} the smallest possible p is {least:.3g}: no difference from {baseline} can be called real, however"
        )
        limit += f" large; {seeds_needed(comparisons)} seeds could show one."
        return [Statement("cannot be said", f"{limit} Measured ({what}): {'; '.join(measured)}.")]
    effect = f"{smallest_effect(n, comparisons, _POWER):.2g} standard deviations of the paired differences"
    return [
        Statement("not real", f"Not told apart from {baseline} ({what}): {'; '.join(measured)}."),
        Statement(
            "note", f"{size} a difference of {effect} would have been found in {100 * _POWER:.0f} of 100 studies."
        ),
    ]


def _unsaid(baseline: str, family: pd.DataFrame, variants: pd.DataFrame) -> list[Statement]:
    told = []
    counts = variants.set_index("variant")
    never = counts.index[(counts["diverged"] == 0) & (counts["missing"] == 0)]
    always = counts.index[(counts["diverged"] > 0) & (counts["n"] + counts["missing"] == 0)]
    for reason, rows in family[family["verdict"] == "cannot be said"].groupby("reason", sort=False):
        names = list(rows["variant"])
        gone = [name for name in names if name in always and baseline in never]
        if gone:
            runs = f"All {counted(int(counts['diverged'][gone[0]]), 'run')}{' each' * (len(gone) > 1)}"
            text = f"{runs} of {listed(gone)} diverged, none of the {counts['n'][baseline]} of {baseline} did"
            told.append(Statement("cannot be said", f"{text}: there is no difference to give."))
        if others := [name for name in names if name not in gone]:
            whom = f"{listed(others)} differ{'s' * (len(others) == 1)} from {baseline or 'a baseline'}"
            told.append(Statement("cannot be said", f"It cannot be said whether {whom}: {reason}."))
    return told


def _counts(found: Comparison) -> list[Statement]:
    """Runs that diverged, and that are missing."""
    told = []
    for column, text in (("diverged", "Runs that diverged"), ("missing", "Runs that are missing or failed")):
        rows = found.variants[found.variants[column] > 0]
        counts = [
            f"{row['variant']} {row[column]} of {row['n'] + row['diverged'] + row['missing']}"
            for row in rows.to_dict("records")
        ]
        told += [Statement("note", f"{text}: {listed(counts)}.")] if counts else []
    return told


def _edges(found: Comparison) -> list[Statement]:
    """The groups whose best level is at the edge, by the factor and that level."""
    told = []
    for (over, best), rows in found.edges.groupby(["over", "best"], sort=False):
        groups = [_levels(levels_of(row, found.question)) for row in rows.to_dict("records")]
        where = f" for {'; '.join(groups)}" if any(groups) else ""
        text = f"The best {over}{where} is {best}, at the edge of the grid: a better one may lie beyond."
        told.append(Statement("cannot be said", text))
    return told


def _tuning(question: Question, seeds: Iterable[int]) -> list[Statement]:
    told = []
    if unequal_budgets(question):
        runs = listed(f"{label} {counted(trials, 'run')}" for label, trials in question.trials.items())
        text = f"Tuning spent unequal budgets ({runs}): who was tuned more may look better for that alone."
        told.append(Statement("cannot be said", text))
    if tuned_where_reported(question, seeds):
        kept = "no seeds were kept for that" if not question.tuning_seeds else "some of its seeds are reported too"
        text = f"{listed(question.tuned)} was tuned, and {kept}: what was chosen looks better than on fresh seeds."
        told.append(Statement("cannot be said", text))
    return told


def _sensitivity(found: Comparison) -> list[Statement]:
    told = []
    for over, rows in found.sensitivity.groupby("over", sort=False):
        known = rows[rows["value"].notna()].sort_values("value", kind="stable").to_dict("records")
        values = [
            f"{_levels(levels_of(row, found.question)) or 'the grid'} {_digits(row['value'])} "
            f"({_interval(row)}, {counted(row['n'], 'seed')})"
            for row in known
        ]
        if values:
            text = f"Sensitivity to {over}{_in(_unit(found.question))}, the least first: "
            told.append(Statement("note", f"{text}{'; '.join(values)}."))
        if len(rows) > len(known):
            unknown = [_levels(levels_of(row, found.question)) for row in rows[rows["value"].isna()].to_dict("records")]
            text = (
                f"Sensitivity to {over} is not known{f' for {listed(unknown)}' * any(unknown)}: no seed has all levels."
            )
            told.append(Statement("cannot be said", text))
    return told


def _targets(found: Comparison) -> list[Statement]:
    """Steps and seconds to the target, the fastest first; of many variants the first alone: a table has all."""
    target = found.question.target
    if target is None:
        return []
    table, told = found.variants, []
    for column, what in (("steps_to_target", "Updates"), ("seconds_to_target", "Seconds")):
        rows = table[table[column].notna()].sort_values(column, kind="stable").to_dict("records")
        if rows:
            shown = [
                f"{row['variant']} {_digits(row[column])} "
                f"({row['reached']} of {row['n'] + row['diverged'] + row['missing']})"
                for row in rows
            ]
            text = f"{what} to a loss of {_digits(target)}, the median over the seeds that reached it (how many)"
            more = f"; and {len(shown) - _SHOWN} more, in the table" if len(shown) > _SHOWN else ""
            told.append(Statement("note", f"{text}: {'; '.join(shown[:_SHOWN])}{more}."))
    if len(never := table.loc[table["reached"] == 0, "variant"]):
        told.append(Statement("note", f"A loss of {_digits(target)} was reached with no seed by {listed(never)}."))
    return told
