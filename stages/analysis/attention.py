"""What the heads of a model do with a prompt, in numbers.

Every measure is a mean over the queries that have a choice: those from the second token on (the first sees itself
alone). Where they come from:

entropy, bos, previous   Clark et al. 2019, "What Does BERT Look At?", section 3
distance                 Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model"
divergence               Clark et al. 2019, section 6: the Jensen-Shannon divergence between the rows of two heads

Shapes: L layers, H heads, N = L · H, T tokens, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import entr

from stages.analysis import style
from stages.analysis.axes import set_title
from stages.analysis.fonts import label

COLUMNS = ("layer", "head", "entropy", "relative_entropy", "distance", "bos", "previous", "self", "divergence")
_MAX_QUERIES = 64  # compared between each two heads; of a longer prompt, evenly spaced ones
_NUMBERS_UP_TO = (8, 8)  # layers and heads up to which each cell of the figure shows its value
_PANELS = (  # column, title, highest value (None: of the data)
    ("relative_entropy", "entropy / highest possible", 1.0),
    ("distance", "mean distance (tokens)", None),
    ("divergence", "divergence of heads (nats)", math.log(2)),
    ("bos", "share on [bos]", 1.0),
    ("previous", "share on the token before", 1.0),
    ("self", "share on itself", 1.0),
)


def attention_statistics(attention_LHTT: np.ndarray) -> pd.DataFrame:  # noqa: N803 (shapes)
    """The measures of each head over one prompt.

    Args:
        attention_LHTT: weights [L, H, T, T]; rows (queries) sum to 1, and the future has none.

    Returns:
        A row a head, with the columns `COLUMNS`, the last of which are:

        entropy: of a row, in nats: 0 for all weight on one key.
        relative_entropy: likewise over the logarithm of the number of visible keys: 1 for equal weights.
        distance: of query and key, in tokens, weighted by the attention.
        bos, previous, self: share of the weight on the first token ([bos], unless a prompt longer than the model's
            window lost it), on the token before the query, and on the query. On the second token `bos` is `previous`.
        divergence: mean Jensen-Shannon divergence from all other heads, in nats, from 0 to ln 2.

        NaN where there is nothing to measure (one token, one head), and of a model that diverged.
    """
    layers, heads, count, _ = attention_LHTT.shape
    layer_N, head_N = (places.ravel() for places in np.indices((layers, heads)))  # noqa: N806 (shapes)
    weights_NQK = attention_LHTT.reshape(-1, count, count)[:, 1:].astype(np.float64)  # noqa: N806 (shapes)
    if count == 1:
        return pd.DataFrame({"layer": layer_N, "head": head_N, **dict.fromkeys(COLUMNS[2:], math.nan)})
    query_Q = np.arange(1, count)  # noqa: N806 (shapes)
    highest_Q = np.array([math.log(keys) for keys in query_Q + 1])  # noqa: N806 (NumPy's logarithm differs by machine)
    entropy_NQ = entr(weights_NQK).sum(axis=2)  # noqa: N806 (shapes)
    distance_QK = np.maximum(query_Q[:, None] - np.arange(count), 0)  # noqa: N806 (shapes)
    divergence_NN = head_divergence(attention_LHTT)  # noqa: N806 (shapes)
    others = len(divergence_NN) - 1
    return pd.DataFrame(
        {
            "layer": layer_N,
            "head": head_N,
            "entropy": entropy_NQ.mean(axis=1),
            "relative_entropy": (entropy_NQ / highest_Q).mean(axis=1),
            "distance": (weights_NQK * distance_QK).sum(axis=2).mean(axis=1),
            "bos": weights_NQK[:, :, 0].mean(axis=1),
            "previous": weights_NQK[:, query_Q - 1, query_Q - 1].mean(axis=1),
            "self": weights_NQK[:, query_Q - 1, query_Q].mean(axis=1),
            "divergence": divergence_NN.sum(axis=1) / others if others else np.nan,
        },
        columns=list(COLUMNS),
    )


def head_divergence(attention_LHTT: np.ndarray) -> np.ndarray:  # noqa: N803 (shapes)
    """Jensen-Shannon divergence between each two heads, in nats, mean over queries: [N, N], layer after layer.

    Of prompts with more than 65 tokens, 64 evenly spaced queries are compared. NaN of a single token.
    """
    count = attention_LHTT.shape[-1]
    number = attention_LHTT.shape[0] * attention_LHTT.shape[1]
    if count == 1:
        return np.full((number, number), np.nan)
    queries = np.unique(np.linspace(1, count - 1, min(count - 1, _MAX_QUERIES)).round().astype(int))
    rows_NQK = attention_LHTT.reshape(number, count, count)[:, queries].astype(np.float64)  # noqa: N806 (shapes)
    entropy_N = entr(rows_NQK).sum(axis=2).mean(axis=1)  # noqa: N806 (shapes)
    found_NN = np.zeros((number, number))  # noqa: N806 (shapes)
    for i in range(number):  # one head against all later ones: all pairs at once would not fit in memory
        middle = entr((rows_NQK[i] + rows_NQK[i + 1 :]) / 2).sum(axis=2).mean(axis=1)
        found_NN[i, i + 1 :] = np.maximum(middle - (entropy_N[i] + entropy_N[i + 1 :]) / 2, 0.0)
    return found_NN + found_NN.T


def attention_statistics_figure(statistics: pd.DataFrame, *, prompt: str) -> Figure:
    """The measures of all heads over one prompt: a panel a measure, a row a layer, a column a head."""
    title = label(prompt, 48)
    layers, heads = int(statistics["layer"].max()) + 1, int(statistics["head"].max()) + 1
    with style.applied([title]):
        height = min(10.0, max(style.SLIDE[1], 1.6 + 2 * 0.34 * layers))
        figure = Figure(figsize=(style.SLIDE[0] if heads <= 12 else 11.0, height), layout="constrained")
        panels: Sequence[Axes] = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
        for axes, (name, words, top) in zip(panels, _PANELS, strict=True):
            table = statistics.pivot(index="layer", columns="head", values=name)
            values = table.to_numpy(dtype=float)
            axes.set_title(words, fontsize=9.5)
            highest = top if top is not None else float(np.nan_to_num(values).max())
            image = axes.imshow(values, cmap="Blues", vmin=0, vmax=highest or 1.0, aspect="auto", interpolation="none")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
            axes.yaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
            if np.isnan(values).all():
                axes.text(0.5, 0.5, "–", transform=axes.transAxes, ha="center", va="center", color=style.GREY)
            elif layers <= _NUMBERS_UP_TO[0] and heads <= _NUMBERS_UP_TO[1]:
                write_values(axes, values, highest or 1.0)
            else:
                figure.colorbar(image, ax=axes).outline.set_visible(False)
        for axes in panels[3:]:
            axes.set_xlabel("head")
        for axes in (panels[0], panels[3]):
            axes.set_ylabel("layer")
        set_title(figure, f"What the heads do on “{title}”")
    return figure


def write_values(axes: Axes, values: np.ndarray, highest: float) -> None:
    """The value of each cell, in a colour that is read on its ground."""
    for (row, column), value in np.ndenumerate(values):
        if not math.isnan(value):
            color = "white" if value > 0.55 * highest else style.INK
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
