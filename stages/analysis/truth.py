"""A model against the grammar that its text was drawn from: how many nats it loses, and whether it agrees.

Pure functions over numbers. Who calls them scores the model, on sentences drawn anew: the held-out ones of a corpus are
those that the training text happens not to have, which no grammar draws.

Shapes: S sentences, N items.
"""

# ruff: noqa: N803, N806 (shape suffixes)

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.text.grammar import Agreement

Numbers = Sequence[float] | Sequence[int] | npt.NDArray[np.float64] | npt.NDArray[np.int64]


def paired_excess(model_nll_S: Numbers, true_nll_S: Numbers, tokens_S: Numbers) -> dict[str, float | None]:
    """How far the model lies above the truth, in nats a token, both measured on the same sentences.

    Args:
        model_nll_S: nats that the model gives each sentence, its end included;
        true_nll_S: nats of the grammar;
        tokens_S: number of tokens.

    Returns:
        `excess`: Σ (model − truth) / Σ tokens, which estimates the Kullback-Leibler divergence a token. What the
        sentences have in common cancels, so it is known far better than either loss.
        `excess_error`: its standard error over sentences, as a ratio of means (Cochran 1977, chapter 6).
        `loss`, `true_loss`: the two in themselves.
        None is what is not finite, and the error of a single sentence.

    Raises:
        ValueError: no sentences.
    """
    model_S, true_S, size_S = (np.asarray(values, dtype=np.float64) for values in (model_nll_S, true_nll_S, tokens_S))
    sentences, tokens = len(size_S), size_S.sum()
    if not sentences:
        raise ValueError("no sentences to compare on")
    difference_S = model_S - true_S
    excess = difference_S.sum() / tokens
    with np.errstate(invalid="ignore"):  # of a model that is infinitely wrong
        squares = np.square(difference_S - excess * size_S).sum()
    error = math.sqrt(sentences / (sentences - 1) * squares) / tokens if sentences > 1 else math.nan
    found = {
        "excess": excess,
        "excess_error": error,
        "loss": model_S.sum() / tokens,
        "true_loss": true_S.sum() / tokens,
    }
    return {name: float(value) if math.isfinite(value) else None for name, value in found.items()}


def agreement_table(
    items: Sequence[Agreement], right_log_probability_N: Numbers, wrong_log_probability_N: Numbers
) -> list[dict[str, Any]]:
    """How often the model finds the right word more likely than the wrong one (Linzen et al. 2016).

    A row for each feature and, within it, for all items (`by` is 'all', `value` null), for each distance and for each
    number of attractors: `feature`, `by`, `value`, `items`, `right`, `accuracy`, and the bounds `low` and `high` of its
    95% interval (Wilson 1927), which takes the items for independent. Equal probabilities and those that are not finite
    are not right.
    """
    from scipy.stats import binomtest  # 1 s that only such tables need

    right_N = np.asarray(right_log_probability_N, dtype=np.float64) > np.asarray(wrong_log_probability_N)
    groups: defaultdict[tuple[str, str, int | None], list[bool]] = defaultdict(list)
    for item, right in zip(items, right_N.tolist(), strict=True):
        for by, value in (("all", None), ("distance", item.distance), ("attractors", item.attractors)):
            groups[item.feature, by, value].append(right)
    rows = []
    for (feature, by, value), found in sorted(groups.items(), key=_in_order):
        interval = binomtest(sum(found), len(found)).proportion_ci(method="wilson")
        rows.append(
            {
                "feature": feature,
                "by": by,
                "value": value,
                "items": len(found),
                "right": sum(found),
                "accuracy": sum(found) / len(found),
                "low": float(interval.low),
                "high": float(interval.high),
            }
        )
    return rows


def next_word_table(prompt: str, truth: Mapping[str, float], model: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each word that either of the two may say after the prompt: `prompt`, `word`, `truth`, `model`.

    Both are whole distributions; what is not finite becomes None. Most likely in truth first, equal ones in order of
    the word.
    """
    words = sorted({*truth, *model}, key=lambda word: (-truth.get(word, 0.0), word))
    pairs = [(truth.get(word, 0.0), model.get(word, 0.0)) for word in words]
    return [
        {"prompt": prompt, "word": word, "truth": true, "model": ours if math.isfinite(ours) else None}
        for word, (true, ours) in zip(words, pairs, strict=True)
    ]


def _in_order(group: tuple[tuple[str, str, int | None], list[bool]]) -> tuple[str, int, int]:
    feature, by, value = group[0]
    return feature, ("all", "distance", "attractors").index(by), value or 0
