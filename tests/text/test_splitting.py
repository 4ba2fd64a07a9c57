"""Held-out sentences: a function of the text and the seed alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import LabError
from stages.text.splitting import split_sentences

TEXTS = st.lists(st.text("abñ犬", min_size=1, max_size=4), min_size=4, max_size=60).filter(lambda t: len(set(t)) >= 4)
FRACTIONS = st.sampled_from([0.0, 0.01, 0.1, 0.25])
SEEDS = st.integers(0, 2**32 - 1)


@given(TEXTS, FRACTIONS, FRACTIONS, SEEDS)
def test_every_sentence_lands_in_one_split_in_the_order_of_the_text(
    text: list[str], valid: float, test: float, seed: int
) -> None:
    splits = split_sentences(text, valid, test, seed)
    assert list(splits) == ["train", "valid", "test"]
    assert sum((Counter(sentences) for sentences in splits.values()), Counter()) == Counter(text)
    sets = [set(sentences) for sentences in splits.values()]
    assert sum(map(len, sets)) == len(set(text))
    for sentences in splits.values():
        assert sentences == [sentence for sentence in text if sentence in set(sentences)]
    for fraction, held_out in ((valid, sets[1]), (test, sets[2])):
        assert len(held_out) == (max(1, round(fraction * len(set(text)))) if fraction else 0)


@given(TEXTS, SEEDS, st.randoms(use_true_random=False), st.data())
def test_reordering_and_repeating_move_nothing(text: list[str], seed: int, random, data: st.DataObject) -> None:
    shuffled = text + data.draw(st.lists(st.sampled_from(text), max_size=5))
    random.shuffle(shuffled)
    one, other = split_sentences(text, 0.25, 0.25, seed), split_sentences(shuffled, 0.25, 0.25, seed)
    assert {name: set(sentences) for name, sentences in one.items()} == {n: set(s) for n, s in other.items()}


def test_the_seed_decides() -> None:
    text = [f"frase {i}" for i in range(100)]
    first = split_sentences(text, 0.1, 0.1, 0)
    assert split_sentences(text, 0.1, 0.1, 0) == first
    assert split_sentences(text, 0.1, 0.1, 1) != first
    assert [len(first[name]) for name in ("train", "valid", "test")] == [80, 10, 10]


def test_a_little_more_text_moves_few_sentences() -> None:
    text = [f"frase {i}" for i in range(100)]
    before, after = split_sentences(text, 0.1, 0.0, 0), split_sentences([*text, "otra"], 0.1, 0.0, 0)
    assert len(set(before["valid"]) & set(after["valid"])) >= 9


@pytest.mark.parametrize(
    ("text", "valid", "test"),
    [(["a"] * 100, 0.1, 0.0), (["a", "b"], 0.1, 0.1), (["a", "b", "c"], 0.5, 0.4)],
)
def test_too_few_distinct_sentences_are_refused(text: list[str], valid: float, test: float) -> None:
    with pytest.raises(LabError, match=r"distinct sentence\(s\) are too few to hold some out") as caught:
        split_sentences(text, valid, test, 0)
    assert f"valid_fraction = {valid:g}" in str(caught.value)
    assert "\n" not in str(caught.value)
