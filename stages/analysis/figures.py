"""Curves and bars: a table in, a figure out.

Columns of the tables: `history` step, lr, loss, grad_norm (one row an update); `validation` step, loss; `rates` warmup,
step, rate; `words` word, probability (most likely first); `bins` low, high, tokens, confidence, accuracy (the last two
missing without tokens). Of several replicas the first two hold means, with loss_low
and loss_high, the 95% interval of the mean, and replicas, how many got that far. No input or output here and no pyplot
state; `stages.analysis.style` turns figures into files. However long the run, a figure has a bounded number of points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stages.analysis import style
from stages.analysis.axes import (
    draw_measured,
    draw_updates,
    fit_scale,
    mark_divergence,
    most_seeds,
    over_seeds,
    power,
    say_instead,
    set_legend,
    set_title,
    slide,
    thinned,
    whole,
)
from stages.analysis.fonts import label

MAX_BARS = 25  # words in a picture of next-word bars
_NO_UPDATE = "no update was made"
_NOT_FINITE = "the model's numbers are not finite"


def loss_figure(
    history: pd.DataFrame,
    validation: pd.DataFrame,
    *,
    validation_label: str,
    floor: float | None = None,
    diverged: Sequence[int] = (),
) -> Figure:
    """Loss of each update with dropout, and without dropout as measured now and then, in nats a token.

    Of replicas the means, the one without dropout with its 95% interval. `diverged` holds the update at which the run,
    or each replica of those that did, came to its end before its time.
    """
    with style.applied():
        figure, axes = slide("Loss while training", "loss (nats per token)")
        name = f"training, with dropout{over_seeds(history)}"
        lines = [draw_updates(axes, history["step"], history["loss"], style.BLUE, name)]
        if len(validation):
            lines += draw_measured(axes, validation, f"{validation_label}{over_seeds(validation)}")
        if floor is not None:
            axes.axhline(floor, color=style.GREEN, linestyle="--", label=f"lowest possible on this text: {floor:.4f}")
            lines.append(np.array([floor]))
        mark_divergence(axes, diverged, max(most_seeds(validation), most_seeds(history)))
        fit_scale(axes, np.concatenate(lines))
        set_legend(figure)
    return figure


def rate_figure(history: pd.DataFrame) -> Figure:
    """The learning rate that each update used."""
    with style.applied():
        rates = history["lr"].to_numpy(dtype=float)
        exponent = _exponent(rates)
        figure, axes = slide("Learning rate used at each update", _rate_label(exponent))
        if not len(rates):
            axes.set_xticks([])
            say_instead(axes, _NO_UPDATE)
            return figure
        steps, means, _, _ = thinned(history["step"].to_numpy(dtype=float), rates / 10.0**exponent)
        axes.plot(steps, means, color=style.BLUE, marker="o" if len(rates) == 1 else "")
        axes.set_ylim(bottom=0)
    return figure


def gradient_norm_figure(history: pd.DataFrame) -> Figure:
    """The norm of the gradient over all weights, before any clipping."""
    with style.applied():
        figure, axes = slide("Norm of the gradient", "Euclidean norm")
        if not len(history):
            axes.set_xticks([])
            say_instead(axes, _NO_UPDATE)
            return figure
        name = f"gradient{over_seeds(history)}"
        fit_scale(axes, draw_updates(axes, history["step"], history["grad_norm"], style.BLUE, name))
        set_legend(figure)
    return figure


def noam_rate_figure(rates: pd.DataFrame, *, d_model: int) -> Figure:
    """Noam's rate against the update number for several warm-ups (Vaswani et al. 2017, equation 3)."""
    with style.applied():
        exponent = _exponent(rates["rate"].to_numpy(dtype=float))
        figure, axes = slide(f"Noam's learning rate, d_model = {d_model}", _rate_label(exponent))
        curves = list(rates.groupby("warmup"))  # ascending
        colors = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(curves)))
        for (warmup, curve), color in zip(curves, colors, strict=True):
            axes.plot(curve["step"], curve["rate"] / 10.0**exponent, color=color, label=whole(float(str(warmup))))
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
        if len(names) and np.isnan(probabilities).all():
            axes.text(0.5, 0.5, _NOT_FINITE, transform=axes.transAxes, ha="center", va="center", color=style.GREY)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("probability" if len(shown) == len(words) else f"probability (first {MAX_BARS} words)")
        set_title(figure, f"Next word after “{title}”")
    return figure


def calibration_figure(bins: pd.DataFrame, *, text: str) -> Figure:
    """How often the most likely word was right against its probability, and how many tokens each bin has.

    Guo et al. (2017), figure 1; the title has the expected calibration error.
    """
    with style.applied():
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        for axes in (above, below):
            axes.set_xlim(0, 1)
            axes.grid(axis="y")
        above.set_ylim(0, 1)
        above.set_ylabel("share right")
        below.set_ylabel("share of tokens")
        below.set_xlabel("probability of the most likely word")
        if not len(bins):
            say_instead(above, _NOT_FINITE)
            set_title(figure, f"Calibration on the {text}")
            return figure
        shares = bins["tokens"].to_numpy(dtype=float) / bins["tokens"].sum()
        confidence, accuracy = (bins[name].to_numpy(dtype=float) for name in ("confidence", "accuracy"))
        error = np.nansum(shares * np.abs(confidence - accuracy))
        above.plot([0, 1], [0, 1], color=style.GREY, linestyle="--", linewidth=1, label="calibrated")
        above.vlines(confidence, confidence, accuracy, color=style.ORANGE, linewidth=1.4, label="gap")
        above.plot(confidence, accuracy, "o", color=style.BLUE, markersize=5, label="this model", clip_on=False)
        edges = [*bins["low"], bins["high"].iloc[-1]]
        below.stairs(shares, edges, fill=True, color=style.BLUE, alpha=0.6)
        set_title(figure, f"Calibration on the {text}: error {100 * error:.1f}\xa0%")
        set_legend(figure)
    return figure


def _rate_label(exponent: int) -> str:
    return f"learning rate (×{power(exponent)})" if exponent else "learning rate"


def _exponent(rates: np.ndarray) -> int:
    """The power of ten of the highest rate; 0 where plain numbers read well."""
    top = float(np.nanmax(rates)) if len(rates) else 0.0
    exponent = math.floor(math.log10(top)) if top > 0 else 0
    return exponent if exponent < -1 or exponent > 2 else 0


def _probability(value: float) -> str:
    if math.isnan(value):  # of a model whose numbers are not finite
        return "–"
    return "< 0.001" if 0 < value < 0.0005 else f"{value:.3f}"
