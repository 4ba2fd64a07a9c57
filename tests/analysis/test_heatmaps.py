"""Heatmaps name each word, keep the scale from 0 to 1 and a bounded size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from stages.analysis import fonts, heatmaps, style

AWKWARD = ["\n", " ", "\t", "👩\u200d👩\u200d👧", "القطة", "$x_1$", "x" * 200, "el", "\u200d", "ᠮᠤᠤᠷ"]


def attention(layers: int, heads: int, tokens: int) -> np.ndarray:
    weights = np.tril(np.random.default_rng(0).gamma(0.5, 1, (layers, heads, tokens, tokens)) + 1e-3)
    return weights / weights.sum(-1, keepdims=True)


def one_head(words: list[str]) -> Figure:
    weights = attention(1, 1, len(words))[0, 0]
    return heatmaps.attention_figure(pd.DataFrame(weights, words, words), layer=2, head=7)


def tick_words(figure: Figure) -> tuple[list[str], list[str]]:
    axes = figure.axes[0]
    return [t.get_text() for t in axes.get_xticklabels()], [t.get_text() for t in axes.get_yticklabels()]


def words_for(count: int) -> list[str]:
    return ["[bos]", *(AWKWARD * count)][:count]


def assert_whole(figure: Figure) -> None:
    """Drawn without a warning, nothing cut off, and no larger than the module says."""
    assert max(figure.get_size_inches()) * style.DPI <= 2500
    assert style.rendered(figure)["png"].startswith(b"\x89PNG")
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height


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
    assert_whole(one_head(["x" * length] * tokens))


@pytest.mark.parametrize("tokens", [1, 2, 9, 64, 300])
def test_any_word_is_drawn_in_prompts_of_any_length(tokens: int) -> None:
    words = words_for(tokens)
    figure = one_head(words)
    across, down = tick_words(figure)
    assert across == down == [fonts.label(fonts.visible(word)) for word in words[:: -(-tokens // 64)]]
    assert all(text.strip() for text in across)
    assert_whole(figure)
    assert_whole(heatmaps.overview_figure(attention(2, 3, tokens), words, prompt=" ".join(words)))


def test_mathematics_is_not_read_into_words() -> None:
    figure = one_head(["[bos]", "$x_1$"])
    ticks = figure.axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["[bos]", "$x_1$"]
    assert not any(tick.get_parse_math() for tick in ticks)
    assert style.rendered(figure) != style.rendered(one_head(["[bos]", "x1"]))


def test_of_a_very_long_prompt_neighbours_share_a_cell_that_shows_the_highest() -> None:
    weights = np.zeros((2000, 2000))
    weights[np.arange(2000), np.arange(2000)] = 1
    weights[1999, 5] = 0.5
    words = [f"w{i}" for i in range(2000)]
    figure = heatmaps.attention_figure(pd.DataFrame(weights, words, words), layer=0, head=0)
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown.shape == (667, 667)
    assert (np.diag(shown) == 1).all()
    assert shown[666, 1] == 0.5
    assert figure.get_suptitle() == "Attention, layer 0, head 0 (highest of each 3 × 3)"
    across, _ = tick_words(figure)
    assert across[:3] == ["w0", "w33", "w66"]
    assert_whole(figure)


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


@pytest.mark.parametrize(
    ("layers", "heads", "tokens"),
    [(1, 5, 1), (12, 12, 4), (12, 12, 48), (1, 64, 4), (24, 1, 30), (1, 5, 300), (12, 12, 300)],
)
def test_the_overview_stays_bounded(layers: int, heads: int, tokens: int) -> None:
    assert_whole(heatmaps.overview_figure(attention(layers, heads, tokens), ["palabra"] * tokens, prompt="p " * 60))


def test_the_overview_of_a_long_prompt_says_what_its_cells_are() -> None:
    figure = heatmaps.overview_figure(attention(2, 5, 300), ["w"] * 300, prompt="w")
    assert figure.get_suptitle() == "Attention of every head: “w” (highest of each 3 × 3)"


WORDS = ["[bos]", "un", "gato", "come"]


def snapshots(count: int, layers: int = 2, heads: int = 3) -> np.ndarray:
    return np.stack([attention(layers, heads, 4) ** (1 + i) for i in range(count)])


@pytest.mark.parametrize(("layer", "rows"), [(None, 2), (1, 3)])
def test_snapshots_of_the_training_side_by_side(layer: int | None, rows: int) -> None:
    maps = snapshots(3)
    figure = heatmaps.attention_over_training_figure(maps, [0, 10, 2700], WORDS, prompt="un gato", layer=layer)
    texts = [text.get_text() for text in figure.axes[0].texts]
    row_name = "layer" if layer is None else "head"
    assert texts == ["update 0", "update 10", "update 2\u202f700", *(f"{row_name} {i}" for i in range(rows))]
    shown = np.asarray(figure.axes[0].images[0].get_array())
    lower = np.tril_indices(4)
    for row in range(rows):
        for column in range(3):
            expected = maps[column, row].mean(axis=0) if layer is None else maps[column, layer, row]
            block = shown[row * 5 : row * 5 + 4, column * 5 : column * 5 + 4]
            assert np.array_equal(block[lower], expected[lower])
    assert_whole(figure)


def test_of_many_snapshots_the_first_the_last_and_some_between_are_shown() -> None:
    maps = snapshots(40, heads=64)
    figure = heatmaps.attention_over_training_figure(maps, list(range(0, 400, 10)), WORDS, prompt="p " * 60, layer=0)
    texts = [text.get_text().split()[-1] for text in figure.axes[0].texts]
    assert texts == ["0", "60", "110", "170", "220", "280", "330", "390", *(str(i) for i in range(12))]
    assert "first 12 of 64 heads" in figure.get_suptitle()
    assert_whole(figure)


def test_each_snapshot_needs_its_update() -> None:
    with pytest.raises(ValueError, match="2 steps for 3 snapshots"):
        heatmaps.attention_over_training_figure(snapshots(3), [0, 1], WORDS, prompt="")
