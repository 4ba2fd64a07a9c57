"""Pictures of a comparison over two factors and more: a heatmap, parallel coordinates, a performance profile.

Tables as in `stages.analysis.question`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from stages.analysis import style
from stages.analysis.axes import say_instead, set_title
from stages.analysis.fonts import label
from stages.analysis.question import Question
from stages.analysis.study_axes import (
    asked,
    legend_rows,
    line_handles,
    lines_of,
    metric_label,
    note,
    panelled,
    set_lines_legend,
    worth_colors,
)

MAX_HEATMAPS = 6
_EDGE_FROM = 3  # numbers of a factor from which its grid has an inside


def heatmap_figure(variants: pd.DataFrame, question: Question, across: str, down: str) -> Figure:
    """The mean at the end for each pair of levels of two factors, a panel for each combination of the others.

    The best cell has a frame. Cells outside of the dashed line are at the edge of the grid, where a best one says
    little: a better one may lie beyond. Grey cells have no value; below a value stands how many seeds diverged.
    """
    others = [name for name in question.factors if name not in (across, down) and variants[name].nunique() > 1]
    groups = [("", variants)]
    if others:
        groups = [(", ".join(f"{name}={level}" for name, level in zip(others, levels, strict=True)), own)
                  for levels, own in variants.groupby(others, sort=False)]  # fmt: skip
    columns_, rows = _in_order(variants, question, across), _in_order(variants, question, down)
    norm = Normalize(variants["mean"].min(), variants["mean"].max())
    colors = worth_colors(question).with_extremes(bad="#D0D0D0")
    shown = groups[:MAX_HEATMAPS]
    with style.applied([*columns_, *rows, *(name for name, _ in shown)]):
        many = min(2, len(shown))
        tall = -(-len(shown) // many)
        size = (many * max(2.6, 0.8 * len(columns_)) + 2.4, tall * (0.56 * len(rows) + 0.7) + 1.7)
        figure = Figure(figsize=(max(6.4, size[0]), size[1]), layout="constrained")
        grid = list(figure.subplots(tall, many, squeeze=False).flat)
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        edges = set()
        for axes, (name, own) in zip(grid, shown, strict=False):
            axes.set_title(label(name, 44), fontsize=10.5, pad=6)
            edges |= _draw_cells(axes, own, question, (across, columns_), (down, rows), colors, norm)
        if variants["mean"].notna().any():
            bar = figure.colorbar(ScalarMappable(norm, colors), ax=grid, label=metric_label(question), aspect=30)
            bar.outline.set_visible(False)
        more = f", first {len(shown)} of {len(groups)}" if len(shown) < len(groups) else ""
        set_title(figure, f"{question.metric} over {label(across, 20)} × {label(down, 20)}{more}")
        handles: list[Any] = [Patch(fill=False, edgecolor=style.ORANGE, linewidth=2.5, label="best")]
        if any(_numbered(names, question, name) >= _EDGE_FROM for name, names in ((across, columns_), (down, rows))):
            handles.append(
                Line2D([], [], color=style.INK, linestyle="--", linewidth=1.2, label="outside: edge of the grid")
            )
        if edges:
            handles.append(note(f"best at the edge of {' and '.join(sorted(edges))}: a better one may lie beyond"))
        set_lines_legend(figure, handles)
    return figure


def _draw_cells(
    axes: Axes,
    own: pd.DataFrame,
    question: Question,
    across: tuple[str, list[str]],
    down: tuple[str, list[str]],
    colors: Colormap,
    norm: Normalize,
) -> set[str]:
    """One heatmap; returned are the factors at whose edge its best cell is."""
    (x_name, x_levels), (y_name, y_levels) = across, down
    table = own.set_index([y_name, x_name])
    values = table["mean"].unstack().reindex(index=y_levels, columns=x_levels).to_numpy(dtype=float)
    axes.imshow(np.ma.masked_invalid(values), cmap=colors, norm=norm, aspect="auto", origin="lower")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(range(len(x_levels)), [label(level, 10) for level in x_levels])
    axes.set_yticks(range(len(y_levels)), [label(level, 14) for level in y_levels])
    axes.set_xlabel(label(x_name, 24))
    axes.set_ylabel(label(y_name, 24))
    axes.set_xticks(np.arange(0.5, len(x_levels) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(y_levels) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    for (row, column), value in np.ndenumerate(values):
        key = (y_levels[row], x_levels[column])
        words = _words(table.loc[[key]].iloc[0], value) if key in table.index else "no run"
        dark = math.isfinite(value) and np.dot(colors(norm(value))[:3], (0.3, 0.59, 0.11)) < 0.5
        axes.text(column, row, words, ha="center", va="center", fontsize=9, color="white" if dark else style.INK)
    inside = [_inside(levels, question, name) for name, levels in (across, down)]
    (left, right), (top, bottom) = inside
    corner, width, height = (left - 0.5, top - 0.5), right - left + 1, bottom - top + 1
    for color, thick, kind in (("white", 3.0, "-"), (style.INK, 1.2, "--")):  # to be seen on dark and on light cells
        axes.add_patch(Rectangle(corner, width, height, fill=False, linestyle=kind, edgecolor=color, linewidth=thick))
    if not np.isfinite(values).any():
        return set()
    place = np.nanargmin(values) if question.direction == "lower" else np.nanargmax(values)
    row, column = (int(i) for i in np.unravel_index(place, values.shape))
    axes.add_patch(
        Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False, edgecolor=style.ORANGE, linewidth=2.5)
    )
    return {name for name, levels, (first, last), at in ((x_name, x_levels, inside[0], column),
                                                         (y_name, y_levels, inside[1], row))
            if levels[at] in question.numbers.get(name, {}) and not first <= at <= last}  # fmt: skip


def _words(row: pd.Series, value: float) -> str:
    count = int(asked(row))
    lost = [f"{int(row[kind])}/{count} {kind}" for kind in ("diverged", "missing") if row[kind]]
    return "\n".join([f"{value:.3f}" if math.isfinite(value) else "–", *lost])


def _in_order(variants: pd.DataFrame, question: Question, factor: str) -> list[str]:
    """Levels as they are listed: first those without a number, then by number."""
    numbers, there = question.numbers.get(factor, {}), set(variants[factor])
    levels = [level for level in question.factors[factor] if level in there]
    return sorted(levels, key=lambda level: numbers.get(level, -math.inf))


def _numbered(levels: Sequence[str], question: Question, factor: str) -> int:
    return sum(level in question.numbers.get(factor, {}) for level in levels)


def _inside(levels: Sequence[str], question: Question, factor: str) -> tuple[int, int]:
    """First and last place that is not at the edge of the grid; of a grid too small to have an inside, all places."""
    first = len(levels) - _numbered(levels, question, factor)
    return (first + 1, len(levels) - 2) if len(levels) - first >= _EDGE_FROM else (0, len(levels) - 1)


def parallel_figure(variants: pd.DataFrame, question: Question) -> Figure:
    """Parallel coordinates: a line a variant through its levels to its mean at the end, coloured by that."""
    factors = [name for name in question.factors if variants[name].nunique() > 1]
    levels = {name: _in_order(variants, question, name) for name in factors}
    finite = variants["mean"].dropna()
    texts = [*factors, *(level for own in levels.values() for level in own)]
    with style.applied(texts):
        figure = Figure(figsize=(max(style.SLIDE[0], 1.7 * (len(factors) + 1) + 1), 5.0), layout="constrained")
        axes = figure.add_subplot()
        set_title(figure, f"{question.metric} at the end, by factor")
        if not len(finite):
            axes.set_xticks([])
            say_instead(axes, "no run has a value")
            return figure
        low, high = float(finite.min()), float(finite.max())
        norm = Normalize(low, high if high > low else low + 1)
        colors = worth_colors(question)
        order = variants.sort_values(
            "mean", na_position="first", ascending=question.direction != "lower", kind="stable"
        )
        for number, (_, row) in enumerate(order.iterrows()):  # the best is drawn last
            lost = pd.isna(row["mean"])
            end = 1.08 if lost else float(norm(row["mean"]))
            shift = 0.03 * (2 * number / max(1, len(order) - 1) - 1)
            heights = [_height(levels[name], str(row[name])) + shift for name in factors]
            look: dict[str, Any] = (
                {"color": style.GREY, "linestyle": "--"} if lost else {"color": colors(norm(row["mean"]))}
            )
            x, y = _smooth([*heights, end])
            axes.plot(x, y, linewidth=1.6, alpha=0.9, **look)
            if row["diverged"] or lost:
                axes.plot([len(factors)], [end], "x", color=style.INK, clip_on=False, zorder=4)
        _draw_coordinates(axes, levels, (low, high), question)
        cross = Line2D(
            [], [], color=style.INK, marker="x", linestyle="none", label="a seed or more diverged, or no value"
        )
        if variants["diverged"].any() or len(finite) < len(variants):
            set_lines_legend(figure, [cross])
    return figure


def _height(levels: Sequence[str], level: str) -> float:
    return levels.index(level) / max(1, len(levels) - 1)


def _smooth(heights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Through these heights at 0, 1, 2, …, level at each of them, so that lines can be followed by eye."""
    x = np.linspace(0, len(heights) - 1, 40 * (len(heights) - 1) + 1)
    before = np.minimum(x.astype(int), len(heights) - 2)
    part = x - before
    ease = part * part * (3 - 2 * part)
    known = np.asarray(heights)
    return x, known[before] + ease * (known[before + 1] - known[before])


