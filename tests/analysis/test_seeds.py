"""The figure of several replicas shows each of them, their mean, and which diverged."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from stages.analysis import seeds, style
from stages.analysis.outcome import measure
from stages.analysis.spread import spreads
from tests.analysis.test_figures import words_of


def drawn(finals: list[float | None], diverged: dict[int, int], first: int = 0, points: int = 5) -> Figure:
    """Replicas whose measurements fall from 10 by their number plus 1; those that diverged have two of them."""
    rows, losses = [], np.full((len(finals), points), np.nan)
    for i in range(len(finals)):
        count = 2 if i in diverged else points
        losses[i, :count] = 10 - (i + 1) * np.arange(count) / points
        rows += [(first + i, 90 * k, losses[i, k]) for k in range(count)]
    mean, std, low, high = spreads(losses)
    counts = (~np.isnan(losses)).sum(axis=0)
    table = {"step": 90 * np.arange(points), "split": "train", "loss": mean, "loss_std": std, "replicas": counts}
    ends = [(first + i, loss, diverged.get(i)) for i, loss in enumerate(finals)]
    return seeds.replicas_figure(
        pd.DataFrame(rows, columns=["seed", "step", "loss"]),
        pd.DataFrame({**table, "loss_low": low, "loss_high": high}),
        pd.DataFrame(ends, columns=["seed", "loss", "diverged_at"]),
        measure([{"train": {"loss": loss}} for loss in finals], "train", "loss"),
        text="training text",
    )


def lines(axes: Axes, color: str, marker: str = "None") -> list[Line2D]:
    return [line for line in axes.lines if line.get_color() == color and line.get_marker() == marker]


def crosses(axes: Axes) -> list[tuple[float, float]]:
    found = [line for line in axes.lines if line.get_marker() == "x"]
    return [(float(x), float(y)) for line in found for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_each_seed_has_a_thin_curve_and_the_mean_a_strong_one_with_its_band() -> None:
    left = drawn([1.0, 2.0, 3.0], {}).axes[0]
    thin = lines(left, style.BLUE)
    assert [line.get_ydata()[-1] for line in thin] == pytest.approx([9.2, 8.4, 7.6])
    (mean,) = lines(left, style.ORANGE, "o")
    assert mean.get_ydata()[-1] == pytest.approx(8.4)
    assert mean.get_linewidth() > 2 * thin[0].get_linewidth()
    (band,) = left.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(8.4 + 4.3027 * 0.8 / 3**0.5, abs=1e-4)


def test_each_seed_has_a_dot_and_their_mean_its_interval() -> None:
    figure = drawn([1.0, 2.0, 3.0], {}, first=40)
    right = figure.axes[1]
    (dots,) = lines(right, style.BLUE, "o")
    assert (list(dots.get_xdata()), list(dots.get_ydata())) == ([0, 1, 2], [1.0, 2.0, 3.0])
    (mean,) = lines(right, style.ORANGE)
    assert list(mean.get_ydata()) == [2.0, 2.0]
    (band,) = [patch for patch in right.patches if isinstance(patch, Rectangle)]
    assert (band.get_y(), band.get_height()) == pytest.approx((2 - 2.4841, 2 * 2.4841), abs=1e-4)  # t = 4.3027, n = 3
    assert "its mean: 2, 95% interval -0.4841 to 4.484" in words_of(figure)
    style.rendered(figure)
    assert [text.get_text() for text in right.get_xticklabels()] == ["40", "41", "42"]


def test_diverged_ones_are_crossed_and_listed() -> None:
    figure = drawn([1.0, None, 3.0, 5.0], {1: 100, 3: 1234})
    left, right = figure.axes
    assert [place for place, _ in crosses(left)] == [90, 90]  # where they were last measured
    assert {place for place, _ in crosses(right)} == {1, 3}
    (dots,) = lines(right, style.BLUE, "o")
    assert list(dots.get_xdata()) == [0, 2]
    listed = next(text for text in words_of(figure) if text.startswith("diverged"))
    assert listed.replace("\xa0", " ").replace("\n", " ") == (
        "diverged: seed 1 at update 100, seed 3 at update 1\u202f234"
    )
    assert "its mean over 3 of 4 seeds: 3, 95% interval -1.968 to 7.968" in words_of(figure)
    assert "mean of up to 4 seeds" in words_of(figure)
    assert not [text for text in words_of(drawn([1.0, 2.0], {})) if "diverged" in text]


def test_none_of_them_is_finite() -> None:
    figure = drawn([None, None], {0: 1, 1: 1}, points=2)
    assert "none is finite" in words_of(figure)
    assert not [text for text in words_of(figure) if text.startswith("its mean")]
    assert style.rendered(figure)["svg"]


def test_a_final_loss_may_not_be_finite_without_a_divergence() -> None:
    figure = drawn([1.0, None], {})
    assert "not finite" in words_of(figure)
    assert [place for place, _ in crosses(figure.axes[1])] == [1]


def test_a_thousand_replicas_of_long_runs_stay_a_small_picture() -> None:
    gone = dict.fromkeys(range(20), 7)
    figure = drawn([None if i in gone else 1.0 + i % 7 for i in range(1000)], gone, first=2**32 - 1000, points=400)
    left, right = figure.axes
    thin = lines(left, style.BLUE)
    assert len(thin) == seeds.MAX_CURVES
    assert max(len(line.get_xdata()) for line in thin) <= seeds.MAX_CURVE_POINTS
    assert "each of the first 100 seeds" in words_of(figure)
    assert any(text.endswith("and\xa014\xa0more") for text in words_of(figure))
    assert len(style.rendered(figure)["svg"]) < 2_000_000
    assert [text.get_text() for text in right.get_xticklabels()] == ["4294966296", "4294967295"]


def test_no_measurements_are_no_obstacle() -> None:
    curves, mean = pd.DataFrame(columns=["seed", "step", "loss"]), pd.DataFrame(columns=["step", "loss"], dtype=float)
    finals = pd.DataFrame([(0, 1.0, None), (1, 2.0, None)], columns=["seed", "loss", "diverged_at"])
    over = measure([{"train": {"loss": 1.0}}, {"train": {"loss": 2.0}}], "train", "loss")
    assert style.rendered(seeds.replicas_figure(curves, mean, finals, over, text="training text"))["svg"]
