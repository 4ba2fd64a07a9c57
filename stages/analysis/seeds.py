"""Replicas: runs that differ in nothing but the seed, each for itself and together.

Columns of the tables: `curves` seed, step, loss (of the measurements of each replica); `mean` as `validation` of
several replicas in `stages.analysis.figures`; `finals` seed, loss (missing where not finite), diverged_at (missing
where it did not).
"""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from stages.analysis import style
from stages.analysis.axes import (
    bounded,
    draw_measured,
    fit_scale,
    over_seeds,
    over_updates,
    say_instead,
    set_legend,
    set_title,
    thinned,
    whole,
)
from stages.analysis.outcome import Measure

MAX_CURVES = 100  # replicas whose curves are drawn
MAX_CURVE_POINTS = 300
_MAX_LISTED = 6  # diverged replicas that the figure lists; the report has them all
_SEEDS_WIDE = 25  # characters for which there is room below the dots


def replicas_figure(
    curves: pd.DataFrame, mean: pd.DataFrame, finals: pd.DataFrame, over: Measure, *, text: str
) -> Figure:
    """Every replica's loss without dropout on `text` and their mean; beside it the final ones, and `over` of them."""
    with style.applied():
        figure = Figure(figsize=(style.SLIDE[0], 5.0), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[5, 3])
        over_updates(left, "loss (nats per token)")
        _draw_curves(left, curves, mean, finals)
        _draw_finals(right, finals, over)
        set_title(figure, f"Loss of {whole(len(finals))} seeds on the {text}, without dropout")
        set_legend(figure)
    return figure


def _draw_curves(axes: Axes, curves: pd.DataFrame, mean: pd.DataFrame, finals: pd.DataFrame) -> None:
    groups = list(curves.groupby("seed"))
    diverged = set(finals.loc[finals["diverged_at"].notna(), "seed"])
    name = "each seed" if len(groups) <= MAX_CURVES else f"each of the first {MAX_CURVES} seeds"
    lines: list[np.ndarray] = [np.empty(0)]
    ends = []
    for seed, curve in groups[:MAX_CURVES]:
        x, y = curve["step"].to_numpy(dtype=float), curve["loss"].to_numpy(dtype=float)
        steps, losses, _, _ = thinned(x, y, MAX_CURVE_POINTS)
        axes.plot(steps, losses, color=style.BLUE, linewidth=0.8, alpha=0.5, label=name if len(lines) == 1 else "")
        lines.append(losses)
        if seed in diverged:
            ends.append((x[-1], y[-1]))
    if len(mean):
        lines += draw_measured(axes, mean, over_seeds(mean).strip(" ()"))
    for x, y in ends:
        axes.plot(x, y, "x", color=style.INK, markersize=7, zorder=3)
    fit_scale(axes, np.concatenate(lines))


def _draw_finals(axes: Axes, finals: pd.DataFrame, over: Measure) -> None:
    """A dot a seed, the mean as a line and its 95% interval as a band; a cross for each that diverged."""
    losses = finals["loss"].to_numpy(dtype=float)
    gone = finals["diverged_at"].notna().to_numpy()
    finite = np.isfinite(losses)
    places = np.arange(len(finals))
    size = 6 if len(finals) <= 40 else 3
    if (kept := finite & ~gone).any():
        axes.plot(places[kept], losses[kept], "o", color=style.BLUE, markersize=size, label="final loss")
    axes.plot(places[finite & gone], losses[finite & gone], "x", color=style.INK, markersize=size + 1)
    lost = places[~finite]  # at the top, wherever that is
    axes.plot(lost, np.full(len(lost), 0.96), "x", color=style.INK, markersize=size + 1,
              transform=axes.get_xaxis_transform())  # fmt: skip
    scaled = [losses[finite]]
    if over.value is not None:
        who = "" if over.runs == over.of else f" over {whole(over.runs)} of {whole(over.of)} seeds"
        name = f"its mean{who}: {over.value:.4g}"
        if over.low is not None and over.high is not None:
            name += f", 95% interval {over.low:.4g} to {over.high:.4g}"
            axes.axhspan(over.low, over.high, color=style.ORANGE, alpha=0.2, linewidth=0)
            scaled += bounded(np.array([over.low]), np.array([over.high]), losses)
        axes.axhline(over.value, color=style.ORANGE, label=name)
    if gone.any() or len(lost):
        axes.plot([], [], "x", color=style.INK, label=_listed(finals[gone]) if gone.any() else "not finite")
    axes.set_xlabel("seed")
    axes.set_ylabel("final loss")
    axes.grid(axis="y")
    axes.set_xlim(-0.6, len(finals) - 0.4)
    seeds = [str(seed) for seed in finals["seed"]]
    widest = max(map(len, seeds))
    few = range(len(seeds)) if len(seeds) * widest <= _SEEDS_WIDE else range(0, len(seeds), max(1, len(seeds) - 1))
    many = len(few) < len(seeds) and widest <= _SEEDS_WIDE / 5
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True) if many else FixedLocator(list(few)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda place, _: seeds[round(place)] if 0 <= place < len(seeds) else "")
    )
    fit_scale(axes, np.concatenate(scaled))
    if not finite.any():
        say_instead(axes, "none is finite")


def _listed(gone: pd.DataFrame) -> str:
    """The replicas that diverged, and where."""
    pairs = zip(gone["seed"], gone["diverged_at"], strict=True)
    parts = [f"seed\xa0{seed}\xa0at\xa0update\xa0{whole(at)}" for seed, at in pairs]  # lines break between them
    more = f" and\xa0{len(parts) - _MAX_LISTED}\xa0more" if len(parts) > _MAX_LISTED else ""
    return textwrap.fill(f"diverged: {', '.join(parts[:_MAX_LISTED])}{more}", 52)
