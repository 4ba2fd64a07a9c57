"""Records as rows: of one run as they are, of several their means and what is known of these."""

from __future__ import annotations

import pytest
from scipy import stats

from stages.training.history import rows_of
from stages.training.records import Divergence, Update, Validation


def updates(losses: list[float]) -> list[Update]:
    return [Update(t, (t + 2) // 3, t / 100, loss, 10 * loss) for t, loss in enumerate(losses, start=1)]


def test_one_run_is_written_as_it_was() -> None:
    assert rows_of([updates([2.0, 1.5])]) == [
        {"step": 1, "epoch": 1, "lr": 0.01, "loss": 2.0, "grad_norm": 20.0},
        {"step": 2, "epoch": 1, "lr": 0.02, "loss": 1.5, "grad_norm": 15.0},
    ]
    measured = [Validation(0, 0, "valid", 2.5, None, 0.25)]
    assert rows_of([measured]) == [
        {"step": 0, "epoch": 0, "split": "valid", "loss": 2.5, "perplexity": None, "accuracy": 0.25}
    ]
    assert rows_of([[]]) == []


def test_of_several_runs_the_mean_with_its_interval() -> None:
    losses = [[2.0, 1.5], [2.2, 1.0], [1.8, 1.4]]
    rows = rows_of([updates(one) for one in losses])
    assert [list(row) for row in rows] == [
        ["step", "epoch", "lr", "loss", "loss_std", "loss_low", "loss_high", "grad_norm", "replicas"]
    ] * 2
    for k, row in enumerate(rows):
        values = [one[k] for one in losses]
        low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
        assert (row["step"], row["epoch"], row["lr"], row["replicas"]) == (k + 1, 1, (k + 1) / 100, 3)
        assert row["loss"] == pytest.approx(sum(values) / 3)
        assert row["grad_norm"] == pytest.approx(10 * sum(values) / 3)
        assert row["loss_std"] == pytest.approx(stats.tstd(values))
        assert (row["loss_low"], row["loss_high"]) == pytest.approx((low, high))


def test_one_that_diverged_counts_as_far_as_it_got() -> None:
    rows = rows_of([updates([2.0, 9.0]), updates([2.2, 1.0, 0.5, 0.4]), updates([1.8, 1.4, 0.7, 0.6])])
    assert [row["replicas"] for row in rows] == [3, 3, 2, 2]
    assert [row["loss"] for row in rows] == pytest.approx([2.0, 11.4 / 3, 0.6, 0.5])
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


def test_where_a_single_one_is_left_nothing_is_known_of_the_mean() -> None:
    rows = rows_of([updates([2.0]), updates([2.2, 1.0])])
    assert rows[1] == {
        "step": 2,
        "epoch": 1,
        "lr": 0.02,
        "loss": 1.0,
        "loss_std": None,
        "loss_low": None,
        "loss_high": None,
        "grad_norm": 10.0,
        "replicas": 1,
    }


def test_a_perplexity_beyond_a_float_is_left_out_of_the_mean() -> None:
    measured = [[Validation(0, 0, "train", 1000.0, None, 0.5)], [Validation(0, 0, "train", 1.0, 2.75, 0.25)]]
    (row,) = rows_of(measured)
    assert (row["loss"], row["perplexity"], row["accuracy"], row["split"]) == (500.5, 2.75, 0.375, "train")
    (row,) = rows_of([measured[0], measured[0]])
    assert row["perplexity"] is None


def test_runs_that_got_nowhere_have_no_rows() -> None:
    assert rows_of([[], []]) == []
    assert [row["replicas"] for row in rows_of([[], updates([1.0])])] == [1]


def test_a_divergence_says_what_to_do() -> None:
    divergence = Divergence(7, 2, 0.0123456, "loss inf")
    assert str(divergence) == (
        "diverged at update 7: loss inf is not finite, at rate 0.0123; "
        "lower factor, lr or decay, raise warmup, or set clip"
    )
