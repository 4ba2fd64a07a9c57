"""The pictures of a comparison: tables in, figures out, without input or output.

Tables as in `stages.analysis.question`. What diverged is marked or counted in every picture that could hide it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stages.analysis import style
from stages.analysis.axes import bounded, fit_scale, over_updates, say_instead, set_title, thinned
from stages.analysis.fonts import columns, label
from stages.analysis.question import Comparison, Question
from stages.analysis.spread import spreads
from stages.analysis.study_axes import (
    Lines,
    Look,
    Scale,
    asked,
    legend_rows,
    line_handles,
    lines_of,
    metric_label,
    note,
    outer_only,
    panelled,
    scale_of,
    seeds_of,
    set_lines_legend,
    set_scale,
    shortened,
)
from stages.analysis.study_grids import heatmap_figure, parallel_figure, profile_figure

MAX_ROWS = 60  # variants in the picture of differences
_FIRST = ("warmup", "lr", "factor")  # factors that are drawn first
_POINTS, _RATE_POINTS = 300, 1000  # of a curve
_LOG_FROM = (
    4  # highest over lowest peak from which rates have a logarithmic axis: below, all can be read on a linear one
)
_VERDICTS = {  # colour, marker, filled
    "better": (style.BLUE, "o", True),
    "worse": (style.ORANGE, "s", True),
    "not told apart": (style.GREY, "D", True),
    "cannot be said": (style.INK, "o", False),
}
_CROSS: Look = {"color": style.INK, "marker": "x", "linestyle": "none", "markersize": 6, "markeredgewidth": 1.6}


def figures(
    comparison: Comparison, runs: pd.DataFrame, curves: pd.DataFrame, rates: pd.DataFrame
) -> Iterator[tuple[str, Figure]]:
    """The pictures that make sense for this comparison, by name.

    curves, against-{factor} for each numeric factor, heatmap (the first two of these), differences, parallel (of two
    factors or more), rates, and profile where a factor is called corpus.
    """
    question, variants = comparison.question, comparison.variants
    if len(curves):
        yield "curves", curves_figure(curves, variants, question)
    numeric = numeric_factors(variants, question)
    for factor in numeric:
        yield f"against-{factor}", against_figure(variants, question, factor)
    for across, down in itertools.islice(itertools.combinations(numeric, 2), 1):
        yield "heatmap", heatmap_figure(variants, question, across, down)
    if len(comparison.differences):
        yield "differences", differences_figure(comparison.differences, question)
    if sum(variants[factor].nunique() > 1 for factor in question.factors) > 1:
        yield "parallel", parallel_figure(variants, question)
    if len(rates):
        yield "rates", rates_figure(rates, variants, question)
    if "corpus" in question.factors and variants["corpus"].nunique() > 1:
        yield "profile", profile_figure(runs, question)


def numeric_factors(variants: pd.DataFrame, question: Question) -> list[str]:
    """Factors with two numbers or more among their levels, those of the learning rate first."""
    found = [factor for factor in question.factors
             if sum(level in question.numbers.get(factor, {}) for level in variants[factor].unique()) > 1]  # fmt: skip
    return sorted(found, key=lambda factor: _FIRST.index(factor) if factor in _FIRST else len(_FIRST))


def curves_figure(curves: pd.DataFrame, variants: pd.DataFrame, question: Question) -> Figure:
    """The mean over seeds of the loss without dropout, with its 95% interval (Student's) as a band.

    A seed that diverged is in the mean up to its end, where there is a cross.
    """
    lines = lines_of(variants, question, list(question.factors))
    counts = variants.assign(line=_line_of(variants, lines)).groupby("line")[["diverged", "missing"]].sum()
    handles = line_handles(lines)
    for handle, line in zip(handles, (line for line in lines.looks if line not in lines.grey), strict=False):
        said = [f"{count} {kind}" for kind, count in counts.loc[line].items() if count]
        handle.set_label(f"{handle.get_label()} ({', '.join(said)})" if said else handle.get_label())
    if variants["diverged"].any():
        handles.append(Line2D([], [], **_CROSS, label="a seed diverged"))
    handles.append(note(f"mean of {seeds_of(variants)}; band: 95% interval"))
    with style.applied([*lines.names.values(), *lines.panels]):
        title = "Loss while training, without dropout"
        figure, grid = panelled(title, list(lines.panels), legend_rows(handles))
        shown = [np.empty(0)]
        for axes, part in zip(grid, lines.panels.values(), strict=True):
            over_updates(axes, "loss (nats per token)")
            for name, line in zip(part["variant"], part["line"], strict=True):
                own = curves[curves["variant"] == name]
                shown += _draw_curve(axes, own, lines.looks[line], line in lines.grey)
            gone = part.loc[part["diverged"] > 0, "variant"]
            _mark_ends(axes, curves[curves["variant"].isin(gone)], curves["step"].max())
        fit_scale(grid[0], np.concatenate(shown))
        outer_only(grid)
        set_lines_legend(figure, handles)
    return figure


def _draw_curve(axes: Axes, curve: pd.DataFrame, look: Look, grey: bool) -> list[np.ndarray]:
    if not len(curve):
        return []
    table = curve.pivot(index="step", columns="seed", values="loss").sort_index()
    mean, _, low, high = spreads(table.to_numpy(dtype=float).T)
    steps = table.index.to_numpy(dtype=float)
    places, line, _, _ = thinned(steps, mean, _POINTS)
    color, kind, order = look["color"], look["linestyle"], look["zorder"]
    axes.plot(places, line, color=color, linestyle=kind, zorder=order, linewidth=0.9 if grey else 1.8)
    if grey or np.isnan(low).all():
        return [line]
    low, high = (thinned(steps, bound, _POINTS)[1] for bound in (low, high))
    axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
    return [line, *bounded(low, high, line)]


def _mark_ends(axes: Axes, curves: pd.DataFrame, last: float) -> None:
    """A cross at the end of each curve that ended before the `last` measurement of all."""
    if len(curves):
        ends = curves.loc[curves.groupby(["variant", "seed"])["step"].idxmax()]
        short = ends[ends["step"] < last]
        axes.plot(short["step"], short["loss"], **_CROSS, zorder=4)


def against_figure(variants: pd.DataFrame, question: Question, factor: str) -> Figure:
    """The metric at the end against a numeric factor, a line for each combination of the others, with 95% intervals.

    A level without a number, such as 'none', is at the left, behind a break. A hollow mark is the mean of fewer seeds
    than there were runs; crosses at the top say how many of them diverged.
    """
    others = [name for name in question.factors if name != factor]
    lines = lines_of(variants, question, others) if others else _single(variants, question)
    scale = scale_of(variants, question, factor)
    handles = line_handles(lines) if others else []
    for handle, look in zip(handles, lines.looks.values(), strict=False):
        handle.set_marker(str(look["marker"]))
    if variants["diverged"].any():
        handles.append(Line2D([], [], **_CROSS, label="diverged (seeds of all)"))
    if (variants["n"] < asked(variants)).any():
        handles.append(Line2D([], [], color=style.GREY, marker="o", markerfacecolor="white", linestyle="none",
                              label="mean of the other seeds"))  # fmt: skip
    handles.append(note(f"mean of {seeds_of(variants)}; bar: 95% interval"))
    with style.applied([*lines.names.values(), *lines.panels, *scale.places]):
        title = f"{question.metric} at the end, against {label(factor, 30)}"
        figure, grid = panelled(title, list(lines.panels), legend_rows(handles))
        for axes, part in zip(grid, lines.panels.values(), strict=True):
            for number, (line, own) in enumerate(part.groupby("line", sort=False)):
                spread = (number - (part["line"].nunique() - 1) / 2) * 0.012
                places = {level: _shifted(scale, level, spread) for level in scale.places}
                grey = line in lines.grey
                _draw_levels(axes, own.assign(place=own[factor].map(places)), own[factor].isin(scale.apart),
                             lines.looks[str(line)], grey)  # fmt: skip
            _count_diverged(axes, part, lines, factor, scale.places)
            set_scale(axes, scale)
            axes.set_xlabel(label(factor, 30) + (" (updates)" if factor == "warmup" else ""))
            axes.set_ylabel(metric_label(question))
        means, low, high = (variants[name].to_numpy(dtype=float) for name in ("mean", "low", "high"))
        if np.isfinite(means).any():
            fit_scale(grid[0], np.concatenate([means, *bounded(low, high, means)]))
        else:
            say_instead(grid[0], "no run has a value")
        outer_only(grid)
        set_lines_legend(figure, handles)
    return figure


def _single(variants: pd.DataFrame, question: Question) -> Lines:
    look = {"color": style.BLUE, "linestyle": "-", "marker": "o", "zorder": 2}
    return Lines({"": variants.assign(line=question.metric)}, {question.metric: look}, {question.metric: ""}, set())


def _shifted(scale: Scale, level: str, part: float) -> float:
    """The place of a level, moved by a part of the axis, so that marks of several lines stand side by side."""
    low, high, place = min(scale.places.values()), max(scale.places.values()), scale.places[level]
    return place * (high / low) ** part if scale.log else place + (high - low) * part


def _draw_levels(axes: Axes, own: pd.DataFrame, apart: pd.Series, look: Look, grey: bool) -> None:
    """The means of one line: those with a number are joined, those of fewer seeds than runs are hollow."""
    own, color, order = own.sort_values("place"), look["color"], look["zorder"]
    joined = own[~apart]
    axes.plot(joined["place"], joined["mean"], color=color, zorder=order, linestyle=look["linestyle"],
              linewidth=0.9 if grey else 1.8)  # fmt: skip
    axes.vlines(own["place"], own["low"], own["high"], color=color, zorder=order, linewidth=0.8 if grey else 1.4)
    full = own["n"] == asked(own)
    for part, face in ((own[full], color), (own[~full], "white")):
        axes.plot(part["place"], part["mean"], linestyle="none", marker=look["marker"] or "o", color=color,
                  markersize=3 if grey else 6, zorder=3, markerfacecolor=face)  # fmt: skip


def _count_diverged(axes: Axes, part: pd.DataFrame, lines: Lines, factor: str, places: dict[str, float]) -> None:
    """At the top of each level a cross for each line with diverged runs, and how many of its runs they are."""
    for level, own in part[part["diverged"] > 0].groupby(factor):
        for number, (_, row) in enumerate(own.iterrows()):
            height = 0.97 - 0.055 * number
            axes.plot([places[str(level)]], [height], **_CROSS | {"color": lines.looks[row["line"]]["color"]},
                      transform=axes.get_xaxis_transform(), zorder=4)  # fmt: skip
            axes.annotate(f"{row['diverged']:.0f}/{asked(row):.0f}", (places[str(level)], height), (6, 0), fontsize=8.5,
                          va="center", xycoords=axes.get_xaxis_transform(), textcoords="offset points")  # fmt: skip


def rates_figure(rates: pd.DataFrame, variants: pd.DataFrame, question: Question) -> Figure:
    """The learning rate of each update. Variants with the same rates share a line, with the name of what they share."""
    curves = {str(name): own.sort_values("step") for name, own in rates.groupby("variant")}
    known = variants[variants["variant"].isin(curves)]
    keys = known["variant"].map(lambda name: curves[name][["step", "lr"]].to_numpy(dtype=float).tobytes())
    factors = [name for name in question.factors if _matters(known, keys, name, list(question.factors))]
    if factors and len(known[factors].drop_duplicates()) == keys.nunique():
        shared = known[~known[factors].duplicated()]
    else:  # listed variants, some of them with the same rates
        shared, factors = known[~keys.duplicated()], ["variant"]
        more = keys.value_counts()[keys[shared.index]].to_numpy() - 1
        names = [
            f"{name} and {count} more" if count else name for name, count in zip(shared["variant"], more, strict=True)
        ]
        curves |= {name: curves[old] for name, old in zip(names, shared["variant"], strict=True)}
        shared = shared.assign(variant=names)
    lines = lines_of(shared, question, factors)
    handles = line_handles(lines)
    with style.applied([*lines.names.values(), *lines.panels]):
        title = "Learning rate used at each update"
        figure, grid = panelled(title, list(lines.panels), legend_rows(handles))
        peaks = [float(curves[name]["lr"].max()) for name in shared["variant"]]
        for axes, part in zip(grid, lines.panels.values(), strict=True):
            over_updates(axes, "learning rate")
            for name, line in zip(part["variant"], part["line"], strict=True):
                steps, values = (curves[name][column].to_numpy(dtype=float) for column in ("step", "lr"))
                places, values, _, _ = thinned(steps, values, _RATE_POINTS)
                look = lines.looks[line]
                axes.plot(places, values, color=look["color"], linestyle=look["linestyle"], zorder=look["zorder"],
                          linewidth=0.9 if line in lines.grey else 1.8,
                          marker="" if len(places) > 1 else "o")  # fmt: skip
        if min(peaks) > 0 and max(peaks) / min(peaks) > _LOG_FROM:
            fit_scale(grid[0], np.array([min(peaks) / 30, max(peaks)]))
        else:
            grid[0].set_ylim(bottom=0)
        outer_only(grid)
        set_lines_legend(figure, handles)
    return figure


def _matters(variants: pd.DataFrame, keys: pd.Series, factor: str, factors: list[str]) -> bool:
    """Whether two variants that differ in this factor alone have different keys."""
    others = [name for name in factors if name != factor]
    return (
        bool((keys.groupby([variants[name] for name in others]).nunique() > 1).any()) if others else keys.nunique() > 1
    )


def differences_figure(differences: pd.DataFrame, question: Question) -> Figure:
    """The paired differences to the baseline with their 95% BCa intervals, and what the rules make of them."""
    shown = differences.head(MAX_ROWS).astype(dict.fromkeys(("difference", "low", "high"), float))
    several = shown["baseline"].nunique() > 1
    rows: list[tuple[str, pd.Series | None]] = [(str(row["variant"]), row) for _, row in shown.iterrows()]
    if several:  # a row of words above those with the same baseline
        rows = [pair for first, own in shown.groupby("baseline", sort=False) for pair in
                [(f"against {first}", None), *((str(row["variant"]), row) for _, row in own.iterrows())]]  # fmt: skip
    names = shortened(dict.fromkeys(name for name, _ in rows), 44)
    with style.applied([*names.values(), question.baseline]):
        width = 6.2 + 0.075 * max(map(columns, names.values()))
        figure = Figure(figsize=(width, 1.9 + 0.34 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0, color=style.INK, linewidth=1, zorder=1)
        for place, (_, row) in enumerate(rows):
            if row is not None:
                _draw_difference(axes, place, row)
        axes.set_yticks(range(len(rows)), [names[name] for name, _ in rows])
        for tick, (_, row) in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_fontweight("bold" if row is None else "normal")
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.06)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        better = "left" if question.direction == "lower" else "right"
        axes.set_xlabel(f"difference of {metric_label(question)}; {better} of 0 is better")
        against = "the baseline of each group" if several else label(str(shown["baseline"].iloc[0]), 40)
        more = f", first {len(shown)} of {len(differences)}" if len(shown) < len(differences) else ""
        set_title(figure, f"Paired differences to {against}, with 95% intervals{more}")
        used = [verdict for verdict in _VERDICTS if (shown["verdict"] == verdict).any()]
        set_lines_legend(figure, [_verdict_handle(verdict) for verdict in used])
    return figure


def _draw_difference(axes: Axes, place: int, row: pd.Series) -> None:
    color, marker, filled = _VERDICTS[str(row["verdict"])]
    axes.hlines(place, row["low"], row["high"], color=color, linewidth=2)
    axes.plot(row["difference"], place, marker, color=color, markersize=7, markerfacecolor=color if filled else "white")
    words = [f"{row['difference']:+.3f}" if pd.notna(row["difference"]) else "no value"]
    words += [f"[{row['low']:+.3f}, {row['high']:+.3f}]"] if pd.notna(row["low"]) else []
    words += [str(row["verdict"])]
    axes.annotate("  ".join(words).replace("-", "−"), (1.02, place), xycoords=axes.get_yaxis_transform(), fontsize=9,
                  va="center", color=color if filled and color != style.GREY else style.INK)  # fmt: skip


def _verdict_handle(verdict: str) -> Line2D:
    color, marker, filled = _VERDICTS[verdict]
    return Line2D([], [], color=color, marker=marker, markerfacecolor=color if filled else "white", label=verdict)


def _line_of(variants: pd.DataFrame, lines: Lines) -> pd.Series:
    table = pd.concat(lines.panels.values())
    return variants["variant"].map(table.set_index("variant")["line"])
