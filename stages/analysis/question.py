"""What a comparison of runs asks, and the tables that it is answered from and with.

Tables, one row each:

    runs         a run of a variant with one seed: `variant`, `seed`, `value` (of the metric at the end; NaN where the
                 run diverged or failed), `start` (the metric before the first update where it is a loss or an excess,
                 or NaN), `diverged_at` (update, or NaN), `steps_to_target`, `seconds_to_target` (NaN where it was not
                 reached or is not known), and a column for each factor with the label of its level (text)
    curves       a measurement without dropout: `variant`, `seed`, `step`, `loss`
    rates        the learning rate of an update: `variant`, `step`, `lr`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

Direction = Literal["lower", "higher"]
Verdict = Literal["better", "worse", "not told apart", "cannot be said", "baseline"]


@dataclass(frozen=True)
class Expectation:
    """What somebody expected of a study, and what came out.

    Attributes:
        text: in words, such as 'post-norm without a ramp stays at the unigram: mean ≥ 3.2'.
        found: the measured number; None where there is none.
        held: True, False, or None where it could not be checked.
        remark: why it could not be checked, or what was measured.
    """

    text: str
    found: float | None
    held: bool | None
    remark: str = ""


@dataclass(frozen=True)
class Question:
    """What is compared, and how.

    Attributes:
        title: name of the study, or words for a comparison made by hand.
        text: the question in a sentence, or ''.
        metric: such as 'valid.loss' or 'truth.excess'.
        direction: which values of the metric are better.
        baseline: name of the variant that the others are compared with; with `within`, of one of them.
        factors: labels of the levels of each factor, in order; a listed variant has the factor 'variant' alone.
        within: factors that every comparison keeps fixed: the variants with the same levels of these are a group of
            their own, with the variant as its baseline that has the baseline's levels of all other factors.
        target: loss that counts for steps and seconds to the target, or None.
        tuned: factors that were tuned: of their levels one was chosen in each group of the others, on `tuning_seeds`.
        tuning_seeds: seeds of the tuning; () where nothing was tuned apart from the report.
        trials: runs that tuning spent on each level of the other factors, by its label: equal budgets, equal numbers.
        at_edge: variants whose tuned level is the first or the last of the grid that was tried.
        numbers: value of a level on a numeric axis, by factor and label, where it has one.
        command: that makes all this anew, or ''.
    """

    title: str
    metric: str
    direction: Direction
    baseline: str
    factors: Mapping[str, Sequence[str]]
    text: str = ""
    within: Sequence[str] = ()
    target: float | None = None
    tuned: Sequence[str] = ()
    tuning_seeds: Sequence[int] = ()
    trials: Mapping[str, int] = field(default_factory=dict)
    at_edge: Sequence[str] = ()
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True)
class Statement:
    """A sentence of the report, and what kind it is of."""

    kind: Literal["real", "not real", "cannot be said", "note"]
    text: str


@dataclass(frozen=True)
class Comparison:
    """The answer.

    Attributes:
        question: that was asked.
        variants: one row a variant, in the order of `Question.factors`: `variant`, factors, `n` (seeds with a value),
            `mean`, `std`, `low`, `high` (95% interval of the mean), `median`, `diverged`, `missing` (seeds without a
            run), `steps_to_target`, `seconds_to_target` (medians over the seeds that reached it), `reached`, `rank` (of
            the mean, 1 is best), `rank_low`, `rank_high` (95% interval of the rank).
        differences: one row a variant that is compared with a baseline: `variant`, `baseline`, `n` (pairs),
            `difference` (variant minus baseline, mean over the seeds of both), `low`, `high` (95% BCa interval), `p`
            (paired permutation), `p_holm`, `effect` (mean over deviation of the differences), `verdict` (a `Verdict`),
            `reason`, in words, of 'cannot be said'.
        sensitivity: one row a group of variants that differ in the rate alone: the other factors, `over` (name of the
            factor), `n` (seeds), `value`, `low`, `high` (95% interval), `best` (label of the level with the best
            mean), `edge` (bool: it is the first or the last of the grid).
        edges: one row a group whose best level of a numeric factor lies at the edge of the grid: the other factors,
            `over`, `best`.
        winner: name of the variant that is better than every other; '' where the rules forbid to name one.
        statements: in words, the most important first.
        expectations: what was expected, and whether it held.
    """

    question: Question
    variants: pd.DataFrame
    differences: pd.DataFrame
    sensitivity: pd.DataFrame
    edges: pd.DataFrame
    winner: str
    statements: list[Statement]
    expectations: list[Expectation] = field(default_factory=list)
