"""Counting: hand values, and distributions that are ones."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.analysis.ngrams import Counts
from stages.text.vocabulary import BOS, EOS, UNK, Ids

A, B, C = 4, 5, 6
V = 7


def ids(*sentences: list[int]) -> Ids:
    return np.array([i for sentence in sentences for i in (BOS, *sentence, EOS)], dtype=np.uint16)


def p(counts: Counts, before: int, context: int, word: int) -> float:
    return float(counts.trigram(*(np.array([i], dtype=np.int64) for i in (before, context, word)))[0])


TINY = ids([A, B], [A, B], [A, C])
"""3-grams: [bos] [bos] a: 3; [bos] a b: 2; [bos] a c: 1; a b [eos]: 2; a c [eos]: 1.
n1 = 2, n2 = 2, D3 = 2 / (2 + 2 · 2) = 1/3.
2-grams by the number of words before: [bos] a, a b, a c, b [eos], c [eos]: 1 each. n1 = 5, n2 = 0, D2 = 1.
1-grams by the number of words before: a: 1, b: 1, c: 1, [eos]: 2. n1 = 3, n2 = 1, D1 = 3 / (3 + 2) = 3/5, 5 in all.
"""
LEFT_1 = 3 / 5 * 4 / 5 / V  # what four discounted types leave to each word of the vocabulary
P1 = {A: 2 / 25 + LEFT_1, B: 2 / 25 + LEFT_1, C: 2 / 25 + LEFT_1, EOS: 7 / 25 + LEFT_1, UNK: LEFT_1}


@pytest.mark.parametrize(
    ("before", "context", "word", "expected"),
    [
        (BOS, BOS, A, (3 - 1 / 3) / 3 + 1 / 9 * P1[A]),  # after [bos] a discount of 1 leaves all to the lower order
        (BOS, A, B, (2 - 1 / 3) / 3 + 2 / 9 * P1[B]),
        (BOS, A, C, (1 - 1 / 3) / 3 + 2 / 9 * P1[C]),
        (BOS, A, EOS, 2 / 9 * P1[EOS]),  # never seen after this
        (A, B, EOS, (2 - 1 / 3) / 2 + 1 / 6 * P1[EOS]),
        (A, C, EOS, (1 - 1 / 3) / 1 + 1 / 3 * P1[EOS]),
        (C, A, B, P1[B]),  # two words never seen together: the order below
        (A, UNK, B, P1[B]),  # a context never seen at all
        (BOS, A, UNK, 2 / 9 * P1[UNK]),  # a word never seen at all
    ],
)
def test_hand_values(before: int, context: int, word: int, expected: float) -> None:
    assert p(Counts(TINY, V), before, context, word) == pytest.approx(expected, rel=1e-12)


def test_the_middle_order_counts_contexts_and_not_occurrences() -> None:
    """`x b` was said after three different words, `x c` after one, however often."""
    x = 7
    text = ids([A, x, B], [B, x, B], [C, x, B], *[[A, x, C]] * 5)
    counts = Counts(text, 8)
    # [bos] a, b, c: 1 each; a x, b x, c x: 1 each; x b: 3 (a, b, c); x c: 1 (a); b [eos]: 1 (x); c [eos]: 1 (x).
    d2 = 9 / 9  # n1 = 9, n2 = 0
    # 1-grams: a: 1, b: 2 ([bos], x), c: 2, x: 3, [eos]: 2; n1 = 1, n2 = 3.
    d1 = 1 / 7
    p1 = (2 - d1) / 10 + d1 * 5 / 10 / 8
    expected = (3 - d2) / 4 + d2 * 2 / 4 * p1
    assert p(counts, UNK, x, B) == pytest.approx(expected, rel=1e-12)


def test_unigrams_by_hand() -> None:
    """a 3, b 2, c 1, [eos] 3 of 9; n1 = 1, n2 = 1, D = 1/3."""
    counts = Counts(TINY, V)
    left = 1 / 3 * 4 / 9 / V
    words = np.array([A, B, C, EOS, UNK], dtype=np.int64)
    expected = [(n - 1 / 3) / 9 + left for n in (3, 2, 1, 3)] + [left]
    assert counts.unigram(words) == pytest.approx(expected, rel=1e-12)


words = st.integers(UNK, 9)
sentences = st.lists(st.lists(words, min_size=0, max_size=6), min_size=1, max_size=8)


@given(sentences)
def test_probabilities_sum_to_one_after_any_two_words(text: list[list[int]]) -> None:
    size = 10
    counts = Counts(ids(*text), size)
    every = np.arange(size, dtype=np.int64)
    for before, context in product(range(size), repeat=2):
        found = counts.trigram(np.full(size, before), np.full(size, context), every)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert (found >= 0).all()
    assert counts.unigram(every).sum() == pytest.approx(1, abs=1e-12)


@given(sentences, sentences)
def test_no_text_is_impossible(text: list[list[int]], other: list[list[int]]) -> None:
    counts, unseen = Counts(ids(*text), 10), ids(*other)
    positions = np.flatnonzero(unseen != BOS)
    for nats in counts.nll(unseen, positions):
        assert np.isfinite(nats).all()
        assert (nats > -1e-12).all()


def test_the_nats_of_a_text_are_those_of_its_words_in_their_context() -> None:
    counts, text = Counts(TINY, V), ids([A, C], [B])
    positions = np.flatnonzero(text != BOS)
    contexts = [(BOS, BOS, A), (BOS, A, C), (A, C, EOS), (BOS, BOS, B), (BOS, B, EOS)]
    unigram, trigram = counts.nll(text, positions)
    assert trigram == pytest.approx([-math.log(p(counts, *context)) for context in contexts], rel=1e-12)
    assert unigram == pytest.approx(-np.log(counts.unigram(np.array([A, C, EOS, B, EOS], dtype=np.int64))))


def test_a_large_vocabulary_does_not_overflow() -> None:
    size = 2**21 + 9  # whose cube is beyond 64 bits
    top = size - 1
    text = np.array([BOS, top, top - 1, EOS, BOS, top, top - 1, top, EOS], dtype=np.uint32)
    counts = Counts(text, size)
    assert p(counts, BOS, top, top - 1) > 0.5
    assert p(counts, BOS, top, top - 2) < 1e-5


def test_more_words_in_a_row_tell_more() -> None:
    source = np.random.default_rng(0)
    text = ids(*[[A, B, C] * int(source.integers(1, 5)) for _ in range(200)])
    unigram, trigram = Counts(text, V).nll(text, np.flatnonzero(text != BOS))
    assert trigram.mean() < 0.5 < 1.2 < unigram.mean()
