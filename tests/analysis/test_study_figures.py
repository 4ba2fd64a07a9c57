"""The pictures of a comparison show its numbers, and what diverged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from stages.analysis import study_figures, style
from stages.analysis.study_axes import MAX_LINES, shortened
from stages.analysis.study_figures import (
    against_figure,
    curves_figure,
    differences_figure,
    rates_figure,
)
from stages.analysis.study_grids import heatmap_figure, parallel_figure, profile_figure
from tests.analysis.made_up import Made, corpora, made, optimizers, rates_and_ramps, warm_ups
from tests.analysis.test_figures import words_of
from tests.analysis.test_fonts import WORDS

POST_NONE = "block=post, warmup=none"


def listed(names: list[str], **changes: Any) -> Made:
    """Variants without factors, the first one best and the baseline."""
    variants = {name: {"variant": name} for name in names}
    order = {name: 2.0 + 0.1 * number for number, name in enumerate(names)}
    return made(variants, lambda levels: order[levels["variant"]], **{"baseline": names[0], **changes})


def all_of(one: Made) -> dict[str, Figure]:
    return dict(study_figures.figures(one.comparison, one.runs, one.curves, one.rates))


def row(one: Made, name: str) -> pd.Series:
    table = one.comparison.variants
    return table[table["variant"] == name].iloc[0]


def crosses(axes: Axes) -> list[tuple[float, float]]:
    marks = [line for line in axes.lines if line.get_marker() == "x"]
    return [(float(x), float(y)) for line in marks for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def lines_with(axes: Axes, points: int) -> list[Line2D]:
    return [line for line in axes.lines if len(line.get_xdata()) == points]


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]


def curves(one: Made) -> Figure:
    return curves_figure(one.curves, one.comparison.variants, one.comparison.question)


def against(one: Made, factor: str = "warmup") -> Figure:
    return against_figure(one.comparison.variants, one.comparison.question, factor)


def heatmap(one: Made) -> Figure:
    return heatmap_figure(one.comparison.variants, one.comparison.question, "warmup", "lr")


@pytest.mark.parametrize(
    ("study", "names"),
    [
        (warm_ups, ["curves", "against-warmup", "differences", "parallel", "rates"]),
        (rates_and_ramps, ["curves", "against-warmup", "against-lr", "heatmap", "differences", "parallel", "rates"]),
        (corpora, ["curves", "against-warmup", "differences", "parallel", "rates", "profile"]),
        (lambda: listed(["a", "b"]), ["curves", "differences", "rates"]),
    ],
)
def test_a_study_has_the_pictures_that_its_factors_allow(study: Callable[[], Made], names: list[str]) -> None:
    assert list(all_of(study())) == names


def test_a_curve_is_the_mean_of_the_seeds_with_its_interval() -> None:
    one = listed(["a", "b"])
    (axes,) = curves(one).axes
    own = one.curves[one.curves["variant"] == "b"].pivot(index="step", columns="seed", values="loss")
    assert axes.lines[1].get_ydata() == pytest.approx(own.mean(axis=1).to_numpy())
    half = 2.7764 * own.std(axis=1).iloc[-1] / 5**0.5  # Student's t with 4 degrees of freedom
    top = axes.collections[1].get_paths()[0].vertices
    assert top[top[:, 0] == 300][:, 1].max() == pytest.approx(own.mean(axis=1).iloc[-1] + half, abs=1e-4)


def test_a_seed_that_diverged_ends_in_a_cross_and_is_counted() -> None:
    one = warm_ups()
    figure = curves(one)
    lost = one.curves[(one.curves["variant"] == POST_NONE) & (one.curves["seed"] == 2)]
    assert crosses(figure.axes[0]) == [(90.0, pytest.approx(lost["loss"].iloc[-1]))]
    assert f"{POST_NONE} (1 diverged)" in legend_of(figure)
    assert sum("diverged" in text for text in legend_of(figure)) == 2
    assert crosses(curves(warm_ups(gone={})).axes[0]) == []


def test_a_variant_of_which_every_seed_diverged_has_all_its_crosses() -> None:
    one = listed(["a", "b"], gone={("b", seed): 61 + 30 * (seed == 4) for seed in range(5)})
    assert [x for x, _ in crosses(curves(one).axes[0])] == [60.0, 60.0, 60.0, 60.0, 90.0]


def test_more_variants_than_can_be_read_have_a_panel_a_level() -> None:
    figure = curves(optimizers())
    assert titles(figure) == ["warmup=10", "warmup=100", "warmup=1000"]
    assert [len(axes.lines) for axes in figure.axes] == [8, 8, 8]
    assert legend_of(figure)[:2] == ["optimizer=adam, lr=0.001", "optimizer=adam, lr=0.003"]
    adam, _, radam, _ = figure.axes[0].lines[:4]
    assert adam.get_color() != radam.get_color()
    assert [line.get_linestyle() for line in figure.axes[0].lines[:2]] == ["-", "--"]


def test_what_comparisons_keep_fixed_has_the_panels() -> None:
    assert titles(curves(optimizers(within=("optimizer",))))[0] == "optimizer=adam"


def test_of_too_many_listed_variants_the_best_are_coloured_and_the_others_counted() -> None:
    names = [f"v{i:02}" for i in range(14)]
    figure = curves(listed(names, baseline="v13"))
    grey = [line for line in figure.axes[0].lines if to_hex(line.get_color()) == "#c4c4c4"]
    assert len(figure.axes[0].lines) == 14
    assert len(grey) == 14 - MAX_LINES - 1  # the baseline is shown besides the best
    assert legend_of(figure)[:-1] == [*names[:MAX_LINES], "v13", "3 others"]


def test_the_end_against_a_factor_has_means_and_intervals() -> None:
    one = rates_and_ramps()
    axes = against(one, "lr").axes[0]
    assert axes.get_xscale() == "log"
    (first, *_) = lines_with(axes, 4)
    rows = [row(one, f"lr={lr}, warmup=10") for lr in ("0.0003", "0.001", "0.003", "0.01")]
    assert first.get_ydata() == pytest.approx([one["mean"] for one in rows])
    bars = [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()]
    assert bars == [pytest.approx([one["low"], one["high"]]) for one in rows]
    assert first.get_xdata() == pytest.approx([0.0003, 0.001, 0.003, 0.01], rel=0.1)


def test_a_level_without_a_number_is_at_the_left_behind_a_break() -> None:
    axes = against(warm_ups()).axes[0]
    places = axes.xaxis.get_majorticklocs()
    assert [axes.xaxis.get_major_formatter()(place, 0) for place in places] == ["none", "10", "100", "200"]
    assert places[0] < places[1] / 2
    joined = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert [line.get_xdata().min() > 9 for line in joined] == [True, True]
    (middle,) = [line.get_xdata()[0] for line in axes.lines if to_hex(line.get_color()) == "#d8d8d8"]
    assert places[0] < middle < places[1]


def test_diverged_seeds_are_counted_at_their_level_and_the_mean_of_the_others_is_hollow() -> None:
    figure = against(warm_ups())
    assert [text.get_text() for text in figure.axes[0].texts] == ["1/5"]
    assert len(crosses(figure.axes[0])) == 1
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [line.get_ydata()[0] for line in hollow] == [pytest.approx(row(warm_ups(), POST_NONE)["mean"])]
    assert "mean of the other seeds" in legend_of(figure)
    assert "mean of the other seeds" not in legend_of(against(rates_and_ramps()))


def test_a_heatmap_writes_its_values_in_the_order_of_the_numbers() -> None:
    one = rates_and_ramps()
    axes = heatmap(one).axes[0]
    cells = {(round(text.get_position()[0]), round(text.get_position()[1])): text.get_text() for text in axes.texts}
    assert len(cells) == 12
    assert cells[0, 3] == f"{row(one, 'lr=0.01, warmup=10')['mean']:.3f}"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0.0003", "0.001", "0.003", "0.01"]


def frames(axes: Axes) -> list[Rectangle]:
    return [
        patch for patch in axes.patches if isinstance(patch, Rectangle) and to_hex(patch.get_edgecolor()) == "#d55e00"
    ]


@pytest.mark.parametrize(("direction", "inside"), [("lower", 3), ("higher", 0)])
def test_the_best_cell_is_framed_and_one_at_the_edge_is_told(direction: str, inside: int) -> None:
    figure = heatmap(rates_and_ramps(direction=direction))
    (frame,) = frames(figure.axes[0])
    assert round(frame.get_y() + 0.47) == inside  # the highest rate has the lowest loss
    assert any("best at the edge of lr" in text for text in legend_of(figure))
    dashed = [patch for patch in figure.axes[0].patches if patch.get_linestyle() == "--"]
    assert [patch.get_bbox().bounds for patch in dashed] == [(0.5, 0.5, 1.0, 2.0)]


def test_a_best_cell_inside_of_the_grid_has_no_such_words() -> None:
    assert not any("best at the edge" in text for text in legend_of(heatmap(optimizers())))


def test_cells_say_what_diverged_and_what_is_missing() -> None:
    one = rates_and_ramps(gone={("lr=0.01, warmup=10", seed): 9 for seed in range(5)} | {("lr=0.01, warmup=200", 1): 9})
    table = one.comparison.variants
    one = one._replace(comparison=replace(one.comparison, variants=table[table["variant"] != "lr=0.001, warmup=10"]))
    words = {text.get_text() for text in heatmap(one).axes[0].texts}
    assert "–\n5/5 diverged" in words
    assert "no run" in words
    assert f"{row(one, 'lr=0.01, warmup=200')['mean']:.3f}\n1/5 diverged" in words


def test_differences_have_their_interval_and_verdict() -> None:
    one = rates_and_ramps()
    axes = differences_figure(one.comparison.differences, one.comparison.question).axes[0]
    table = one.comparison.differences
    bars = [bar.get_segments()[0][:, 0].tolist() for bar in axes.collections]
    assert bars == [pytest.approx([low, high]) for low, high in zip(table["low"], table["high"], strict=True)]
    colors = {"better": style.BLUE, "worse": style.ORANGE, "not told apart": style.GREY}
    dots = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_color() for line in dots] == [colors[verdict] for verdict in table["verdict"]]
    assert {"better", "worse", "not told apart"} <= set(table["verdict"])
    assert all(text.get_text().endswith(verdict) for text, verdict in zip(axes.texts, table["verdict"], strict=True))
    assert axes.get_xlabel().endswith("left of 0 is better")


def test_what_cannot_be_said_is_hollow() -> None:
    one = warm_ups()
    axes = differences_figure(one.comparison.differences, one.comparison.question).axes[0]
    dots = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_markerfacecolor() == "white" for line in dots] == [True, *[False] * 5]


def test_differences_to_several_baselines_stand_below_their_names() -> None:
    one = warm_ups()
    axes = differences_figure(one.comparison.differences, one.comparison.question).axes[0]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names[:2] == ["against block=post, warmup=100", POST_NONE]
    assert len(names) == 8
    assert len(axes.texts) == 6


def test_of_very_many_differences_the_figure_says_how_many_it_shows() -> None:
    one = listed([f"v{i}" for i in range(80)], seeds=2)
    figure = differences_figure(one.comparison.differences, one.comparison.question)
    assert any("first 60 of 79" in text for text in words_of(figure))
    assert len(figure.axes[0].get_yticklabels()) == 60


def test_parallel_coordinates_lead_each_variant_to_its_value() -> None:
    one = rates_and_ramps()
    axes = parallel_figure(one.comparison.variants, one.comparison.question).axes[0]
    drawn = lines_with(axes, 81)
    means = one.comparison.variants["mean"]
    heights = (means - means.min()) / (means.max() - means.min())
    assert sorted(line.get_ydata()[-1] for line in drawn) == pytest.approx(sorted(heights))
    best = min(drawn, key=lambda line: line.get_ydata()[-1])
    assert best.get_ydata()[0] == pytest.approx(1, abs=0.04)  # the highest of the rates
    assert sum(best.get_color()[:3]) < sum(max(drawn, key=lambda line: line.get_ydata()[-1]).get_color()[:3])


def test_variants_that_diverged_end_in_a_cross_above_all_values() -> None:
    gone = {("lr=0.01, warmup=10", seed): 9 for seed in range(5)}
    one = rates_and_ramps(gone=gone)
    figure = parallel_figure(one.comparison.variants, one.comparison.question)
    assert crosses(figure.axes[0]) == [(2.0, 1.08)]
    assert legend_of(figure) == ["a seed or more diverged, or no value"]


def test_variants_with_the_same_rates_share_a_line() -> None:
    one = warm_ups()
    figure = rates_figure(one.rates, one.comparison.variants, one.comparison.question)
    assert legend_of(figure) == ["warmup=none", "warmup=10", "warmup=100", "warmup=200"]
    assert len(figure.axes[0].lines) == 4
    own = one.rates[one.rates["variant"] == "block=pre, warmup=200"]
    assert list(figure.axes[0].lines[3].get_ydata()) == list(own["lr"])


def test_listed_variants_with_the_same_rates_are_counted() -> None:
    one = listed(["a", "b", "c"])
    figure = rates_figure(one.rates, one.comparison.variants, one.comparison.question)
    assert legend_of(figure) == ["a and 2 more"]


def test_rates_far_apart_have_a_logarithmic_axis() -> None:
    for one, scale in ((rates_and_ramps(), "log"), (warm_ups(), "linear")):
        figure = rates_figure(one.rates, one.comparison.variants, one.comparison.question)
        assert figure.axes[0].get_yscale() == scale


def test_the_profile_says_on_how_many_corpora_a_variant_is_near_the_best() -> None:
    one = corpora()
    exact = {
        ("100", "a"): 2.0,
        ("100", "b"): 2.2,
        ("100", "c"): 2.0,
        ("10", "a"): 4.0,
        ("10", "b"): 2.0,
        ("10", "c"): 3.0,
    }
    values = [exact[pair] for pair in zip(one.runs["warmup"], one.runs["corpus"], strict=True)]
    figure = profile_figure(one.runs.assign(value=values), one.comparison.question)
    assert legend_of(figure) == ["warmup=10", "warmup=100"]
    ten, hundred = figure.axes[0].lines
    assert list(hundred.get_xdata()[1:4]) == pytest.approx([1, 1, 1.1])
    assert list(hundred.get_ydata()[1:]) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert list(ten.get_xdata()[1:4]) == pytest.approx([1, 1.5, 2])


def test_a_variant_that_diverged_on_a_corpus_never_reaches_all() -> None:
    one = corpora(gone={("warmup=100, corpus=c", 3): 30})
    lines = profile_figure(one.runs, one.comparison.question).axes[0].lines
    assert [line.get_ydata()[-1] for line in lines] == [1.0, pytest.approx(2 / 3)]


def test_long_names_are_cut_and_stay_apart() -> None:
    names = ["x" * 80 + str(i) for i in range(3)]
    short = shortened(names, 20)
    assert len(set(short.values())) == 3
    assert max(map(len, short.values())) <= 20


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(lambda: listed(["a"]), id="one variant"),
        pytest.param(lambda: listed([*WORDS.values(), "$x_1$ <b>", "long " * 40, "long " * 40 + "2"]), id="names"),
        pytest.param(lambda: warm_ups(seeds=1), id="one seed"),
        pytest.param(lambda: optimizers(direction="higher", metric="valid.accuracy"), id="higher"),
        pytest.param(
            lambda: listed(["a", "b"], gone={(name, seed): 1 for name in "ab" for seed in range(5)}), id="all diverged"
        ),
        pytest.param(
            lambda: rates_and_ramps(
                gone={(f"lr={lr}, warmup={ramp}", seed): 0 for lr in ("0.0003", "0.001", "0.003", "0.01")
                      for ramp in ("10", "100", "200") for seed in range(5)}
            ),
            id="grid without a value",
        ),
    ],
)  # fmt: skip
def test_whatever_came_out_can_be_drawn(one: Callable[[], Made]) -> None:
    drawn = style.all_rendered(all_of(one()).items())
    assert drawn
    assert all(kinds["png"].startswith(b"\x89PNG") for kinds in drawn.values())
    assert np.all([len(kinds["svg"]) > 1000 for kinds in drawn.values()])
