"""The sentences of a comparison: which kind, which names, which numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stages.analysis.comparison import compare
from stages.analysis.words import listed
from tests.analysis.test_comparison import GONE, grid, three, with_a_winner
from tests.analysis.test_comparison import asked_of as asked_of_grid
from tests.analysis.test_false_positives import question_of, runs_of


def said(values: Mapping[str, Sequence[float]], kind: str, **more: Any) -> list[str]:
    return texts(runs_of(values), question_of(list(values), **more), kind)


def texts(runs: pd.DataFrame, question: Any, kind: str) -> list[str]:
    return [one.text for one in compare(runs, question, resamples=999).statements if one.kind == kind]


def test_a_real_difference_has_its_numbers() -> None:
    values = {"a": [3.0] * 8, "b": [2.5, 2.6, 2.55, 2.45, 2.5, 2.6, 2.55, 2.45], "c": [3.5, 3.7] * 4}
    real = said(values, "real", metric="truth.excess")
    assert (
        real[0]
        == "The winner is b (mean truth.excess 2.525 nats/token): its difference to every other variant is real."
    )
    assert real[1].startswith("b is better than a in truth.excess: -0.475 nats/token, 95% interval -0.5")
    assert real[1].endswith(" (8 pairs, p 0.0156 after Holm's correction for 2 comparisons, effect -7.95).")
    assert real[2].startswith("c is worse than a in truth.excess: +0.6 nats/token, 95% interval 0.525 to 0.6")


def test_one_comparison_needs_no_correction_and_shares_have_no_unit() -> None:
    values = {"a": [0.5] * 6, "b": [0.6, 0.7, 0.65, 0.6, 0.7, 0.65]}
    _, text = said(values, "real", metric="valid.accuracy", direction="higher")
    assert text.startswith("b is better than a in valid.accuracy: +0.15, 95% interval 0.1")
    assert text.endswith(" (6 pairs, p 0.0312, effect 3.35).")


def test_what_is_not_told_apart_is_one_sentence_with_what_could_have_been_found() -> None:
    base = np.linspace(2, 3, 10)
    values = {"a": base, "b": base + 0.1 * (-1.0) ** np.arange(10), "c": base + 0.2 * (-1.0) ** np.arange(10)}
    (text,) = said(values, "not real")
    assert text.startswith("Not told apart from a (valid.loss in nats/token; p after Holm's correction): b ")
    assert "; c " in text
    assert text.endswith(", p 1).")
    (note,) = said(values, "note")
    assert note == (
        "With 10 seeds and 2 comparisons a difference of 1.2 standard deviations of the paired differences would have "
        "been found in 80 of 100 studies."
    )
    (note,) = said({name: values[name] for name in "ab"}, "note")
    assert note.startswith("With 10 seeds and 1 comparison a difference of 1 standard deviations")


def test_too_few_seeds_for_any_p() -> None:
    base = np.linspace(2, 3, 8)
    values = {"a": base} | {f"b{i}": base + i + 0.01 * base for i in range(1, 10)}
    first, text = said(values, "cannot be said")
    assert text.startswith(
        "With 8 seeds and 9 comparisons the smallest possible p is 0.0703: no difference from a can be called real, "
        "however large; 9 seeds could show one. Measured (valid.loss in nats/token; p after Holm's correction): b1 +1.0"
    )
    assert first == (
        "No winner is named: a has the best mean (valid.loss 2.5 nats/token), but it is not told apart from "
        "b1, b2, b3 and 6 more."
    )
    assert said(values, "note") == said(values, "real") == []


def test_what_cannot_be_said_is_grouped_by_its_reason() -> None:
    values = three() | {"d": [GONE, *three()["a"][1:]], "e": [*three()["a"][1:], GONE], "f": three()["a"][:7]}
    unsaid = said(values, "cannot be said")
    assert "It cannot be said whether d, e differ from a: 1 of 8 runs diverged." in unsaid
    assert "It cannot be said whether f differs from a: 1 of 8 runs are missing." in unsaid
    notes = said(values, "note")
    assert "Runs that diverged: d 1 of 8, e 1 of 8." in notes
    assert "Runs that are missing or failed: f 1 of 8." in notes
    few = said({"a": [1.0, 2.0], "b": [2.0, 3.0]}, "cannot be said")
    assert few[1:] == ["It cannot be said whether b differs from a: 2 seeds, and 5 are needed."]


def test_where_all_runs_diverged_that_is_said_as_a_count() -> None:
    values = three() | {"d": [GONE] * 8}
    assert "All 8 runs of d diverged, none of the 8 of a did: there is no difference to give." in said(
        values, "cannot be said"
    )
    both = said(values | {"a": [GONE] * 8}, "cannot be said")
    assert any(text.startswith("It cannot be said whether b, c differ from a: 8 of 8 runs of a") for text in both)
    assert not [text for text in both if text.startswith("All")]
    none = said({"a": [GONE] * 5, "b": [GONE] * 5}, "cannot be said")
    assert none[0].startswith("No winner is named: no variant has a mean")


def test_no_winner_and_every_reason() -> None:
    runs, asked = with_a_winner()
    runs = runs.assign(lr=runs["lr"].mask(runs["variant"] == "sgd", "0.1"))
    asked.trials["adam"] = 12
    unsaid = texts(runs, _with(asked, tuning_seeds=[0]), "cannot be said")
    assert unsaid == [
        "No winner is named: sgd has the best mean (valid.loss 2.991 nats/token), but the best lr of optimizer=sgd, "
        "0.1, is at the edge of its grid; the budgets of tuning are unequal; lr was tuned on the seeds that are "
        "reported.",
        "The best lr for optimizer=sgd is 0.1, at the edge of the grid: a better one may lie beyond.",
        "Tuning spent unequal budgets (adam 12 runs, sgd 6 runs, muon 6 runs): who was tuned more may look better for "
        "that alone.",
        "lr was tuned, and some of its seeds are reported too: what was chosen looks better than on fresh seeds.",
    ]
    no_seeds = texts(runs, _with(asked, tuning_seeds=()), "cannot be said")
    assert no_seeds[-1].startswith("lr was tuned, and no seeds were kept for that: ")


def _with(asked: Any, **more: Any) -> Any:
    return type(asked)(**{**vars(asked), **more})


def test_edges_with_the_same_level_are_one_sentence() -> None:
    losses = {("pre", "0"): [3.0, 2.0, 2.0, 2.0, 1.0], ("post", "0"): [3.0, 2.0, 2.0, 2.0, 1.5]}
    runs = grid(losses, seeds=5)
    groups = "norm=pre, warmup=0; norm=post, warmup=0"
    text = f"The best lr for {groups} is 0.03, at the edge of the grid: a better one may lie beyond."
    assert text in texts(runs, asked_of_grid(runs), "cannot be said")


def test_sensitivities_are_in_order() -> None:
    losses = {("pre", "0"): [3.0, 2.0, 1.0, 2.0, 3.0], ("post", "0"): [3.0, 2.0, 1.5, 2.0, 3.0]}
    runs = grid(losses, seeds=1)
    assert texts(runs, asked_of_grid(runs), "note") == [
        "Sensitivity to lr in nats/token, the least first: norm=post, warmup=0 0.8 (no interval, 1 seed); "
        "norm=pre, warmup=0 1.2 (no interval, 1 seed)."
    ]
    gone = grid({("pre", "0"): [3.0, GONE, 1.0, 2.0, 3.0]}, start=math.nan)
    assert "Sensitivity to lr is not known for norm=pre, warmup=0: no seed has all levels." in texts(
        gone, asked_of_grid(gone), "cannot be said"
    )


def test_steps_and_seconds_to_the_target() -> None:
    runs = runs_of(three())
    runs.loc[runs["variant"] == "b", "steps_to_target"] = [12_000, 12_500, *[math.nan] * 6]
    runs.loc[runs["variant"] == "a", "steps_to_target"] = 900
    runs.loc[runs["variant"] == "a", "seconds_to_target"] = 1.23456
    notes = texts(runs, question_of(["a", "b", "c"], target=2.6), "note")
    assert notes[-3:] == [
        "Updates to a loss of 2.6, the median over the seeds that reached it (how many): a 900 (8 of 8); "
        "b 12\u202f250 (2 of 8).",
        "Seconds to a loss of 2.6, the median over the seeds that reached it (how many): a 1.235 (8 of 8).",
        "A loss of 2.6 was reached with no seed by c.",
    ]
    assert not [text for text in texts(runs, question_of(["a", "b", "c"]), "note") if "loss of" in text]


def test_the_most_important_comes_first() -> None:
    found = compare(runs_of(three() | {"d": [GONE] * 8}), question_of(["a", "b", "c", "d"]), resamples=999)
    assert [one.kind for one in found.statements] == [
        "cannot be said",  # no winner
        "real",
        "not real",
        "cannot be said",
        "note",
        "note",
    ]


def test_names_with_commas_are_listed_with_semicolons() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(["lr=1, w=2", "b"]) == "lr=1, w=2; b"
    assert listed("abcd", 2) == "a, b and 2 more"
    assert listed("abcd", 4) == "a, b, c, d"
