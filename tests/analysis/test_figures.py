"""Curves and bars show the numbers they are given."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from stages.analysis import figures, style
from stages.analysis.axes import MAX_POINTS
from stages.optim.schedules import noam_rate
from tests.analysis.test_fonts import NO_FONT, WORDS


def history(updates: int, **columns: float) -> pd.DataFrame:
    step = np.arange(1, updates + 1)
    loss = 0.5 + 2.0 / np.sqrt(step) + 0.1 * (step % 7)
    table = pd.DataFrame({"step": step, "epoch": 1, "lr": step * 1e-6, "loss": loss, "grad_norm": 3 * loss})
    return table.assign(**columns)


def validation(losses: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(losses)), "split": "train", "loss": losses})


def replicas(counts: list[int]) -> dict[str, object]:
    """The columns that several replicas add: bounds 0.5 around a loss of 2, none where one is left."""
    alone = [count == 1 for count in counts]
    bounds = {
        f"loss_{name}": [None if one else value for one in alone] for name, value in (("low", 1.5), ("high", 2.5))
    }
    return {"loss": 2.0, **bounds, "replicas": counts}


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text)]


def glyphs(figure: Figure) -> set[str]:
    return set(re.findall(r'id="([^"]+-[0-9a-f]+)"', style.rendered(figure)["svg"].decode()))


def bars(*words: str) -> Figure:
    return figures.next_words_figure(pd.DataFrame({"word": words, "probability": 1 / len(words)}), prompt="[bos]")


def test_loss_has_the_floor_the_measurements_and_the_mean() -> None:
    table = history(500)
    figure = figures.loss_figure(table, validation([2.0, 1.0, 0.7]), validation_label="no dropout", floor=0.412)
    raw, smooth, measured, floor = only_axes(figure).lines
    assert list(raw.get_ydata()) == list(table["loss"])
    assert list(measured.get_ydata()) == [2.0, 1.0, 0.7]
    assert list(floor.get_ydata()) == [0.412, 0.412]
    inner = table["loss"].to_numpy()[245:255]
    assert smooth.get_ydata()[250] == pytest.approx(inner.mean())
    assert any("0.4120" in text for text in words_of(figure))


def test_loss_without_a_floor_has_no_line_for_it() -> None:
    figure = figures.loss_figure(history(500), validation([1.0]), validation_label="x")
    assert len(only_axes(figure).lines) == 3


def test_replicas_have_the_band_of_their_mean_and_say_how_many_they_are() -> None:
    table = validation([2.0] * 4).assign(**replicas([4, 4, 2, 1]))
    figure = figures.loss_figure(history(9).assign(replicas=4), table, validation_label="no dropout")
    (band,) = only_axes(figure).collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (1.5, 2.5)
    assert corners[:, 0].max() == 2  # of one replica alone there is no interval
    words = words_of(figure)
    assert "training, with dropout (mean of 4 seeds)" in words
    assert "no dropout (mean of up to 4 seeds)" in words
    assert "95% interval of that mean" in words
    assert style.rendered(figure)["svg"]


def test_a_single_measurement_has_its_interval_too() -> None:
    figure = figures.loss_figure(history(0), validation([2.0]).assign(**replicas([3])), validation_label="x")
    (band,) = only_axes(figure).collections
    assert band.get_segments()[0].tolist() == [[0, 1.5], [0, 2.5]]


def test_a_single_run_has_neither_band_nor_seeds() -> None:
    figure = figures.loss_figure(history(9), validation([2.0, 1.0]), validation_label="x")
    assert len(only_axes(figure).collections) == 0
    assert not [text for text in words_of(figure) if "seed" in text or "interval" in text]


def test_a_wide_band_leaves_the_picture_rather_than_flattening_the_curves() -> None:
    table = validation([2.0, 1.9]).assign(replicas=2, loss_low=-90.0, loss_high=900.0)
    axes = only_axes(figures.loss_figure(history(9, loss=2.0).assign(replicas=2), table, validation_label="x"))
    low, high = axes.get_ylim()
    assert 0 <= low < 1.9
    assert 2.5 < high < 6


@pytest.mark.parametrize(
    ("updates", "seeds", "said"),
    [
        ([1234], 1, "diverged at update 1\u202f234"),
        ([1234], 4, "1 of 4 seeds diverged, update 1\u202f234"),
        ([7, 5, 7], 4, "3 of 4 seeds diverged, updates 5 to 7"),
    ],
)
def test_the_update_at_which_a_run_diverged_is_marked(updates: list[int], seeds: int, said: str) -> None:
    table = validation([2.0, 1.0])
    if seeds > 1:
        table = table.assign(**replicas([seeds, seeds]))
    figure = figures.loss_figure(history(4), table, validation_label="x", diverged=updates)
    marks = [line for line in only_axes(figure).lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in marks] == sorted(set(updates))
    assert words_of(figure).count(said) == 1
    low, high = only_axes(figure).get_xlim()
    assert low < min(updates)
    assert max(updates) < high


def test_a_run_without_any_update_is_drawn() -> None:
    empty = history(0)
    loss = figures.loss_figure(empty, validation([9.0]), validation_label="x", floor=0.4, diverged=[1])
    assert list(loss.axes[0].lines[0].get_ydata()) == [9.0]
    assert "diverged at update 1" in words_of(loss)
    assert "training, with dropout" not in words_of(loss)
    for figure in (figures.rate_figure(empty), figures.gradient_norm_figure(empty)):
        assert "no update was made" in words_of(figure)
        assert style.rendered(figure)["svg"]
    nothing = figures.loss_figure(empty, validation([]), validation_label="x")
    assert style.rendered(nothing)["svg"]


@pytest.mark.parametrize("top", [5.0, 90.0, 3e3, 3e5, 9e5, 3e7, 4e12, 3e38])
def test_an_axis_has_ticks_however_far_a_loss_went(top: float) -> None:
    axes = only_axes(figures.loss_figure(history(5, loss=1.0), validation([top, 0.7]), validation_label="x"))
    low, high = axes.get_ylim()
    ticks = [place for place in axes.get_yticks() if low <= place <= high]
    assert 3 <= len(ticks) <= 20
    labels = axes.yaxis.get_major_formatter().format_ticks(ticks)
    assert len(set(labels)) == len(labels)
    assert all(len(label) <= 6 for label in labels)


@pytest.mark.parametrize("updates", [1, 2, 9, 26])
def test_updates_are_counted_in_whole_numbers(updates: int) -> None:
    figure = figures.gradient_norm_figure(history(updates))
    style.rendered(figure)
    shown = [text.get_text() for text in only_axes(figure).get_xticklabels()]
    assert shown
    assert all(re.fullmatch(r"−?-?[0-9]+", text) for text in shown)


@pytest.mark.parametrize(("losses", "scale"), [([2.0, 1.0], "linear"), ([90.0, 1.0], "log")])
def test_the_axis_is_logarithmic_where_values_span_magnitudes(losses: list[float], scale: str) -> None:
    figure = figures.loss_figure(history(5, loss=1.0), validation(losses), validation_label="x")
    assert only_axes(figure).get_yscale() == scale
    assert style.rendered(figure)["png"].startswith(b"\x89PNG")


def test_a_long_run_is_drawn_with_few_points_and_its_whole_range() -> None:
    table = history(50_000)
    table.loc[31_234, "grad_norm"] = 77.0
    axes = only_axes(figures.gradient_norm_figure(table))
    assert max(len(line.get_xdata()) for line in axes.lines) <= MAX_POINTS
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == 77.0
    assert axes.lines[0].get_xdata()[-1] == 50_000


@pytest.mark.parametrize("updates", [1, 2, 49, 3001])
def test_runs_of_any_length_are_drawn(updates: int) -> None:
    table = history(updates)
    for figure in (
        figures.loss_figure(table, validation([1.0]), validation_label="x"),
        figures.rate_figure(table),
        figures.gradient_norm_figure(table),
    ):
        assert only_axes(figure).lines
        assert style.rendered(figure)["svg"]


def test_missing_values_leave_gaps() -> None:
    figure = figures.gradient_norm_figure(history(3, grad_norm=math.nan))
    assert np.isnan(only_axes(figure).lines[0].get_ydata()).all()
    assert style.rendered(figure)["svg"]


def test_rates_are_scaled_as_their_label_says() -> None:
    axes = only_axes(figures.rate_figure(history(2700)))
    assert axes.get_ylabel() == "learning rate (×10⁻³)"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(2.7)


def test_noam_rates_peak_at_their_warmup() -> None:
    rows = [(warmup, step, noam_rate(step, 256, warmup)) for warmup in (40, 10) for step in range(1, 100)]
    axes = only_axes(figures.noam_rate_figure(pd.DataFrame(rows, columns=["warmup", "step", "rate"]), d_model=256))
    peaks = {line.get_label(): line.get_xdata()[np.argmax(line.get_ydata())] for line in axes.lines}
    assert peaks == {"10": 10, "40": 40}


def test_bars_hold_the_most_likely_words_in_order_with_their_probabilities() -> None:
    words = pd.DataFrame({"word": [f"w{i}" for i in range(40)], "probability": np.linspace(0.04, 0.0001, 40)})
    axes = only_axes(figures.next_words_figure(words, prompt="[bos]"))
    shown = [text.get_text() for text in axes.get_yticklabels()]
    assert shown == [f"w{i}" for i in range(figures.MAX_BARS)]
    assert [bar.get_width() for bar in axes.patches] == list(words["probability"][: figures.MAX_BARS])
    assert axes.texts[0].get_text() == "0.040"
    low, high = axes.get_ylim()
    assert low > high  # the first word on top


def test_a_model_without_finite_numbers_has_no_bars_and_says_so() -> None:
    figure = figures.next_words_figure(pd.DataFrame({"word": ["a", "b"], "probability": [None, None]}), prompt="[bos]")
    assert "the model's numbers are not finite" in words_of(figure)
    assert style.rendered(figure)["svg"]
    assert "the model's numbers are not finite" not in words_of(bars("a"))


def test_the_same_word_twice_gives_two_bars() -> None:
    assert [text.get_text() for text in only_axes(bars("a", "a", "b")).get_yticklabels()] == ["a", "a", "b"]


@pytest.mark.parametrize("word", ["$x_1$", "$x_", r"$\frac{1}{2}$", r"\alpha", "a_b^c", "<unk>", "&amp;", "_x", "%"])
def test_no_word_is_a_formula(word: str) -> None:
    figure = bars(word, "b")
    drawn = [text for text in figure.findobj(Text) if text.get_text() == word]
    assert drawn
    assert not any(text.get_parse_math() for text in drawn)
    assert style.rendered(figure)["svg"]


@pytest.mark.parametrize("word", [*WORDS.values(), NO_FONT], ids=[*WORDS, "no font"])
def test_every_script_is_drawn_without_a_missing_glyph(word: str) -> None:
    # a missing glyph is a warning of matplotlib, and warnings are errors here
    figure = figures.next_words_figure(pd.DataFrame({"word": [word], "probability": [1.0]}), prompt=f"[bos] {word}")
    assert glyphs(figure)


def test_arabic_letters_are_joined() -> None:
    assert not glyphs(bars("قطة")) <= glyphs(bars("ق", "ط", "ة"))


def test_hebrew_runs_from_right_to_left() -> None:
    def order(word: str) -> list[str]:
        svg = style.rendered(bars(word))["svg"].decode()
        _, _, after = svg.partition(f"<!-- {word} -->")
        return re.findall(r'href="#([^"]+)"', after.partition("</g>\n")[0])

    first, second = order("א")[0], order("ב")[0]
    assert order("אב")[:2] == [second, first]


def calibration(tokens: list[int], accuracy: list[float | None]) -> pd.DataFrame:
    """Bins of equal width, as sure as their middle."""
    edges = np.linspace(0, 1, len(tokens) + 1)
    confidence = [
        (low + high) / 2 if count else None for low, high, count in zip(edges, edges[1:], tokens, strict=False)
    ]
    table = {"low": edges[:-1], "high": edges[1:], "tokens": tokens, "confidence": confidence, "accuracy": accuracy}
    return pd.DataFrame(table)


def test_calibration_has_a_point_a_bin_and_its_error() -> None:
    figure = figures.calibration_figure(calibration([30, 0, 10], [0.0, None, 0.5]), text="test text")
    above, below = figure.axes
    points = next(line for line in above.lines if line.get_label() == "this model")
    assert points.get_xdata() == pytest.approx([1 / 6, math.nan, 5 / 6], nan_ok=True)
    assert points.get_ydata() == pytest.approx([0.0, math.nan, 0.5], nan_ok=True)
    assert below.patches[0].get_data().values == pytest.approx([0.75, 0, 0.25])
    assert "Calibration on the test text: error 20.8\xa0%" in words_of(figure)
    assert figure.get_size_inches().max() <= style.SLIDE[0]
    assert style.rendered(figure)["svg"]


def test_the_calibration_of_a_model_without_finite_numbers_says_so() -> None:
    figure = figures.calibration_figure(pd.DataFrame([]), text="test text")
    assert "the model's numbers are not finite" in words_of(figure)
    assert style.rendered(figure)["svg"]


def test_drawing_twice_gives_the_same_bytes() -> None:
    figure = figures.rate_figure(history(20))
    assert style.rendered(figure)["png"] == style.rendered(figures.rate_figure(history(20)))["png"]


def test_files_name_neither_time_nor_program() -> None:
    files = style.rendered(bars("a"))
    assert b"tEXt" not in files["png"]
    assert not re.search(rb"<metadata>|dc:date|Matplotlib v", files["svg"])


def test_a_slide_is_1600_pixels_wide() -> None:
    png = style.rendered(figures.rate_figure(history(20)))["png"]
    assert int.from_bytes(png[16:20], "big") == 1600
    assert int.from_bytes(png[20:24], "big") == 900
