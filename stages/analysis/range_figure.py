"""The picture of a learning-rate range test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from stages.analysis import style
from stages.analysis.axes import fit_scale, set_legend, set_title


def table(points: Iterable[Any]) -> pd.DataFrame:
    """One row an update: `lr`, `loss`, `smoothed`, from records with these fields."""
    return pd.DataFrame([asdict(point) for point in points], columns=["lr", "loss", "smoothed"])


def range_figure(points: pd.DataFrame, suggested: float, lowest: float) -> Figure:
    """Loss in nats a token against the rate of each update.

    Args:
        points: columns `lr`, `loss`, `smoothed`.
        suggested: the peak rate to start from.
        lowest: the rate at which the smoothed loss was lowest.
    """
    with style.applied():
        figure = Figure(figsize=style.SLIDE, layout="constrained")
        axes = figure.add_subplot()
        axes.plot(points["lr"], points["loss"], color=style.BLUE, alpha=0.3, linewidth=0.8, label="each update")
        axes.plot(points["lr"], points["smoothed"], color=style.BLUE, label="smoothed")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axes.axvline(suggested, color=style.ORANGE, label=f"suggested peak: {suggested:.3g}")
        axes.axvline(lowest, color=style.GREY, linestyle=":", label=f"lowest: {lowest:.3g}")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss (nats/token)")
        axes.grid(axis="y")
        fit_scale(axes, points["smoothed"].to_numpy())
        set_title(figure, "Range test of the learning rate")
        set_legend(figure)
    return figure
