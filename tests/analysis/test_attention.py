"""The numbers of the heads against cases that are known by hand, and against their own definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.analysis import style
from stages.analysis.attention import COLUMNS, attention_statistics, attention_statistics_figure, head_divergence


def random_attention(*shape: int, seed: int = 0) -> np.ndarray:
    weights = np.tril(np.random.default_rng(seed).gamma(0.5, 1, shape) + 1e-3)
    return weights / weights.sum(-1, keepdims=True)


def looking(kind: str, count: int) -> np.ndarray:
    """The map of a head that does one thing only."""
    weights = np.zeros((count, count))
    for query in range(count):
        if kind == "equal":
            weights[query, : query + 1] = 1 / (query + 1)
        else:
            weights[query, {"bos": 0, "previous": max(query - 1, 0), "self": query}[kind]] = 1
    return weights


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bos", {"entropy": 0, "relative_entropy": 0, "distance": 2.0, "bos": 1, "previous": 1 / 3, "self": 0}),
        ("previous", {"entropy": 0, "relative_entropy": 0, "distance": 1.0, "bos": 1 / 3, "previous": 1, "self": 0}),
        ("self", {"entropy": 0, "relative_entropy": 0, "distance": 0.0, "bos": 0, "previous": 0, "self": 1}),
        (
            "equal",
            {
                "entropy": (math.log(2) + math.log(3) + math.log(4)) / 3,
                "relative_entropy": 1,
                "distance": (1 / 2 + 3 / 3 + 6 / 4) / 3,
                "bos": (1 / 2 + 1 / 3 + 1 / 4) / 3,
                "previous": (1 / 2 + 1 / 3 + 1 / 4) / 3,
                "self": (1 / 2 + 1 / 3 + 1 / 4) / 3,
            },
        ),
    ],
)
def test_heads_that_do_one_thing_only(kind: str, expected: dict[str, float]) -> None:
    frame = attention_statistics(looking(kind, 4)[None, None])
    assert tuple(frame.columns) == COLUMNS
    assert frame.loc[0, list(expected)].to_dict() == pytest.approx(expected)
    assert math.isnan(frame["divergence"].item())  # there is no other head


def test_a_row_a_head_layer_after_layer() -> None:
    weights = random_attention(2, 3, 5, 5)
    frame = attention_statistics(weights)
    assert list(zip(frame["layer"], frame["head"], strict=True)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    alone = attention_statistics(weights[1:, 2:])
    measures = list(COLUMNS[2:-1])
    assert frame.loc[5, measures].tolist() == pytest.approx(alone.loc[0, measures].tolist())


def test_divergence_is_nothing_between_equal_heads_and_ln_2_between_disjoint_ones() -> None:
    maps = np.stack([looking("self", 5), looking("self", 5), looking("previous", 5)])[None]
    assert head_divergence(maps) == pytest.approx(np.log(2) * np.array([[0, 0, 1], [0, 0, 1], [1, 1, 0]]))
    assert attention_statistics(maps)["divergence"].tolist() == pytest.approx(
        [math.log(2) / 2, math.log(2) / 2, math.log(2)]
    )


def test_divergence_is_that_of_its_definition() -> None:
    p_TT, q_TT = random_attention(2, 6, 6)
    expected = []
    for p, q in zip(p_TT[1:], q_TT[1:], strict=True):
        m = (p + q) / 2
        seen = m > 0
        halves = [float((x[seen] * np.log(x[seen] / m[seen], where=x[seen] > 0, out=np.zeros(seen.sum()))).sum())
                  for x in (p, q)]  # fmt: skip
        expected.append(sum(halves) / 2)
    assert head_divergence(np.stack([p_TT, q_TT])[None])[0, 1] == pytest.approx(np.mean(expected))


def test_divergence_of_a_long_prompt_is_that_of_evenly_spaced_queries() -> None:
    maps = np.stack([looking("self", 300), looking("equal", 300)])[None]
    queries = np.linspace(1, 299, 64).round().astype(int)
    assert head_divergence(maps)[0, 1] == pytest.approx(_divergence_of_rows(*maps[0, :, queries].swapaxes(0, 1)))


def _divergence_of_rows(p_QK: np.ndarray, q_QK: np.ndarray) -> float:
    def entropy(rows: np.ndarray) -> np.ndarray:
        return -(rows * np.log(np.where(rows > 0, rows, 1))).sum(1)

    return float((entropy((p_QK + q_QK) / 2) - (entropy(p_QK) + entropy(q_QK)) / 2).mean())


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 4), st.integers(2, 9))
def test_measures_keep_to_their_ranges(seed: int, layers: int, heads: int, count: int) -> None:
    frame = attention_statistics(random_attention(layers, heads, count, count, seed=seed))
    assert len(frame) == layers * heads
    slack = 1e-9
    for name in ("relative_entropy", "bos", "previous", "self"):
        assert frame[name].between(-slack, 1 + slack).all()
    assert frame["entropy"].between(0, math.log(count)).all()
    assert frame["distance"].between(0, count - 1).all()
    if layers * heads > 1:
        assert frame["divergence"].between(0, math.log(2) + slack).all()


@pytest.mark.parametrize("weights", [np.ones((2, 3, 1, 1)), np.full((2, 3, 4, 4), np.nan)], ids=["one", "diverged"])
def test_where_there_is_nothing_to_measure_it_says_nan(weights: np.ndarray) -> None:
    frame = attention_statistics(weights)
    assert frame[list(COLUMNS[2:])].isna().all(axis=None)
    figure = attention_statistics_figure(frame, prompt="[bos]")
    assert {text.get_text() for axes in figure.axes for text in axes.texts} == {"–"}
    assert style.rendered(figure)["svg"]


def test_the_input_is_left_alone() -> None:
    weights = random_attention(1, 2, 4, 4)
    before = weights.copy()
    attention_statistics(weights)
    assert np.array_equal(weights, before)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 5), (6, 8), (12, 12), (2, 64), (48, 1)])
def test_the_figure_has_a_panel_a_measure_and_a_bounded_size(layers: int, heads: int) -> None:
    frame = attention_statistics(random_attention(layers, heads, 6, 6))
    figure = attention_statistics_figure(frame, prompt="[bos] $x_1$ " + "p " * 90)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert len(panels) == 6
    for axes, name in zip(panels[3:], ("bos", "previous", "self"), strict=True):
        shown = np.asarray(axes.images[0].get_array())
        assert shown.shape == (layers, heads)
        assert shown.ravel().tolist() == pytest.approx(frame[name].tolist())
        assert axes.images[0].get_clim() == (0, 1)
    assert max(figure.get_size_inches()) <= 12.5
    assert style.rendered(figure)["png"].startswith(b"\x89PNG")
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height
