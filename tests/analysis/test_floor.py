"""The floor of a text: the entropy of its prefix tree."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.analysis.floor import prefix_tree_floor
from stages.text.reading import normalise
from stages.text.vocabulary import BOS, EOS, TextSettings, Vocabulary
from tests.conftest import ROOT

TEXTS = st.lists(st.lists(st.integers(3, 7), max_size=5), min_size=1, max_size=15)


def flat(text: list[list[int]]) -> list[int]:
    return [i for words in text for i in (BOS, *words, EOS)]


def test_the_notebooks_corpus() -> None:
    text = (ROOT / "data/raw/notebook.txt").read_text(encoding="utf-8")
    lines = [normalise(line, lowercase=True) for line in text.splitlines()]
    vocabulary = Vocabulary.build(
        lines, TextSettings(lowercase=True), order="first_appearance", min_count=1, max_vocab=0
    )
    ids = vocabulary.flat_ids(lines).tolist()
    assert len(ids) - ids.count(BOS) == 48
    assert prefix_tree_floor(ids) == pytest.approx(0.4120, abs=5e-5)


@pytest.mark.parametrize(
    ("text", "nats", "tokens"),
    [
        # After the beginning: 3, 3, 4. After 3: 5 or the end. Nothing else is in doubt.
        ([[3, 5], [3], [4]], 3 * math.log(3) - 2 * math.log(2) + 2 * math.log(2), 7),
        ([[3], [4]], 2 * math.log(2), 4),
        ([[], [3]], 2 * math.log(2), 3),
        ([[3, 4], [4, 3]], 2 * math.log(2), 6),
    ],
)
def test_hand_examples(text: list[list[int]], nats: float, tokens: int) -> None:
    assert prefix_tree_floor(flat(text)) == pytest.approx(nats / tokens)


@given(st.lists(st.integers(3, 7), max_size=6), st.integers(1, 5))
def test_one_sentence_repeated_has_nothing_in_doubt(words: list[int], times: int) -> None:
    assert prefix_tree_floor(flat([words] * times)) == 0


@given(TEXTS)
def test_it_is_the_entropy_after_each_prefix_and_no_word_count_does_better(text: list[list[int]]) -> None:
    after: dict[tuple[int, ...], Counter[int]] = {}
    targets: Counter[int] = Counter()
    for words in text:
        for i, target in enumerate([*words, EOS]):
            after.setdefault(tuple(words[:i]), Counter())[target] += 1
            targets[target] += 1
    nats = sum(-n * math.log(n / counts.total()) for counts in after.values() for n in counts.values())
    floor = prefix_tree_floor(flat(text))
    assert floor == pytest.approx(nats / targets.total(), abs=1e-12)
    unigram = sum(-n * math.log(n / targets.total()) for n in targets.values()) / targets.total()
    assert 0 <= floor <= unigram + 1e-12
