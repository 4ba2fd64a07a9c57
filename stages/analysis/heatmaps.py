"""Pictures of attention: who looks at whom, from 0 to 1.

The table of one head has a row for each query and a column for each key, both named by the words. What lies above the
diagonal is the future, which the mask hides: those cells are grey, not zero.

Sizes are bounded: a picture is at most 12.5 inches wide and high (2500 pixels in PNG). Words are at most 24 columns
long, and a heatmap names at most 64 of them: of a longer prompt, every second, third, … one.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from stages.analysis import style
from stages.analysis.fonts import columns, label

_MAX_NAMED = 64  # words along one axis
_MAX_SIDE = 8.5  # inches of the heatmap itself
_NUMBERS_UP_TO = 9  # tokens up to which each cell shows its value
_COLUMN = 0.075  # inches a column of text takes at 9 points


def attention_figure(weights: pd.DataFrame, *, layer: int, head: int) -> Figure:
    """The attention of one head over one prompt."""
    words = [label(word) for word in weights.columns]
    values = weights.to_numpy(dtype=float)
    count = len(words)
    side = min(_MAX_SIDE, max(2.6, 0.62 * count))
    with style.applied(words):
        text = _COLUMN * max(map(columns, words), default=1)
        figure = Figure(figsize=(side + text + 1.9, side + min(text, 1.9) + 1.3), layout="compressed")
        axes = figure.add_subplot()
        image = _draw(axes, np.where(_future(count), -1.0, values))
        size = 9.5 if count <= 16 else 8 if count <= 36 else 6.5
        named = slice(0, count, math.ceil(count / _MAX_NAMED))
        places = range(count)[named]
        rotation = 0 if text < 0.9 * side / count else 45 if count <= 16 else 90
        sides = {0: "center", 45: "right", 90: "center"}
        axes.set_xticks(places, words[named], fontsize=size)
        for tick in axes.get_xticklabels():
            tick.set(rotation=rotation, ha=sides[rotation], rotation_mode="anchor" if rotation == 45 else "default")
        axes.set_yticks(places, words[named], fontsize=size)
        axes.set_xlabel("key: the word looked at")
        axes.set_ylabel("query: the word that looks")
        if count <= _NUMBERS_UP_TO:
            _write_values(axes, values)
        bar = figure.colorbar(image, ax=axes, ticks=[0, 0.25, 0.5, 0.75, 1], aspect=26, label="attention")
        bar.outline.set_visible(False)
        figure.suptitle(f"Attention, layer {layer}, head {head}", x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def overview_figure(attention_LHTT: np.ndarray, words: list[str], *, prompt: str) -> Figure:  # noqa: N803 (shapes)
    """All heads of one prompt side by side: a row for each layer, a column for each head."""
    layers, heads, count, _ = attention_LHTT.shape
    names = [label(word, 14) for word in words]
    title = label(prompt, 48)
    gap = max(1, round(count / 6))
    step = count + gap
    mosaic = np.full((layers * step - gap, heads * step - gap), np.nan)
    for layer in range(layers):
        for head in range(heads):
            block = np.where(_future(count), -1.0, attention_LHTT[layer, head])
            mosaic[layer * step : layer * step + count, head * step : head * step + count] = block
    cell = min(8.9 / mosaic.shape[1], 9.5 / mosaic.shape[0], 0.34)
    with_rows, with_columns = layers * count <= 30 and cell > 0.11, heads * count <= 48 and cell > 0.15
    text = _COLUMN * max(map(columns, names), default=1)
    width = max(6.4, cell * mosaic.shape[1] + 2.4 + (text if with_rows else 0))
    height = cell * mosaic.shape[0] + 1.05 + (text if with_columns else 0)
    with style.applied([title, *names]):
        figure = Figure(figsize=(width, height), layout="compressed")
        axes = figure.add_subplot()
        image = _draw(axes, mosaic)
        starts_H, starts_L = step * np.arange(heads), step * np.arange(layers)  # noqa: N806 (shapes)
        size = min(10.0, max(5.0, 72 * cell * step / 7))
        for start, head in zip(starts_H, range(heads), strict=True):
            place = start + (count - 1) / 2
            axes.annotate(f"head {head}" if size > 7 else f"{head}", (place, -0.5), (0, 4), ha="center", va="bottom",
                          textcoords="offset points", fontsize=size)  # fmt: skip
        for start, layer in zip(starts_L, range(layers), strict=True):
            place = start + (count - 1) / 2
            axes.annotate(f"layer {layer}", (mosaic.shape[1] - 0.5, place), (5, 0), ha="left", va="center",
                          rotation=270, textcoords="offset points", fontsize=size)  # fmt: skip
        places_x = [float(start + i) for start in starts_H for i in range(count)] if with_columns else []
        places_y = [float(start + i) for start in starts_L for i in range(count)] if with_rows else []
        axes.set_xticks(places_x, names * heads if with_columns else [], rotation=90, fontsize=8)
        axes.set_yticks(places_y, names * layers if with_rows else [], fontsize=8)
        bar = figure.colorbar(
            image,
            ax=axes,
            ticks=[0, 0.5, 1],
            aspect=20 if layers * 3 < heads else 36,
            fraction=0.05,
            pad=0.06,
            label="attention",
        )
        bar.ax.tick_params(labelsize=9)
        bar.outline.set_visible(False)
        figure.suptitle(f"Attention of every head: “{title}”", x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _draw(axes: Axes, values: np.ndarray) -> AxesImage:
    """Cells from 0 to 1 on a fixed scale; below 0 is the future, and nan is nothing."""
    colors = mpl.colormaps["Blues"].with_extremes(under=style.MASKED, bad=(1, 1, 1, 0))
    image = axes.imshow(values, cmap=colors, vmin=0, vmax=1, interpolation="none", aspect="equal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return image


def _future(count: int) -> np.ndarray:
    """True above the diagonal."""
    return np.triu(np.ones((count, count), dtype=bool), 1)


def _write_values(axes: Axes, values: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(values):
        if column <= row:
            color = "white" if value > 0.55 else style.INK
            shown = "–" if math.isnan(value) else f"{value:.2f}"  # of a model whose numbers are not finite
            axes.text(column, row, shown, ha="center", va="center", fontsize=9, color=color)
