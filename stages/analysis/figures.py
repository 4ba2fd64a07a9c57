"""Curves and bars: a table in, a figure out.

Columns of the tables: `history` step, lr, loss, grad_norm (one row an update); `validation` step, loss; `rates` warmup,
step, rate; `words` word, probability (most likely first). No input or output here and no pyplot state;
`stages.analysis.style` turns figures into files. However long the run, a figure has a bounded number of points.
"""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from stages.analysis import style
from stages.analysis.fonts import columns, label

MAX_POINTS = 3000  # points of a line; of a longer one, neighbours share a point: their mean and their range
MAX_BARS = 25  # words in a picture of next-word bars
_SMOOTHING = 50  # a smoothed value is the mean of this fraction of the run
_LOG_FROM = 10  # highest over lowest value from which an axis is logarithmic


def loss_figure(
    history: pd.DataFrame, validation: pd.DataFrame, *, validation_label: str, floor: float | None = None
) -> Figure:
    """Loss of each update with dropout, and without dropout as measured now and then, in nats a token."""
    with style.applied():
        figure, axes = _slide("Loss while training", "loss (nats per token)")
        smooth = _draw_updates(axes, history["step"], history["loss"], style.BLUE, "training, with dropout")
        lines = [smooth]
        if len(validation):
            measured = validation["loss"].to_numpy(dtype=float)
            axes.plot(validation["step"], measured, "o-", color=style.ORANGE, markersize=4, label=validation_label)
            lines.append(measured)
        if floor is not None:
            axes.axhline(floor, color=style.GREEN, linestyle="--", label=f"lowest possible on this text: {floor:.4f}")
            lines.append(np.array([floor]))
        _scale(axes, np.concatenate(lines))
        _legend(figure)
    return figure


def rate_figure(history: pd.DataFrame) -> Figure:
    """The learning rate that each update used."""
    with style.applied():
        rates = history["lr"].to_numpy(dtype=float)
        exponent = _exponent(rates)
        figure, axes = _slide("Learning rate used at each update", _rate_label(exponent))
        steps, means, _, _ = _thinned(history["step"].to_numpy(dtype=float), rates / 10.0**exponent)
        axes.plot(steps, means, color=style.BLUE, marker="o" if len(rates) == 1 else "")
        axes.set_ylim(bottom=0)
    return figure


def gradient_norm_figure(history: pd.DataFrame) -> Figure:
    """The norm of the gradient over all weights, before any clipping."""
    with style.applied():
        figure, axes = _slide("Norm of the gradient", "Euclidean norm")
        smooth = _draw_updates(axes, history["step"], history["grad_norm"], style.BLUE, "gradient")
        _scale(axes, smooth)
        _legend(figure)
    return figure


def noam_rate_figure(rates: pd.DataFrame, *, d_model: int) -> Figure:
    """Noam's rate against the update number for several warm-ups (Vaswani et al. 2017, equation 3)."""
    with style.applied():
        exponent = _exponent(rates["rate"].to_numpy(dtype=float))
        figure, axes = _slide(f"Noam's learning rate, d_model = {d_model}", _rate_label(exponent))
        curves = list(rates.groupby("warmup"))  # ascending
        colors = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(curves)))
        for (warmup, curve), color in zip(curves, colors, strict=True):
            axes.plot(curve["step"], curve["rate"] / 10.0**exponent, color=color, label=_whole(float(str(warmup))))
        axes.set_ylim(bottom=0)
        legend = axes.legend(title="warm-up (updates)", alignment="left", ncols=math.ceil(len(curves) / 12))
        legend.get_title().set_fontweight("bold")
    return figure


