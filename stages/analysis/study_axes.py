"""What the pictures of a comparison have in common: names, colours, panels, places of levels on an axis.

Tables as in `stages.analysis.question`. A picture tells at most `MAX_LINES` lines apart. Of more variants each level of
one factor has a panel of its own; of what is still too much the best are coloured and the others grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from stages.analysis import style
from stages.analysis.axes import set_title, whole
from stages.analysis.fonts import columns, label
from stages.analysis.question import Question

MAX_LINES = 10
MAX_PANELS = 9
LONGEST_NAME = 54  # columns of a name in a legend
_COLORS = (style.BLUE, style.ORANGE, style.GREEN, "#CC79A7", "#E69F00", "#56B4E9", style.INK)
_UNTOLD = "#C4C4C4"  # lines that are not told apart
_STYLES = ("-", "--", ":", "-.")
_LOG_FROM = 10  # highest over lowest number from which an axis is logarithmic
_COLUMNS_AN_INCH = 12.5  # characters of a legend

Look = dict[str, Any]


class Lines(NamedTuple):
    """How the variants are shared out on panels and lines."""

    panels: dict[str, pd.DataFrame]  # title ('' for a single panel) → its variants, with a column `line`
    looks: dict[str, Look]  # of each line, the shown ones first
    names: dict[str, str]  # of each line, as it is drawn
    grey: set[str]  # lines that are not told apart


class Scale(NamedTuple):
    """Where the levels of a factor are on an axis."""

    places: dict[str, float]
    log: bool
    apart: list[str]  # levels without a number (or without a logarithm), at the left of the others


def worth_colors(question: Question) -> Colormap:
    """From dark, the best value, to light; the lightest part would not be seen on white."""
    dark_to_light = mpl.colormaps["viridis"](np.linspace(0, 0.94, 256))
    return ListedColormap(dark_to_light if question.direction == "lower" else dark_to_light[::-1])


def metric_label(question: Question) -> str:
    """The metric with its unit."""
    nats = question.metric.rsplit(".", 1)[-1] in ("loss", "excess")
    return f"{question.metric} (nats per token)" if nats else question.metric


def seeds_of(variants: pd.DataFrame) -> str:
    """`5 seeds`, or `3 to 5 seeds` where some have no value."""
    low, high = int(variants["n"].min()), int(variants["n"].max())
    return f"{whole(high)} seed{'' if high == 1 else 's'}" if low == high else f"{whole(low)} to {whole(high)} seeds"


def asked(variants: Any) -> Any:
    """Runs of each variant, or of one row: those with a value, those that diverged and those that are missing."""
    return variants["n"] + variants["diverged"] + variants["missing"]


def shortened(names: Iterable[str], longest: int = LONGEST_NAME) -> dict[str, str]:
    """Each name as it is drawn: at most `longest` columns, and no two the same."""
    found: dict[str, str] = {}
    for name in names:
        short = label(name, longest)
        if short in found.values():
            mark = f"({len(found) + 1}) "
            short = mark + label(name, longest - len(mark))
        found[name] = short
    return found


def lines_of(variants: pd.DataFrame, question: Question, factors: Sequence[str]) -> Lines:
    """Panels and lines of the variants, told apart by these factors."""
    factors = [factor for factor in factors if variants[factor].nunique() > 1] or list(factors[:1])
    panel = _panel_factor(variants, question, factors)
    own = [factor for factor in factors if factor != panel]
    variants = variants.assign(line=[_name(levels, own) for levels in variants[own].to_dict("records")])
    best = variants.groupby("line", sort=False)["mean"].agg("min" if question.direction == "lower" else "max")
    order = best.sort_values(ascending=question.direction == "lower", na_position="last", kind="stable").index
    first = variants.loc[variants["variant"] == question.baseline, "line"]
    shown = set([*first, *order][: MAX_LINES + len(first)]) if len(best) > MAX_LINES else set(best.index)
    grey = set(best.index) - shown
    looks = _looks(variants[variants["line"].isin(shown)].drop_duplicates("line"), question, own)
    looks |= {
        line: {"color": _UNTOLD, "linestyle": "-", "marker": "", "zorder": 1} for line in best.index if line in grey
    }
    panels = {"": variants}
    if panel:
        panels = {
            f"{panel}={level}": variants[variants[panel] == level] for level in _levels(variants, question, panel)
        }
    return Lines(panels, looks, shortened(looks), grey)


def _panel_factor(variants: pd.DataFrame, question: Question, factors: Sequence[str]) -> str | None:
    """The factor that has a panel a level: one that comparisons keep fixed, else the one with the fewest levels."""
    if len(factors) < 2 or len(variants[list(factors)].drop_duplicates()) <= MAX_LINES:
        return None

    def cost(factor: str) -> tuple[bool, bool, bool, int]:
        own = [other for other in factors if other != factor]
        count = variants[factor].nunique()
        crowded = len(variants[own].drop_duplicates()) > MAX_LINES
        return count > MAX_PANELS, crowded, factor not in question.within, count

    best = min(factors, key=cost)
    return None if cost(best)[0] else best


def _levels(variants: pd.DataFrame, question: Question, factor: str) -> list[str]:
    there = set(variants[factor])
    return [level for level in question.factors[factor] if level in there]


def _name(levels: Mapping[Any, Any], factors: Sequence[str]) -> str:
    if list(factors) == ["variant"]:
        return str(levels["variant"])
    return ", ".join(f"{factor}={levels[factor]}" for factor in factors)


def _looks(lines: pd.DataFrame, question: Question, factors: Sequence[str]) -> dict[str, Look]:
    """Of several factors the one with the fewest levels is told by the kind of line, the others by colour."""
    few = min(factors, key=lambda factor: lines[factor].nunique())
    split = len(factors) > 1 and lines[few].nunique() <= len(_STYLES)
    by_color = [factor for factor in factors if factor != few] if split else list(factors)
    hues = list(dict.fromkeys(_name(row, by_color) for row in lines[by_color].to_dict("records")))
    ordered = len(by_color) == 1 and len(question.numbers.get(by_color[0], {})) >= len(hues) - 1 > 0
    if not ordered and split and len(hues) > len(_COLORS):
        split, hues = False, list(lines["line"])
    places = np.linspace(0, 0.85, max(2, len(hues)))
    found = {}
    for number, row in enumerate(lines.to_dict("records")):
        hue = hues.index(_name(row, by_color)) if split or ordered else number
        kind = list(dict.fromkeys(lines[few])).index(row[few]) if split else hue // len(_COLORS) if not ordered else 0
        color = mpl.colormaps["viridis"](places[hue]) if ordered else _COLORS[hue % len(_COLORS)]
        found[str(row["line"])] = {
            "color": color,
            "linestyle": _STYLES[kind % 4],
            "marker": "os^D"[kind % 4],
            "zorder": 2,
        }
    return found


def panelled(title: str, panels: Sequence[str], rows_below: int) -> tuple[Figure, list[Axes]]:
    """A figure with a panel a name, on shared axes, and room for so many rows of legend."""
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    width = style.SLIDE[0] if across < 3 else 10.0
    height = (4.0 if len(panels) == 1 else 3.8 if down == 1 else 2.7 * down + 0.4) + 0.23 * rows_below + 0.2
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    used, unused = list(grid.flat)[: len(panels)], list(grid.flat)[len(panels) :]
    for axes in unused:
        axes.set_visible(False)
    for axes, name in zip(used, panels, strict=True):
        if name:
            axes.set_title(label(name, 40), fontsize=10.5, pad=6)
        axes.grid(axis="y")
    set_title(figure, title)
    return figure, used


def outer_only(grid: Sequence[Axes]) -> None:
    """Names and numbers of the axes at the left and below alone."""
    across = min(3, len(grid))
    for number, axes in enumerate(grid):
        below = number + across >= len(grid)
        axes.tick_params(labelbottom=below, labelleft=number % across == 0)
        if not below:
            axes.set_xlabel("")
        if number % across:
            axes.set_ylabel("")


def legend_rows(handles: Sequence[Artist], width: float = style.SLIDE[0]) -> int:
    """Rows of the legend of these."""
    return -(-len(handles) // _across(handles, width))


def set_lines_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Below the panels, in as many columns as there is room for."""
    across = _across(handles, figure.get_figwidth())
    figure.legend(handles=list(handles), loc="outside lower left", ncols=across, fontsize=9.5, borderaxespad=0.2)


