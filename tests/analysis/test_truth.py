"""A model against the truth: by hand, by simulation, and as pictures."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from stages.analysis import style
from stages.analysis.truth import agreement_table, next_word_table, paired_excess
from stages.analysis.truth_figures import MAX_PROMPTS, agreement_figure, truth_figure
from stages.text.grammar import Agreement, Grammar
from tests.analysis.test_figures import words_of


def item(feature: str = "number", distance: int = 0, attractors: int = 0) -> Agreement:
    return Agreement("el perro", "corre", "corren", feature, distance, attractors)


def test_excess_by_hand() -> None:
    # Differences 1, 2 and 3 on 1, 2 and 5 tokens: 6/8. Residuals 1/4, 1/2 and -3/4, squares 14/16.
    found = paired_excess([3.0, 5.0, 9.0], [2.0, 3.0, 6.0], [1, 2, 5])
    assert found == pytest.approx(
        {"excess": 0.75, "excess_error": math.sqrt(3 / 2 * 14 / 16) / 8, "loss": 17 / 8, "true_loss": 11 / 8}
    )


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 30)), min_size=2, max_size=20))
def test_the_truth_has_no_excess_and_no_error(sentences: list[tuple[float, int]]) -> None:
    nll, tokens = zip(*sentences, strict=True)
    found = paired_excess(nll, nll, tokens)
    assert (found["excess"], found["excess_error"]) == (0, 0)


def test_the_error_says_how_far_the_excess_of_such_samples_lies_from_the_divergence() -> None:
    """The model mixes the truth with the uniform distribution; each sample has 400 sentences of the grammar."""
    grammar, samples, size = Grammar(1), 60, 400
    uniform = 1 / (len(grammar.words) + 1)
    truth = [np.array(grammar.log_probabilities(sentence)) for sentence in grammar.sentences(samples * size, 11)]
    model = [np.log(0.9 * np.exp(words) + 0.1 * uniform) for words in truth]
    sums = [np.array([[-words.sum() for words in side] for side in (model, truth)]), [len(words) for words in truth]]
    (model_S, true_S), tokens_S = sums[0], np.array(sums[1])
    everything = paired_excess(model_S, true_S, tokens_S)
    divergence = everything["excess"]
    assert divergence is not None
    assert divergence > 0.05
    assert everything["true_loss"] == pytest.approx(grammar.floors.entropy, abs=0.01)
    parts = [slice(i, i + size) for i in range(0, samples * size, size)]
    found = [paired_excess(model_S[part], true_S[part], tokens_S[part]) for part in parts]
    scores = np.array([(one["excess"] - divergence) / one["excess_error"] for one in found])  # type: ignore[operator]
    assert scores.mean() == pytest.approx(0, abs=0.4)
    assert scores.std() == pytest.approx(1, abs=0.3)
    paired = np.mean([one["excess_error"] for one in found])  # type: ignore[type-var]
    assert paired < 0.3 * np.std([one["loss"] for one in found])  # type: ignore[type-var]


def test_one_sentence_has_an_excess_and_no_error() -> None:
    assert paired_excess([3.0], [2.0], [4]) == {"excess": 0.25, "excess_error": None, "loss": 0.75, "true_loss": 0.5}


def test_a_model_that_is_not_finite_has_no_excess() -> None:
    found = paired_excess([3.0, math.nan], [2.0, 3.0], [1, 2])
    assert found == {"excess": None, "excess_error": None, "loss": None, "true_loss": pytest.approx(5 / 3)}
    assert paired_excess([3.0, math.inf], [2.0, 3.0], [1, 2])["excess"] is None


def test_no_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="no sentences to compare on"):
        paired_excess([], [], [])


def test_agreement_is_counted_by_feature_distance_and_attractors() -> None:
    items = [item(), item(), item(distance=4, attractors=1), item("gender", 2)]
    rows = pd.DataFrame(agreement_table(items, [-1.0, -2.0, -1.0, -3.0], [-2.0, -1.0, -4.0, -1.0]))
    found = [tuple(row) for row in rows.fillna(-1)[["feature", "by", "value", "items", "right"]].to_numpy().tolist()]
    assert found == [
        ("gender", "all", -1, 1, 0),
        ("gender", "distance", 2, 1, 0),
        ("gender", "attractors", 0, 1, 0),
        ("number", "all", -1, 3, 2),
        ("number", "distance", 0, 2, 1),
        ("number", "distance", 4, 1, 1),
        ("number", "attractors", 0, 2, 1),
        ("number", "attractors", 1, 1, 1),
    ]
    assert list(rows["accuracy"]) == pytest.approx(list(rows["right"] / rows["items"]))


def test_its_intervals_are_wilsons() -> None:
    row = agreement_table([item()] * 10, [0.0] * 10, [-1.0] * 8 + [1.0] * 2)[0]
    # (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n) with p = 0.8, n = 10, z = 1.95996
    assert (row["low"], row["high"]) == pytest.approx((0.490162, 0.943318), abs=1e-6)


def test_ties_and_numbers_that_are_not_finite_are_not_right() -> None:
    row = agreement_table([item()] * 3, [-1.0, math.nan, -1.0], [-1.0, -1.0, math.nan])[0]
    assert (row["items"], row["right"]) == (3, 0)
    assert agreement_table([], [], []) == []


def test_each_item_needs_its_two_numbers() -> None:
    with pytest.raises(ValueError, match="zip"):
        agreement_table([item()], [1.0, 2.0], [0.0, 0.0])


def test_next_words_side_by_side() -> None:
    truth, model = {"el": 0.75, "la": 0.25}, {"la": 0.5, "el": 0.375, "que": 0.125}
    assert next_word_table("", truth, model) == [
        {"prompt": "", "word": "el", "truth": 0.75, "model": 0.375},
        {"prompt": "", "word": "la", "truth": 0.25, "model": 0.5},
        {"prompt": "", "word": "que", "truth": 0.0, "model": 0.125},
    ]
    assert next_word_table("", {"el": 1.0}, {"el": math.nan})[0]["model"] is None


def compared(*prompts: str, model: float = 0.5) -> Figure:
    truth = {"el": 0.75, "la": 0.25}
    rows = [next_word_table(prompt, truth, {"el": 0.0, "la": model, "que": 1 - model}) for prompt in prompts]
    return truth_figure(pd.DataFrame([row for part in rows for row in part]))


def test_the_picture_has_each_possible_word_and_says_how_far_apart_the_two_are() -> None:
    figure = compared("el perro", "la niña que")
    (axes,) = figure.axes
    diagonal, *dots = axes.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    assert len(dots) == 2
    assert list(dots[0].get_xdata()) == [0.75, 0.25]
    low, _ = axes.get_ylim()
    assert list(dots[0].get_ydata()) == [low, 0.5]  # of a word that the model excludes, at the edge
    assert "“el perro”: total variation 0.750, impossible words 0.500" in words_of(figure)
    style.rendered(figure)
    ticks = [text.get_text() for axis in (axes.xaxis, axes.yaxis) for text in axis.get_ticklabels()]
    assert "0.5" in ticks
    assert not [tick for tick in ticks if "$" in tick]


def test_of_many_prompts_the_first_are_drawn_and_the_title_says_so() -> None:
    figure = compared(*(f"prompt {i}" for i in range(9)))
    assert len(figure.axes[0].lines) == 1 + MAX_PROMPTS
    assert f"Next words: the model and the truth, first {MAX_PROMPTS} of 9 prompts" in words_of(figure)


def test_a_model_without_finite_numbers_is_drawn_as_such() -> None:
    figure = compared("el perro", model=math.nan)
    assert "“el perro”: not finite" in words_of(figure)
    assert style.rendered(figure)["svg"]


def test_no_prompts_are_no_obstacle() -> None:
    figure = truth_figure(pd.DataFrame(columns=["prompt", "word", "truth", "model"]))
    assert "no prompt is the beginning of a sentence of the grammar" in words_of(figure)
    assert style.rendered(figure)["svg"]


def test_the_picture_of_agreement_has_the_shares_and_their_intervals() -> None:
    items = [item(distance=i % 3, attractors=i % 2) for i in range(60)] + [item("gender", 1)] * 4
    table = pd.DataFrame(agreement_table(items, [float(i % 5 > 0) for i in range(64)], [0.5] * 64))
    figure = agreement_figure(table)
    left, right = figure.axes
    bars = [one for one in left.containers if isinstance(one, ErrorbarContainer)]
    number, gender = bars
    assert number.lines[0].get_xdata() == pytest.approx([0, 1, 2], abs=0.2)
    rows = table[(table["feature"] == "number") & (table["by"] == "distance")]
    assert list(number.lines[0].get_ydata()) == list(rows["accuracy"])
    ends = [segment[:, 1].tolist() for segment in number.lines[2][0].get_segments()]
    assert ends == pytest.approx(rows[["low", "high"]].to_numpy())
    assert len(gender.lines[0].get_xdata()) == 1
    assert len(right.containers) == 2
    assert "verb and subject: number, 48 of 60 right (80.0%)" in words_of(figure)
    assert left.get_ylim()[0] <= table["low"].min()
    assert style.rendered(figure)["svg"]


def test_one_feature_or_none_is_drawn() -> None:
    assert style.rendered(agreement_figure(pd.DataFrame(agreement_table([item()], [1.0], [0.0]))))["svg"]
    figure = agreement_figure(pd.DataFrame(agreement_table([], [], [])))
    assert "no place of agreement" in words_of(figure)
    assert style.rendered(figure)["svg"]