def _draw_coordinates(axes: Axes, levels: dict[str, list[str]], ends: tuple[float, float], question: Question) -> None:
    last = len(levels)
    for place, (_, own) in enumerate(levels.items()):
        axes.axvline(place, color=style.INK, linewidth=0.9, zorder=3)
        for level in own:
            axes.annotate(label(level, 16), (place, _height(own, level)), (-7, 0), textcoords="offset points",
                          ha="right", va="center", fontsize=9.5, zorder=5,
                          bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # fmt: skip
    axes.axvline(last, color=style.INK, linewidth=0.9, zorder=3)
    for part in np.linspace(0, 1, 5):
        axes.annotate(f"{ends[0] + part * (ends[1] - ends[0]):.3f}", (last, part), (7, 0), textcoords="offset points",
                      ha="left", va="center", fontsize=9.5)  # fmt: skip
    axes.set_xticks(
        range(last + 1), [*(label(name, 20) for name in levels), metric_label(question).replace(" (", "\n(")]
    )
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.35, last + 0.25)
    axes.set_ylim(-0.08, 1.12)


def profile_figure(runs: pd.DataFrame, question: Question) -> Figure:
    """Performance profiles (Dolan & Moré 2002): for each ratio τ the share of corpora where a variant is within it.

    The ratio is that of a variant's mean over seeds to the best one on the same corpus, r ≥ 1. A variant without a
    value for every seed of a corpus never comes within any ratio there.
    """
    others = [name for name in question.factors if name != "corpus"]
    means = runs.groupby([*others, "corpus"], sort=False)["value"].agg(lambda values: values.mean(skipna=False))
    table_VC = means.unstack("corpus")  # noqa: N806 (variants and corpora)
    best_C = table_VC.min() if question.direction == "lower" else table_VC.max()  # noqa: N806
    ratios_VC = table_VC / best_C if question.direction == "lower" else best_C / table_VC  # noqa: N806
    names = [", ".join(f"{name}={level}" for name, level in zip(others, np.atleast_1d(levels), strict=True))
             for levels in table_VC.index]  # fmt: skip
    worth = -ratios_VC.map(lambda ratio: 1 / ratio).fillna(0).mean(axis=1).to_numpy()  # what is never reached counts 0
    lines = lines_of(pd.DataFrame({"variant": names, "mean": worth}), replace(question, direction="lower"), ["variant"])
    with style.applied(lines.names.values()):
        handles = line_handles(lines)
        figure, (axes,) = panelled("Performance profile over corpora", [""], legend_rows(handles))
        if (means <= 0).any():
            say_instead(axes, f"ratios of {question.metric} need values above 0")
            return figure
        finite = ratios_VC.to_numpy()[np.isfinite(ratios_VC.to_numpy())]
        end = max(1.01, 1 + 1.08 * (finite.max(initial=1.0) - 1))
        for name, own_C in zip(names, ratios_VC.to_numpy(), strict=True):  # noqa: N806
            reached = np.sort(own_C[np.isfinite(own_C)])
            shares = np.arange(len(reached) + 1) / len(own_C)
            look = lines.looks[name]
            axes.step([1.0, *reached, end], [*shares, shares[-1]], where="post", color=look["color"],
                      linestyle=look["linestyle"], zorder=look["zorder"], clip_on=False)  # fmt: skip
        axes.set_xlim(1, end)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(f"τ: {question.metric} within this ratio of the best")
        axes.set_ylabel(f"share of {table_VC.shape[1]} corpora")
        set_lines_legend(figure, handles)
    return figure