def _across(handles: Sequence[Artist], width: float) -> int:
    longest = max((columns(str(handle.get_label())) for handle in handles), default=1) + 6
    return max(1, min(4, len(handles), int(width * _COLUMNS_AN_INCH / longest)))


def line_handles(lines: Lines) -> list[Line2D]:
    """The entries of a legend for these lines."""
    found = [Line2D([], [], color=look["color"], linestyle=look["linestyle"], label=lines.names[line])
             for line, look in lines.looks.items() if line not in lines.grey]  # fmt: skip
    if lines.grey:
        found.append(Line2D([], [], color=_UNTOLD, linewidth=0.9, label=f"{whole(len(lines.grey))} others"))
    return found


def note(text: str) -> Line2D:
    """A line of words in a legend."""
    return Line2D([], [], linestyle="none", label=text)


def scale_of(variants: pd.DataFrame, question: Question, factor: str) -> Scale:
    """The places of a factor's levels: their numbers, and left of these the levels that have none."""
    numbers = question.numbers.get(factor, {})
    levels = _levels(variants, question, factor)
    known = {level: float(numbers[level]) for level in levels if level in numbers}
    positive = [number for number in known.values() if number > 0]
    log = bool(positive) and max(positive) / min(positive) >= _LOG_FROM
    known = {level: number for level, number in known.items() if number > 0 or not log}
    apart = [level for level in levels if level not in known]
    low, high = min(known.values()), max(known.values())
    steps = max(1, len(known) - 1)
    ratio, gap = min(10.0, (high / low) ** (1 / steps)) if log else 0.0, (high - low) / steps or 1.0
    for number, level in enumerate(reversed(apart), 1):
        known[level] = low / ratio**number if log else low - gap * number
    return Scale(known, log, apart)


def set_scale(axes: Axes, scale: Scale) -> None:
    """Ticks at the levels, and a break between those with a number and those without."""
    if scale.log:
        axes.set_xscale("log")
    names = {place: label(level, 14) for level, place in scale.places.items()}
    places = sorted(names)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: names[min(names, key=lambda one: abs(one - place))]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if sum(columns(name) + 2 for name in names.values()) > 60:
        axes.tick_params(axis="x", rotation=45)
    if scale.apart and len(scale.apart) < len(places):
        left, right = places[len(scale.apart) - 1], places[len(scale.apart)]
        middle = (left * right) ** 0.5 if scale.log else (left + right) / 2
        axes.plot([middle], [0], color=style.GREY, marker=[(-1, -2), (1, 2)], markersize=12, markeredgewidth=1.2,
                  linestyle="none", clip_on=False, transform=axes.get_xaxis_transform())  # fmt: skip
        axes.axvline(middle, color="#D8D8D8", linewidth=1, linestyle=(0, (2, 3)), zorder=0)
