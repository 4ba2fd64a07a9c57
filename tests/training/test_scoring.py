"""Perplexity of what: sums over tokens, whatever the batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.model.language_model import LanguageModel
from stages.text.reading import normalise, read_lines
from stages.text.vocabulary import BOS, EOS, UNK, Vocabulary
from stages.training.batches import Sentences
from stages.training.scoring import Score, score

NewModel = Callable[..., LanguageModel]
BASE = ["el perro come pan", "la niña bebe agua", "el gato duerme aquí", "la perra come carne"]


def sentences_of(lines: list[str]) -> tuple[Vocabulary, Sentences]:
    lines = [line for line in (normalise(line, lowercase=True) for line in lines) if line]
    vocabulary = Vocabulary.build(lines, order="frequency", min_count=1, max_vocab=0, lowercase=True)
    return vocabulary, Sentences(vocabulary.flat_ids(lines))


class Fixed(torch.nn.Module):
    """A model whose probability of the right target is what the test says, by target id."""

    def __init__(self, nll_by_target: dict[int, float], vocab_size: int) -> None:
        super().__init__()
        self.nll_by_target, self.vocab_size = nll_by_target, vocab_size

    def forward(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        rest = 1 - sum(math.exp(-nll) for nll in self.nll_by_target.values())
        others = self.vocab_size - len(self.nll_by_target)
        row = [
            -self.nll_by_target[i] if i in self.nll_by_target else math.log(rest / others)
            for i in range(self.vocab_size)
        ]
        return torch.tensor(row).expand(*ids_BT.shape, -1), []


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_hand_example(batch_size: int) -> None:
    """Ten tokens with 20 nats in all and one token with 1: exp(21/11), neither a mean of means nor of perplexities."""
    sentences = Sentences(np.array([BOS, *[4] * 9, EOS, BOS, EOS], dtype=np.uint16))
    result = score(Fixed({4: 19 / 9, EOS: 1.0}, 30), sentences, batch_size)  # type: ignore[arg-type]
    assert (result.tokens, result.sentences) == (11, 2)
    assert result.nll == pytest.approx(21, rel=1e-6)
    assert result.perplexity == pytest.approx(6.747, abs=5e-4)
    assert result.loss == pytest.approx(21 / 11, rel=1e-6)


def test_counts() -> None:
    sentences = Sentences(np.array([BOS, 4, UNK, 4, EOS, BOS, UNK, EOS], dtype=np.uint16))
    result = score(Fixed({4: 0.5}, 6), sentences)  # type: ignore[arg-type]
    assert (result.correct, result.tokens, result.unknown, result.sentences) == (2, 6, 2, 2)
    assert result.accuracy == pytest.approx(1 / 3)


def check_batch_sizes(model: LanguageModel, sentences: Sentences, words: int) -> None:
    results = [score(model, sentences, batch_size) for batch_size in (1, 2, 7, 64)]
    assert {(r.tokens, r.sentences, r.correct) for r in results} == {
        (words + len(sentences), len(sentences), results[0].correct)
    }
    assert [r.perplexity for r in results] == pytest.approx([results[0].perplexity] * 4, rel=1e-5)


@pytest.mark.parametrize("block", ["notebook", "post", "pre"])
def test_the_batch_size_changes_nothing(new_model: NewModel, block: str) -> None:
    vocabulary, sentences = sentences_of([*BASE, "sol"])
    check_batch_sizes(new_model(vocab_size=len(vocabulary), block=block), sentences, words=17)


def test_nor_does_it_on_a_real_corpus(new_model: NewModel, shared: Path) -> None:
    lines = read_lines(shared / "corpora/tatoeba_spa.txt")
    vocabulary, sentences = sentences_of(lines)
    words = sum(len(normalise(line, lowercase=True).split()) for line in lines)
    check_batch_sizes(new_model(vocab_size=len(vocabulary)), sentences, words)


@pytest.mark.parametrize("block", ["notebook", "pre"])
def test_the_number_of_threads_changes_not_a_bit(new_model: NewModel, block: str) -> None:
    vocabulary, sentences = sentences_of([line[i:] for line in BASE for i in range(12)])
    model = new_model(vocab_size=len(vocabulary), block=block)
    expected = score(model, sentences, 2)
    assert [score(model, sentences, 2, threads=threads) for threads in (2, 4, 4, 4)] == [expected] * 4


def test_only_the_first_tokens_are_scored_where_no_more_are_asked_for(new_model: NewModel) -> None:
    vocabulary, sentences = sentences_of(BASE)  # five targets each
    model = new_model(vocab_size=len(vocabulary))
    counts = {tokens: score(model, sentences, tokens=tokens) for tokens in (1, 9, 10, 19, 20, 99)}
    assert {tokens: (part.sentences, part.tokens) for tokens, part in counts.items()} == {
        1: (1, 5),
        9: (1, 5),
        10: (2, 10),
        19: (3, 15),
        20: (4, 20),
        99: (4, 20),
    }
    assert counts[99] == score(model, sentences)
    _, first = sentences_of(BASE[:1])
    assert counts[1].nll == pytest.approx(score(model, Sentences(sentences.ids[: len(first.ids)])).nll, rel=1e-6)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(new_model: NewModel) -> None:
    vocabulary, sentences = sentences_of(BASE)
    model = new_model(vocab_size=len(vocabulary))
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
    assert score(model, sentences).perplexity == pytest.approx(len(vocabulary), rel=1e-12)


def test_scoring_leaves_the_model_as_it_was(new_model: NewModel) -> None:
    vocabulary, sentences = sentences_of(BASE)
    model = new_model(vocab_size=len(vocabulary))
    first, second = score(model, sentences), score(model, sentences)
    assert first == second
    assert all(weight.grad is None for weight in model.parameters())


def test_nothing_to_score_is_an_error_and_not_a_zero(new_model: NewModel) -> None:
    with pytest.raises(ValueError, match="no sentences to score"):
        score(new_model(), Sentences(np.array([], dtype=np.uint16)))


@pytest.mark.parametrize(("loss", "perplexity"), [(0.0, 1.0), (1.0, math.e), (699.0, math.exp(699)), (1e4, None)])
def test_perplexity_beyond_a_float_is_none(loss: float, perplexity: float | None) -> None:
    assert Score(nll=3 * loss, correct=0, tokens=3, unknown=0, sentences=1).perplexity == pytest.approx(perplexity)
