"""What a study file expects, held against numbers that are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stages.analysis.comparison import compare
from stages.analysis.question import Expectation
from stages.studies.expectations import check
from stages.studies.plan import question_of
from tests.studies.small import plan, runs_of

FAST, SLOW = {"warmup": 10, "loss": "notebook"}, {"warmup": 40, "loss": "notebook"}
VALUES: dict[str, list[float | None]] = {
    "warmup=10, loss=notebook": [1.0, 2.0, 6.0],
    "warmup=40, loss=notebook": [2.0, 2.5, 3.0],
    "warmup=40, loss=cross_entropy": [1.0, None, None],
}


def checked(folder: Path, runs: pd.DataFrame | None = None, **expected: Any) -> Expectation:
    one = {"says": "so it is", "of": FAST} | expected
    small = plan(folder, expectations=[one], baseline=FAST)
    table = runs_of(small, VALUES) if runs is None else runs
    (found,) = check(small, compare(table, question_of(small, "")), table)
    return found


@pytest.mark.parametrize(
    ("expected", "value", "rule", "held"),
    [
        ({"at_least": 3}, 3.0, "mean ≥ 3", True),
        ({"above": 3}, 3.0, "mean > 3", False),
        ({"at_most": 3}, 3.0, "mean ≤ 3", True),
        ({"below": 3}, 3.0, "mean < 3", False),
        ({"above": 2.9, "below": 2.95}, 3.0, "mean > 2.9 and < 2.95", False),
        ({"measure": "median", "at_most": 2}, 2.0, "median ≤ 2", True),
        ({"measure": "lowest", "at_most": 1}, 1.0, "lowest ≤ 1", True),
        ({"measure": "highest", "below": 6}, 6.0, "highest < 6", False),
        ({"minus": SLOW, "above": 0}, 0.5, "mean difference > 0", True),  # of -1, -0.5, 3
        ({"minus": SLOW, "measure": "median", "above": 0}, -0.5, "median difference > 0", False),
        ({"minus": SLOW, "measure": "lowest", "absolute": True, "at_least": 1}, 1.0, "|lowest difference| ≥ 1", True),
        ({"measure": "diverged", "at_most": 0}, 0.0, "number of diverged runs ≤ 0", True),
    ],
)
def test_a_number_against_its_bounds(
    tmp_path: Path, expected: dict[str, Any], value: float, rule: str, held: bool
) -> None:
    found = checked(tmp_path, **expected)
    assert found.found == pytest.approx(value)
    assert (found.text, found.held) == (f"so it is: {rule}", held)


def test_those_that_are_left_are_no_proof(tmp_path: Path) -> None:
    half = {"of": {"warmup": 40, "loss": "cross_entropy"}}
    why = "2 of 3 seeds have no value: they diverged, or have no run"
    found = checked(tmp_path, **half, at_most=2)
    assert (found.found, found.held, found.remark) == (None, None, why)
    assert checked(tmp_path, minus=half["of"], above=-99).remark == why
    counted = checked(tmp_path, **half, measure="diverged", at_least=2)
    assert (counted.found, counted.held, counted.remark) == (2.0, True, "of 3 runs")


def test_what_has_not_run_is_not_held(tmp_path: Path) -> None:
    found = checked(tmp_path, of={"warmup": 10, "loss": "cross_entropy"}, at_least=0)
    assert (found.held, found.remark) == (None, "there is no run of warmup=10, loss=cross_entropy")


def test_seeds_are_paired_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    runs = runs_of(plan(tmp_path), VALUES).sample(frac=1, random_state=1)
    assert checked(tmp_path, runs, minus=SLOW, measure="highest", at_least=0).found == pytest.approx(3.0)


def test_a_sensitivity(tmp_path: Path) -> None:
    """Mean over the rates of min(loss, loss at the start) minus the best loss, of Wortsman et al. 2023."""
    of = {"block": "pre"}
    small = plan(
        tmp_path,
        seeds="10-11",
        base={"schedule": "constant"},
        factors={"block": ["pre", "post"], "lr": [0.1, 0.01, 0.001]},
        baseline={"block": "pre", "lr": 0.1},
        expectations=[
            {"says": "a", "of": of, "measure": "sensitivity", "at_most": 0.7},
            {"says": "b", "of": of, "minus": {"block": "post"}, "measure": "sensitivity", "below": 0},
        ],
    )
    values: dict[str, list[float | None]] = {
        "block=pre, lr=0.1": [9.0, 3.0],  # counts as 3, the loss at the start
        "block=pre, lr=0.01": [1.0, 1.0],
        "block=pre, lr=0.001": [1.0, 1.0],
        "block=post, lr=0.1": [1.0, 1.0],
        "block=post, lr=0.01": [1.0, 1.0],
        "block=post, lr=0.001": [1.3, 1.3],
    }
    runs = runs_of(small, values)
    comparison = compare(runs, question_of(small, ""))
    first, second = check(small, comparison, runs)
    assert first.found == pytest.approx(2 / 3)
    assert (first.held, first.text) == (True, "a: sensitivity ≤ 0.7")
    assert second.found == pytest.approx(2 / 3 - 0.1)
    assert second.held is False
    empty = dataclasses.replace(comparison, sensitivity=comparison.sensitivity.head(0))
    assert check(small, empty, runs)[0] == Expectation(
        "a: sensitivity ≤ 0.7", None, None, "there is no such grid of rates"
    )
