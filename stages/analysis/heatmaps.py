"""Pictures of attention: who looks at whom, from 0 to 1.

The table of one head has a row for each query and a column for each key, both named by the words. What lies above the
diagonal is the future, which the mask hides: those cells are grey, not zero.

Sizes are bounded: a picture is at most 12.5 inches wide and high (2500 pixels in PNG). Words are at most 24 columns
long, and a heatmap names at most 64 of them: of a longer prompt, every second, third, … one. Where the cells of a long
prompt would be too small to be drawn, neighbours share one, which shows their highest weight; the title says so.

Shapes: L layers, H heads, T tokens, S snapshots, R rows and C columns of small heatmaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from stages.analysis import style
from stages.analysis.axes import whole
from stages.analysis.fonts import columns, label, visible

_MAX_NAMED = 64  # words along one axis
_MAX_SIDE = 8.5  # inches of the heatmap itself
_NUMBERS_UP_TO = 9  # tokens up to which each cell shows its value
_COLUMN = 0.075  # inches a column of text takes at 9 points
_MAX_CELLS = 680  # cells along one side of a picture: each has 2.5 pixels or more
_MAX_SNAPSHOTS, _MAX_ROWS = 8, 12  # small heatmaps in a picture of the training


def attention_figure(weights: pd.DataFrame, *, layer: int, head: int) -> Figure:
    """The attention of one head over one prompt; index and columns are its words."""
    values, words, shared = _pooled(weights.to_numpy(dtype=float), list(weights.columns), _MAX_CELLS)
    words = [label(visible(word)) for word in words]
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
        title = f"Attention, layer {layer}, head {head}{_of_shared(shared)}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def overview_figure(attention_LHTT: np.ndarray, words: list[str], *, prompt: str) -> Figure:  # noqa: N803 (shapes)
    """All heads of one prompt side by side: a row for each layer, a column for each head."""
    layers, heads = attention_LHTT.shape[:2]
    names = [f"layer {layer}" for layer in range(layers)], [f"head {head}" for head in range(heads)]
    return _small_multiples(attention_LHTT, words, *names, title=f"Attention of every head: “{label(prompt, 48)}”")


def attention_over_training_figure(
    snapshots_SLHTT: np.ndarray,  # noqa: N803 (shapes)
    steps: Sequence[int],
    words: list[str],
    *,
    prompt: str,
    layer: int | None = None,
) -> Figure:
    """The attention over one prompt as it came about: a column for each snapshot of the training.

    Args:
        snapshots_SLHTT: weights [S, L, H, T, T] at
        steps: these updates, ascending; of more than 8, evenly spaced ones are shown, the first and the last included.
        words: of the prompt, one a token.
        prompt: for the title.
        layer: a row for each head of this layer; None: a row for each layer, the mean over its heads.

    Raises:
        ValueError: steps and snapshots differ in number.
    """
    if len(steps) != len(snapshots_SLHTT):
        raise ValueError(f"{len(steps)} steps for {len(snapshots_SLHTT)} snapshots")
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MAX_SNAPSHOTS)).round().astype(int))
    shown_SRTT = snapshots_SLHTT[chosen].mean(axis=2) if layer is None else snapshots_SLHTT[chosen, layer]  # noqa: N806
    rows = shown_SRTT.shape[1]
    kind = "layer" if layer is None else "head"
    row_names = [f"{kind} {row}" for row in range(rows)][:_MAX_ROWS]
    column_names = [f"update {whole(steps[i])}" for i in chosen]
    what = "mean over the heads" if layer is None else f"layer {layer}"
    more = f", first {_MAX_ROWS} of {rows} {kind}s" if rows > _MAX_ROWS else ""
    title = f"Attention while training, {what}{more}: “{label(prompt, 36)}”"
    return _small_multiples(shown_SRTT[:, :_MAX_ROWS].swapaxes(0, 1), words, row_names, column_names, title=title)


def _small_multiples(
    attention_RCTT: np.ndarray,  # noqa: N803 (shapes)
    words: list[str],
    row_names: list[str],
    column_names: list[str],
    *,
    title: str,
) -> Figure:
    """Heatmaps of one prompt side by side, in R rows and C columns."""
    rows, across, _, _ = attention_RCTT.shape
    room = max(8, _MAX_CELLS // max(rows, across))
    attention_RCTT, words, shared = _pooled(attention_RCTT, words, room)  # noqa: N806 (shapes)
    title += _of_shared(shared)
    count = len(words)
    names = [label(visible(word), 14) for word in words]
    gap = max(1, round(count / 6))
    step = count + gap
    mosaic = np.full((rows * step - gap, across * step - gap), np.nan)
    for row in range(rows):
        for column in range(across):
            block = np.where(_future(count), -1.0, attention_RCTT[row, column])
            mosaic[row * step : row * step + count, column * step : column * step + count] = block
    cell = min(8.9 / mosaic.shape[1], 9.5 / mosaic.shape[0], 0.34)
    with_rows, with_columns = rows * count <= 30 and cell > 0.11, across * count <= 48 and cell > 0.15
    text = _COLUMN * max(map(columns, names), default=1)
    width = max(6.4, cell * mosaic.shape[1] + 2.4 + (text if with_rows else 0), 0.1 * columns(title))
    height = cell * mosaic.shape[0] + 1.05 + (text if with_columns else 0)
    with style.applied([title, *names]):
        figure = Figure(figsize=(width, height), layout="compressed")
        axes = figure.add_subplot()
        image = _draw(axes, mosaic)
        starts_C, starts_R = step * np.arange(across), step * np.arange(rows)  # noqa: N806 (shapes)
        size = min(10.0, max(5.0, 72 * cell * step / 7))
        for start, name in zip(starts_C, column_names, strict=True):
            place = start + (count - 1) / 2
            axes.annotate(name if size > 7 else name.split()[-1], (place, -0.5), (0, 4), ha="center", va="bottom",
                          textcoords="offset points", fontsize=size)  # fmt: skip
        for start, name in zip(starts_R, row_names, strict=True):
            place = start + (count - 1) / 2
            axes.annotate(name, (mosaic.shape[1] - 0.5, place), (5, 0), ha="left", va="center",
                          rotation=270, textcoords="offset points", fontsize=size)  # fmt: skip
        places_x = [float(start + i) for start in starts_C for i in range(count)] if with_columns else []
        places_y = [float(start + i) for start in starts_R for i in range(count)] if with_rows else []
        axes.set_xticks(places_x, names * across if with_columns else [], rotation=90, fontsize=8)
        axes.set_yticks(places_y, names * rows if with_rows else [], fontsize=8)
        bar = figure.colorbar(
            image,
            ax=axes,
            ticks=[0, 0.5, 1],
            aspect=20 if rows * 3 < across else 36,
            fraction=0.05,
            pad=0.06,
            label="attention",
        )
        bar.ax.tick_params(labelsize=9)
        bar.outline.set_visible(False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12 if columns(title) < 64 else 10, fontweight="bold")
    return figure


def _pooled(weights: np.ndarray, words: list[str], most: int) -> tuple[np.ndarray, list[str], int]:
    """Weights [..., T, T] with at most `most` cells a side: the highest of each square, named by its first word.

    Returns:
        Weights and words, and the side of a square in tokens (1: nothing was shared).
    """
    count = len(words)
    side = math.ceil(count / most)
    if side == 1:
        return weights, words, 1
    starts = np.arange(0, count, side)
    highest = np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=-1), starts, axis=-2)
    return highest, words[::side], side


def _of_shared(side: int) -> str:
    return f" (highest of each {side} × {side})" if side > 1 else ""


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