def next_words_figure(words: pd.DataFrame, *, prompt: str) -> Figure:
    """The most likely next words after a prompt, at most `MAX_BARS` of them."""
    shown = words.head(MAX_BARS)
    names = [label(word) for word in shown["word"]]
    title = label(prompt, 48)
    with style.applied([title, *names]):
        count = max(1, len(names))
        figure = Figure(figsize=(style.SLIDE[0], 1.3 + 0.3 * max(count, 4)), layout="constrained")
        axes = figure.add_subplot()
        probabilities = shown["probability"].to_numpy(dtype=float)
        bars = axes.barh(range(len(names)), probabilities, height=0.72, color=style.BLUE)
        axes.bar_label(bars, [_probability(value) for value in probabilities], padding=4, fontsize=9.5)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlim(0, min(1.0, max(probabilities, default=1.0)) * 1.12)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("probability" if len(shown) == len(words) else f"probability (first {MAX_BARS} words)")
        _title(figure, f"Next word after “{title}”")
    return figure


def _slide(title: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=style.SLIDE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel("update")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _whole(value)))
    axes.grid(axis="y")
    axes.margins(x=0.02)
    _title(figure, title)
    return figure, axes


def _title(figure: Figure, text: str) -> None:
    """A title at the figure's left edge, so that long ones have the whole width."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=13 if columns(text) < 60 else 11, fontweight="bold")


def _draw_updates(axes: Axes, steps: pd.Series, values: pd.Series, color: str, name: str) -> np.ndarray:
    """The values of each update in a light tone and their moving mean in a strong one, which is returned."""
    x, y = steps.to_numpy(dtype=float), values.to_numpy(dtype=float)
    window = max(1, len(y) // _SMOOTHING)
    thin_x, _, low, high = _thinned(x, y)
    if len(y) > MAX_POINTS:
        axes.fill_between(thin_x, low, high, color=color, alpha=0.25, linewidth=0, label=f"{name}: lowest to highest")
    elif window > 1:
        axes.plot(x, y, color=color, alpha=0.3, linewidth=0.8, label=f"{name}: each update")
    smooth = pd.Series(y).rolling(window, center=True, min_periods=1).mean().to_numpy()
    smooth_x, smooth_y, _, _ = _thinned(x, smooth)
    name = f"{name}: mean of {_whole(window)} updates" if window > 1 else name
    axes.plot(smooth_x, smooth_y, color=color, marker="o" if len(y) == 1 else "", label=name)
    return np.asarray(smooth_y)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """At most `MAX_POINTS` places: x and mean, lowest and highest y of each; the first and last x stay."""
    if len(y) <= MAX_POINTS:
        return x, y, y, y
    starts = np.linspace(0, len(y), MAX_POINTS, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(y)))
    places = x[starts]
    places[-1] = x[-1]
    return places, np.add.reduceat(y, starts) / sizes, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)


def _scale(axes: Axes, values: np.ndarray) -> None:
    """A logarithmic axis where the lines need one; the light band of single updates may leave the picture."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > _LOG_FROM:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(low / 1.6, high * 1.6)
    elif high > low:
        axes.set_ylim(max(0.0, low - 0.15 * (high - low)) if low >= 0 else None, high + 0.2 * (high - low))


def _legend(figure: Figure) -> None:
    """Below the axes, where no curve can run through it."""
    figure.legend(loc="outside lower left", ncols=2, fontsize=9.5, borderaxespad=0.2)


def _rate_label(exponent: int) -> str:
    power = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"learning rate (×10{power})" if exponent else "learning rate"


def _exponent(rates: np.ndarray) -> int:
    """The power of ten of the highest rate; 0 where plain numbers read well."""
    top = float(np.nanmax(rates)) if len(rates) else 0.0
    exponent = math.floor(math.log10(top)) if top > 0 else 0
    return exponent if exponent < -1 or exponent > 2 else 0


def _whole(value: float) -> str:
    """2700 as `2 700`, with a narrow space that does not break."""
    return f"{value:,.0f}".replace(",", "\u202f") if value == int(value) else f"{value:g}"


def _probability(value: float) -> str:
    return "< 0.001" if 0 < value < 0.0005 else f"{value:.3f}"
