"""Heatmaps name each word, keep the scale from 0 to 1 and a bounded size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from stages.analysis import heatmaps, style


def attention(layers: int, heads: int, tokens: int) -> np.ndarray:
    weights = np.tril(np.random.default_rng(0).gamma(0.5, 1, (layers, heads, tokens, tokens)) + 1e-3)
    return weights / weights.sum(-1, keepdims=True)


def one_head(words: list[str]) -> Figure:
    weights = attention(1, 1, len(words))[0, 0]
    return heatmaps.attention_figure(pd.DataFrame(weights, words, words), layer=2, head=7)


def tick_words(figure: Figure) -> tuple[list[str], list[str]]:
    axes = figure.axes[0]
    return [t.get_text() for t in axes.get_xticklabels()], [t.get_text() for t in axes.get_yticklabels()]


def test_each_word_has_its_tick_also_when_it_comes_twice() -> None:
    words = ["[bos]", "el", "perro", "el"]
    assert tick_words(one_head(words)) == (words, words)


def test_weights_that_are_not_finite_are_dashes() -> None:
    words = ["[bos]", "un"]
    nothing = pd.DataFrame(np.full((2, 2), np.nan), words, words)
    figure = heatmaps.attention_figure(nothing, layer=0, head=0)
    assert [text.get_text() for text in figure.axes[0].texts] == ["–"] * 3
    overview = heatmaps.overview_figure(np.full((1, 2, 2, 2), np.nan), words, prompt="[bos] un")
    assert style.rendered(figure)["svg"]
    assert style.rendered(overview)["svg"]


def test_cells_hold_the_weights_on_a_fixed_scale_with_the_future_apart() -> None:
    figure = one_head(["[bos]", "un", "gato"])
    (image,) = figure.axes[0].images
    assert image.get_clim() == (0, 1)
    shown = np.asarray(image.get_array())
    expected = attention(1, 1, 3)[0, 0]
    lower = np.tril_indices(3)
    assert np.array_equal(shown[lower], expected[lower])
    assert (shown[np.triu_indices(3, 1)] < 0).all()
    assert [t.get_text() for t in figure.axes[0].texts] == [f"{value:.2f}" for value in expected[lower]]


def test_the_title_names_layer_and_head() -> None:
    assert one_head(["a", "b"]).get_suptitle() == "Attention, layer 2, head 7"


def test_a_long_prompt_names_fewer_words() -> None:
    words = [f"w{i}" for i in range(200)]
    across, down = tick_words(one_head(words))
    assert across == down == words[::4]
    assert not one_head(words).axes[0].texts


@pytest.mark.parametrize("tokens", [1, 2, 9, 40, 200])
@pytest.mark.parametrize("length", [1, 60])
def test_sizes_are_bounded_and_nothing_is_cut_off(tokens: int, length: int) -> None:
    figure = one_head(["x" * length] * tokens)
    assert max(figure.get_size_inches()) <= 12.5
    style.rendered(figure)
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def test_the_overview_has_each_head_in_its_place() -> None:
    weights = attention(2, 3, 4)
    figure = heatmaps.overview_figure(weights, ["[bos]", "un", "gato", "come"], prompt="[bos] un gato come")
    shown = np.asarray(figure.axes[0].images[0].get_array())
    lower = np.tril_indices(4)
    for layer in range(2):
        for head in range(3):
            block = shown[layer * 5 : layer * 5 + 4, head * 5 : head * 5 + 4]
            assert np.array_equal(block[lower], weights[layer, head][lower])
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert labels == ["head 0", "head 1", "head 2", "layer 0", "layer 1"]
    assert tick_words(figure) == (["[bos]", "un", "gato", "come"] * 3, ["[bos]", "un", "gato", "come"] * 2)


@pytest.mark.parametrize(("layers", "heads", "tokens"), [(1, 5, 1), (12, 12, 4), (12, 12, 48), (1, 64, 4), (24, 1, 30)])
def test_the_overview_stays_bounded(layers: int, heads: int, tokens: int) -> None:
    figure = heatmaps.overview_figure(attention(layers, heads, tokens), ["palabra"] * tokens, prompt="p " * 60)
    assert max(figure.get_size_inches()) <= 12.5
    assert style.rendered(figure)["png"].startswith(b"\x89PNG")
