"""Perplexity of what: sums over tokens, whatever the batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.model.language_model import LanguageModel
from stages.text.reading import normalise
from stages.text.vocabulary import BOS, EOS, UNK
from stages.training.batches import Sentences
from stages.training.scoring import Targets, perplexity, score

NewModel = Callable[..., LanguageModel]
BASE = ["el perro come pan", "la niña bebe agua", "el gato duerme aquí", "la perra come carne"]


def sentences_of(lines: list[str]) -> tuple[int, Sentences]:
    """The size of a vocabulary of words, and the ids of these lines."""
    known: dict[str, int] = {}
    ids = []
    for line in lines:
        words = normalise(line, lowercase=True).split()
        ids += [BOS, *(known.setdefault(word, UNK + 1 + len(known)) for word in words), EOS] if words else []
    return UNK + 1 + len(known), Sentences(np.array(ids, dtype=np.uint16))


class Fixed(torch.nn.Module):
    """A model whose probability of the right target is what the test says, by target id."""

    def __init__(self, nll_by_target: dict[int, float], vocab_size: int) -> None:
        super().__init__()
        self.nll_by_target, self.config = nll_by_target, SimpleNamespace(vocab_size=vocab_size)

    def forward(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        size = self.config.vocab_size
        rest = 1 - sum(math.exp(-nll) for nll in self.nll_by_target.values())
        others = size - len(self.nll_by_target)
        row = [-self.nll_by_target[i] if i in self.nll_by_target else math.log(rest / others) for i in range(size)]
        return torch.tensor(row).repeat(*ids_BT.shape, 1), []


class Remembering(torch.nn.Module):
    """A model that tells its context: the nats of a target are the number of ids that were read before it."""

    def __init__(self, vocab_size: int = 12) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size)

    def forward(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        read_T = torch.arange(1, ids_BT.shape[1] + 1, dtype=torch.float32)
        right = torch.exp(-read_T)
        rest = ((1 - right) / (self.config.vocab_size - 1)).log()
        logits_TV = rest[:, None].repeat(1, self.config.vocab_size)
        logits_TV[:, 7] = -read_T
        return logits_TV.repeat(len(ids_BT), 1, 1), []


def sums(model: Any, sentences: Sentences, *arguments: Any, **options: Any) -> tuple[float, int, int, int, int]:
    result = score(model, sentences, *arguments, **options)
    correct, unknown = int(result.correct_N.sum()), int(result.unknown_N.sum())
    return result.nll, correct, result.tokens, unknown, result.sentences


@pytest.mark.parametrize("batch_tokens", [1, 64])
def test_the_hand_example(batch_tokens: int) -> None:
    """Ten tokens with 20 nats in all and one token with 1: exp(21/11), neither a mean of means nor of perplexities."""
    sentences = Sentences(np.array([BOS, *[4] * 9, EOS, BOS, EOS], dtype=np.uint16))
    result = score(Fixed({4: 19 / 9, EOS: 1.0}, 30), sentences, batch_tokens)  # type: ignore[arg-type]
    assert (result.tokens, result.sentences) == (11, 2)
    assert result.nll == pytest.approx(21, rel=1e-6)
    assert result.perplexity == pytest.approx(6.747, abs=5e-4)
    assert result.loss == pytest.approx(21 / 11, rel=1e-6)
    assert result.targets.per_sentence(result.nll_N) == pytest.approx([20, 1], rel=1e-6)


def test_counts() -> None:
    sentences = Sentences(np.array([BOS, 4, UNK, 4, EOS, BOS, UNK, EOS], dtype=np.uint16))
    assert sums(Fixed({4: 0.5}, 6), sentences)[1:] == (2, 6, 2, 2)
    result = score(Fixed({4: 0.5}, 6), sentences)  # type: ignore[arg-type]
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.correct_N.tolist() == [True, False, True, False, False, False]
    assert result.confidence_N == pytest.approx(math.exp(-0.5), rel=1e-6)


def test_one_of_five_is_right_where_the_most_likely_is_not() -> None:
    """Ids by probability: 9 8 7 6 5 4; the sixth is out."""
    sentences = Sentences(np.array([BOS, 9, 8, 5, 4, EOS], dtype=np.uint16))
    model = Fixed({9: 1.0, 8: 2.0, 7: 2.5, 6: 3.0, 5: 3.5, 4: 4.0}, 10000)
    result = score(model, sentences)  # type: ignore[arg-type]
    assert result.correct_N.tolist() == [True, False, False, False, False]
    assert result.correct_top5_N.tolist() == [True, True, True, False, False]


def check_batch_sizes(model: LanguageModel, sentences: Sentences, words: int) -> None:
    results = [sums(model, sentences, tokens) for tokens in (1, 17, 128, 4096)]
    assert {found[1:] for found in results} == {(results[0][1], words + len(sentences), 0, len(sentences))}
    assert [found[0] for found in results] == pytest.approx([results[0][0]] * 4, rel=1e-5)


@pytest.mark.parametrize("block", ["notebook", "post", "pre"])
def test_the_batch_size_changes_nothing(new_model: NewModel, block: str) -> None:
    size, sentences = sentences_of([*BASE, "sol"])
    check_batch_sizes(new_model(vocab_size=size, block=block), sentences, words=17)


def test_nor_does_it_on_the_cases_and_a_real_corpus(new_model: NewModel, shared: Path) -> None:
    for name in ("cases/inputs/base.txt", "corpora/tatoeba_spa.txt"):
        lines = (shared / name).read_text(encoding="utf-8").splitlines()
        size, sentences = sentences_of(lines)
        words = sum(len(normalise(line, lowercase=True).split()) for line in lines)
        check_batch_sizes(new_model(vocab_size=size), sentences, words)


def test_sentences_of_any_order_of_lengths_are_scored_as_alone(new_model: NewModel) -> None:
    size, sentences = sentences_of([" ".join(BASE[0].split()[:n]) for n in (2, 4, 1, 3, 4, 1)])
    model = new_model(vocab_size=size)
    together = score(model, sentences, 8)
    alone = [
        score(model, Sentences(sentences.ids[a:b])).nll
        for a, b in zip(sentences.bounds, sentences.bounds[1:], strict=False)
    ]
    assert together.targets.per_sentence(together.nll_N) == pytest.approx(alone, rel=1e-6)
    assert sentences.ids[together.targets.positions_N].tolist() == [i for i in sentences.ids.tolist() if i != BOS]
    assert together.targets.owners.tolist() == [s for s, n in enumerate((3, 5, 2, 4, 5, 2)) for _ in range(n)]


@pytest.mark.parametrize("block", ["notebook", "pre"])
def test_the_number_of_threads_changes_not_a_bit(new_model: NewModel, block: str) -> None:
    size, sentences = sentences_of([line[i:] for line in BASE for i in range(12)])
    model = new_model(vocab_size=size, block=block)
    expected = score(model, sentences, 8)
    for threads in (2, 4, 4):
        found = score(model, sentences, 8, threads=threads)
        for name in ("nll_N", "confidence_N", "correct_N", "correct_top5_N"):
            assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()


# --- which targets ----------------------------------------------------------------------------------------------------


def test_only_the_first_tokens_are_scored_where_no_more_are_asked_for(new_model: NewModel) -> None:
    size, sentences = sentences_of(BASE)  # five targets each
    model = new_model(vocab_size=size)
    counts = {tokens: sums(model, sentences, tokens=tokens) for tokens in (5, 9, 10, 19, 20, 99)}
    assert {tokens: (part[4], part[2]) for tokens, part in counts.items()} == {
        5: (1, 5),
        9: (1, 5),
        10: (2, 10),
        19: (3, 15),
        20: (4, 20),
        99: (4, 20),
    }
    assert counts[99] == sums(model, sentences)
    _, first = sentences_of(BASE[:1])
    assert counts[5][0] == pytest.approx(score(model, Sentences(sentences.ids[: len(first.ids)])).nll, rel=1e-6)


def test_a_sentence_longer_than_what_is_asked_for_is_cut(new_model: NewModel) -> None:
    size, sentences = sentences_of(["a b c d e f g h", "a b"])
    model = new_model(vocab_size=size)
    whole, cut = score(model, sentences), score(model, sentences, tokens=3)
    assert (cut.sentences, cut.tokens) == (1, 3)
    assert cut.nll_N == pytest.approx(whole.nll_N[:3], rel=1e-6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 300))
def test_a_sample_is_evenly_spread_and_no_larger_than_asked(lengths: list[int], tokens: int) -> None:
    sentences = Sentences(np.array([i for n in lengths for i in (BOS, *[7] * (n - 1), EOS)], dtype=np.uint16))
    targets = Targets.spread_out(sentences, tokens)
    chosen = targets.sentences_S
    assert 1 <= len(targets) <= tokens
    assert len(set(chosen.tolist())) == len(chosen)
    assert (np.diff(chosen) > 0).all()
    assert targets.tokens_S[1:].tolist() == [lengths[i] for i in chosen[1:]]
    if tokens >= sum(lengths):
        assert len(targets) == sum(lengths)


def test_a_sample_reaches_to_the_end_of_the_text() -> None:
    sentences = Sentences(np.array([BOS, 7, 7, 7, EOS] * 1000, dtype=np.uint16))
    targets = Targets.spread_out(sentences, 400)
    assert targets.sentences_S.tolist() == list(range(0, 1000, 10))
    assert len(targets) == 400


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_length", "stride", "read"),
    [
        (None, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (10, 3, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (4, 0, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]),
        (4, 4, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]),
        (4, 2, [1, 2, 3, 4, 3, 4, 3, 4, 3, 4]),
        (4, 1, [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
        (4, 3, [1, 2, 3, 4, 2, 3, 4, 2, 3, 4]),
        (9, 9, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]),
    ],
)
def test_each_target_of_a_long_sentence_has_the_context_that_is_documented(
    max_length: int | None, stride: int, read: list[int]
) -> None:
    sentences = Sentences(np.array([BOS, 7, EOS, BOS, *[7] * 9, EOS, BOS, EOS], dtype=np.uint16))
    for batch_tokens in (1, 8, 99):
        found = score(Remembering(), sentences, batch_tokens, max_length=max_length, stride=stride)  # type: ignore[arg-type]
        words = sentences.ids[found.targets.positions_N] == 7
        expected = [1, *read[:-1]]
        assert found.nll_N[words] == pytest.approx(expected, rel=1e-5)
        assert found.tokens == 2 + 10 + 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 12), st.integers(1, 64))
def test_each_target_counts_once_whatever_the_windows(
    lengths: list[int], width: int, stride: int, batch_tokens: int
) -> None:
    sentences = Sentences(np.array([i for n in lengths for i in (BOS, *[4] * (n - 1), EOS)], dtype=np.uint16))
    stride = min(stride, width)
    found = score(Fixed({4: 1.0, EOS: 2.0}, 9), sentences, batch_tokens, max_length=width, stride=stride)  # type: ignore[arg-type]
    assert found.targets.per_sentence(found.nll_N) == pytest.approx([n + 1 for n in lengths], rel=1e-5)


def test_a_stride_that_would_leave_targets_out_is_refused(new_model: NewModel) -> None:
    size, sentences = sentences_of(BASE)
    with pytest.raises(ValueError, match="stride 4: more than the 3 tokens of a window"):
        score(new_model(vocab_size=size), sentences, max_length=3, stride=4)


# --- what it may not do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filler", ["", "uno dos tres cuatro cinco seis siete ocho nueve diez"])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(new_model: NewModel, filler: str) -> None:
    size, sentences = sentences_of([*BASE, filler])
    model = new_model(vocab_size=size)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
    assert score(model, sentences).perplexity == pytest.approx(size, rel=1e-12)


def test_the_first_word_of_a_vocabulary_is_no_padding() -> None:
    """Whatever the ids, all targets count: padding is told by where it stands."""
    sentences = Sentences(np.array([BOS, 3, 3, 3, EOS, BOS, 4, EOS], dtype=np.uint16))
    assert sums(Fixed({3: 1.0, 4: 1.5, EOS: 2.0}, 9), sentences)[2] == 6


def test_scoring_leaves_the_model_as_it_was(new_model: NewModel) -> None:
    size, sentences = sentences_of(BASE)
    model = new_model(vocab_size=size)
    assert sums(model, sentences) == sums(model, sentences)
    assert all(weight.grad is None for weight in model.parameters())


def test_nothing_to_score_is_an_error_and_not_a_zero(new_model: NewModel) -> None:
    with pytest.raises(ValueError, match="no sentences to score"):
        score(new_model(), Sentences(np.array([], dtype=np.uint16)))


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (1.0, math.e), (699.0, math.exp(699)), (1e4, None)])
def test_perplexity_beyond_a_float_is_none(loss: float, expected: float | None) -> None:
    assert perplexity(loss) == pytest.approx(expected)
