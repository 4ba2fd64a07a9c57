"""What the figures with updates along the axis have in common: the slide, its scale and legend, curves and marks.

Tables as in `stages.analysis.figures`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from stages.analysis import style
from stages.analysis.fonts import columns

MAX_POINTS = 3000  # points of a line; of a longer one, neighbours share a point: their mean and their range
_SMOOTHING = 50  # a smoothed value is the mean of this fraction of the run
_LOG_FROM = 10  # highest over lowest value from which an axis is logarithmic
_DECADES_FROM = 1e6  # likewise, from which such an axis has ticks at powers of ten alone
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_BAND = 2.0  # times the highest line, or the lowest through it, to where a band may widen the picture


def slide(title: str, y_label: str) -> tuple[Figure, Axes]:
    """A figure of one curve over the updates."""
    figure = Figure(figsize=style.SLIDE, layout="constrained")
    axes = figure.add_subplot()
    over_updates(axes, y_label)
    set_title(figure, title)
    return figure, axes


def over_updates(axes: Axes, y_label: str) -> None:
    axes.set_xlabel("update")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))
    axes.grid(axis="y")
    axes.margins(x=0.02)


def set_title(figure: Figure, text: str) -> None:
    """A title at the figure's left edge, so that long ones have the whole width."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=13 if columns(text) < 60 else 11, fontweight="bold")


def set_legend(figure: Figure) -> None:
    """Below the axes, where no curve can run through it."""
    if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
        figure.legend(loc="outside lower left", ncols=2, fontsize=9.5, borderaxespad=0.2)


def say_instead(axes: Axes, text: str) -> None:
    """A few words where there is nothing to draw, and no scale."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=style.GREY)
    axes.set_yticks([])


def draw_updates(axes: Axes, steps: pd.Series, values: pd.Series, color: str, name: str) -> np.ndarray:
    """The values of each update in a light tone and their moving mean in a strong one, which is returned."""
    x, y = steps.to_numpy(dtype=float), values.to_numpy(dtype=float)
    if not len(y):
        return y
    window = max(1, len(y) // _SMOOTHING)
    thin_x, _, low, high = thinned(x, y)
    if len(y) > MAX_POINTS:
        axes.fill_between(thin_x, low, high, color=color, alpha=0.25, linewidth=0, label=f"{name}: lowest to highest")
    elif window > 1:
        axes.plot(x, y, color=color, alpha=0.3, linewidth=0.8, label=f"{name}: each update")
    smooth = pd.Series(y).rolling(window, center=True, min_periods=1).mean().to_numpy()
    smooth_x, smooth_y, _, _ = thinned(x, smooth)
    name = f"{name}: mean of {whole(window)} updates" if window > 1 else name
    axes.plot(smooth_x, smooth_y, color=color, marker="o" if len(y) == 1 else "", label=name)
    return np.asarray(smooth_y)


def draw_measured(axes: Axes, validation: pd.DataFrame, name: str) -> list[np.ndarray]:
    """The measurements and, of replicas, the band of their mean; returned is what the scale should show of them."""
    steps = validation["step"].to_numpy(dtype=float)
    places, measured, _, _ = thinned(steps, validation["loss"].to_numpy(dtype=float))
    axes.plot(places, measured, "o-", color=style.ORANGE, markersize=4, label=name)
    if "loss_low" not in validation:
        return [measured]
    low, high = (thinned(steps, validation[bound].to_numpy(dtype=float))[1] for bound in ("loss_low", "loss_high"))
    look: dict[str, Any] = {"color": style.ORANGE, "alpha": 0.2, "label": "95% interval of that mean"}
    if len(measured) == 1:
        axes.vlines(places, low, high, linewidth=8, **look)
    else:
        axes.fill_between(places, low, high, linewidth=0, **look)
    return [measured, *bounded(low, high, measured)]


def bounded(low: np.ndarray, high: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of a band as much as may widen the picture of the lines: few replicas have bands that would flatten them."""
    lines = lines[np.isfinite(lines)]
    if not len(lines):
        return lines, lines
    bottom, top = lines.min() / _BAND, lines.max() * _BAND
    return np.clip(low, bottom, top), np.clip(high, bottom, top)


def mark_divergence(axes: Axes, updates: Sequence[int], seeds: int) -> None:
    """A vertical line at each update at which a run diverged; `seeds` is the number of all runs."""
    if not updates:
        return
    first, last = whole(min(updates)), whole(max(updates))
    if seeds > 1:
        place = f"update {first}" if first == last else f"updates {first} to {last}"
        name = f"{len(updates)} of {seeds} seeds diverged, {place}"
    else:
        name = f"diverged at update {first}"
    for number, update in enumerate(sorted(set(updates))):
        axes.axvline(update, color=style.INK, linestyle=":", linewidth=1.4, label="" if number else name)


def most_seeds(table: pd.DataFrame) -> int:
    """The number of runs that a table holds the means of; 1 for a single run, or where there is nothing."""
    return int(table["replicas"].max()) if "replicas" in table and len(table) else 1


def over_seeds(table: pd.DataFrame) -> str:
    """` (mean of 4 seeds)`, or up to so many where some ended early; nothing for a single run."""
    if "replicas" not in table:
        return ""
    seeds = most_seeds(table)
    return f" (mean of {'up to ' if (table['replicas'] < seeds).any() else ''}{whole(seeds)} seeds)"


def thinned(
    x: np.ndarray, y: np.ndarray, most: int = MAX_POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """At most `most` places: x and mean, lowest and highest y of each; the first and last x stay."""
    if len(y) <= most:
        return x, y, y, y
    starts = np.linspace(0, len(y), most, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(y)))
    places = x[starts]
    places[-1] = x[-1]
    return places, np.add.reduceat(y, starts) / sizes, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)


def fit_scale(axes: Axes, values: np.ndarray) -> None:
    """A logarithmic axis where the lines need one; the light band of single updates may leave the picture."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > _LOG_FROM:
        axes.set_yscale("log")
        decades = high / low >= _DECADES_FROM
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades else (1, 2, 5)))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: power(round(math.log10(value))) if decades else f"{value:g}")
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(low / 1.6, high * 1.6)
    elif high > low:
        axes.set_ylim(max(0.0, low - 0.15 * (high - low)) if low >= 0 else None, high + 0.2 * (high - low))


def power(exponent: int) -> str:
    """A power of ten: `10⁻³`."""
    return "10" + str(exponent).translate(_RAISED)


def whole(value: float) -> str:
    """2700 as `2 700`, with a narrow space that does not break."""
    return f"{value:,.0f}".replace(",", "\u202f") if value == int(value) else f"{value:g}"
