"""A model against the truth: next words beside their probabilities, and agreement by what lies between.

Columns of the tables as in `stages.analysis.truth`; of a model whose numbers are not finite, `model` is missing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from stages.analysis import style
from stages.analysis.axes import say_instead, set_title, whole
from stages.analysis.fonts import label

MAX_PROMPTS = 5  # in one picture
_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.INK, style.GREY)
_MARKERS = "os^DX"
_BELOW = 30.0  # times below the least likely word of the truth: where the axis of the model begins
_FEATURES = {
    "number": ("verb and subject: number", style.BLUE),
    "gender": ("adjective and subject: gender", style.ORANGE),
}
_BETWEEN = {"distance": "words between", "attractors": "nouns of the other form between"}


def truth_figure(words: pd.DataFrame) -> Figure:
    """The model's probability of each possible next word against the true one, for the first prompts of the table.

    The legend says how far the two are apart in total variation, half the sum of the absolute differences over all
    words, and what the model leaves to words that cannot follow.
    """
    prompts = [str(prompt) for prompt in words["prompt"].unique()]
    names = [label(prompt, 40) for prompt in prompts[:MAX_PROMPTS]]
    with style.applied(names):
        figure = Figure(figsize=(style.SLIDE[0], 5.2 + 0.25 * len(names)), layout="constrained")
        axes = figure.add_subplot()
        set_title(figure, "Next words: the model and the truth")
        if not len(words):
            axes.set_xticks([])
            say_instead(axes, "no prompt is the beginning of a sentence of the grammar")
            return figure
        least = float(words.loc[words["truth"] > 0, "truth"].min())
        axes.set(xscale="log", yscale="log", xlim=(least / 1.5, 1.2), ylim=(least / _BELOW, 1.2))
        axes.plot([least / 1.5, 1], [least / 1.5, 1], color=style.GREY, linestyle="--", linewidth=1,
                  label="model = truth")  # fmt: skip
        for prompt, name, color, marker in zip(prompts, names, _COLORS, _MARKERS, strict=False):
            _draw_words(axes, words[words["prompt"] == prompt], least / _BELOW, f"“{name}”", color, marker)
        for axis, name in ((axes.xaxis, "true probability"), (axes.yaxis, "the model's probability")):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
            axis.set_label_text(name)
        axes.grid()
        if len(prompts) > len(names):
            set_title(figure, f"Next words: the model and the truth, first {len(names)} of {len(prompts)} prompts")
        figure.legend(loc="outside lower left", fontsize=9.5, borderaxespad=0.2)
    return figure


def agreement_figure(table: pd.DataFrame) -> Figure:
    """Share of places at which the model prefers the word that agrees, with 95% intervals; half is guessing."""
    with style.applied():
        figure = Figure(figsize=(style.SLIDE[0], 5.0), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[5, 3])
        for axes, by in ((left, "distance"), (right, "attractors")):
            axes.set_xlabel(_BETWEEN[by])
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
            axes.axhline(0.5, color=style.GREY, linestyle="--", linewidth=1, label="guessing" if axes is left else "")
            axes.grid(axis="y")
        left.set_ylabel("share right")
        if len(table):
            for place, (feature, (name, color)) in enumerate(_FEATURES.items()):
                _draw_agreement(left, right, table[table["feature"] == feature], name, color, 0.16 * place - 0.08)
            left.set_ylim(min(0.45, float(table["low"].min()) - 0.03), 1.02)
        else:
            say_instead(left, "no place of agreement")
        set_title(figure, "Agreement with a noun before, with 95% intervals")
        figure.legend(loc="outside lower left", fontsize=9.5, borderaxespad=0.2)
    return figure


def _draw_words(axes: Axes, words: pd.DataFrame, low: float, name: str, color: str, marker: str) -> None:
    truth, model = words["truth"].to_numpy(dtype=float), words["model"].to_numpy(dtype=float)
    possible = truth > 0
    apart, lost = np.abs(truth - model).sum() / 2, model[~possible].sum()
    finite = np.isfinite(apart)
    name += f": total variation {apart:.3f}, impossible words {lost:.3f}" if finite else ": not finite"
    axes.plot(truth[possible], np.maximum(model[possible], low), marker, color=color, alpha=0.75, label=name,
              markersize=6, clip_on=False)  # fmt: skip


def _draw_agreement(left: Axes, right: Axes, table: pd.DataFrame, name: str, color: str, shift: float) -> None:
    for _, row in table[table["by"] == "all"].iterrows():
        name += f", {whole(row['right'])} of {whole(row['items'])} right ({100 * row['accuracy']:.1f}%)"
    for axes, by in ((left, "distance"), (right, "attractors")):
        rows = table[table["by"] == by]
        if len(rows):
            accuracy = rows["accuracy"].to_numpy(dtype=float)
            bounds = [accuracy - rows["low"].to_numpy(dtype=float), rows["high"].to_numpy(dtype=float) - accuracy]
            axes.errorbar(rows["value"].to_numpy(dtype=float) + shift, accuracy, np.maximum(bounds, 0), fmt="o",
                          color=color, markersize=5, linewidth=1.2, label=name if axes is left else "")  # fmt: skip
