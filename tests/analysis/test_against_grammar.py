"""A trial by the grammar: a model that knows it loses nothing, whatever its tokens are."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stages.analysis.against_grammar import Trial
from stages.model.language_model import LanguageModel
from stages.text.grammar import Grammar
from stages.text.vocabulary import BOS, EOS, TextSettings, Vocabulary

DEPTH, SENTENCES = 1, 30
GRAMMAR = Grammar(DEPTH)


def vocabulary(tokenizer: str = "word") -> Vocabulary:
    texts = list(GRAMMAR.sentences(3000, 0))
    settings = TextSettings(lowercase=True, tokenizer=tokenizer)
    return Vocabulary.build(texts, settings, order="frequency", min_count=1, max_vocab=0)


WORDS = vocabulary()


class Knowing(torch.nn.Module):
    """The grammar itself as a model of words; what it says of each next word is raised to a power."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power, self.config = power, SimpleNamespace(vocab_size=len(WORDS))
        self.ids = {WORDS.label(i): i for i in range(len(WORDS))}

    def forward(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        logits_BTV = torch.full((*ids_BT.shape, len(WORDS)), -40.0)
        for row, logits_TV in zip(ids_BT.tolist(), logits_BTV, strict=True):
            said: list[str] = []
            for place, i in enumerate(row):
                if i not in (BOS, EOS, 0):
                    said.append(WORDS.label(i))
                for word, share in (GRAMMAR.next_words(" ".join(said)) or {}).items():
                    logits_TV[place, self.ids[word]] = self.power * math.log(share)
        return logits_BTV, []


def taken(model: Any, words: Vocabulary = WORDS) -> Any:
    return Trial(GRAMMAR, words, SENTENCES).take(model, 512, 1)


def test_the_truth_loses_nothing_and_always_agrees() -> None:
    found = taken(Knowing())
    assert found.numbers["excess"] == pytest.approx(0, abs=1e-5)
    assert found.numbers["excess_error"] == pytest.approx(0, abs=1e-5)
    assert found.numbers["true_loss"] == pytest.approx(found.numbers["entropy"], abs=0.3)
    assert (found.numbers["agreement_number"], found.numbers["agreement_gender"]) == (1, 1)
    assert all(row["model"] == pytest.approx(row["truth"], abs=1e-5) for row in found.next_words)
    assert {row["prompt"] for row in found.next_words} >= {""}


def test_a_model_that_is_too_sure_loses() -> None:
    found = taken(Knowing(power=3.0))
    assert found.numbers["excess"] > 0.1
    assert found.numbers["loss"] - found.numbers["true_loss"] == pytest.approx(found.numbers["excess"])
    assert found.numbers["agreement_number"] == 1


def test_a_model_that_knows_nothing_guesses(new_model: Callable[..., LanguageModel]) -> None:
    found = taken(new_model(vocab_size=len(WORDS)))
    assert found.numbers["excess"] > 1
    assert found.numbers["agreement_number"] < 0.9
    sums = {prompt: sum(row["model"] for row in found.next_words if row["prompt"] == prompt) for prompt in ("",)}
    assert sums[""] == pytest.approx(1, abs=1e-6)


def test_letters_are_scored_by_the_words_they_spell(new_model: Callable[..., LanguageModel]) -> None:
    letters = vocabulary("char")
    found = taken(new_model(vocab_size=len(letters)), letters)
    words = taken(Knowing())
    assert found.next_words == []
    assert [found.numbers[name] for name in ("tokens", "sentences", "true_loss")] == [
        words.numbers[name] for name in ("tokens", "sentences", "true_loss")
    ]
    assert found.numbers["excess"] > 3
    assert found.numbers["loss"] > math.log(len(letters)) * 3  # nats a word, of several letters each


def test_a_model_that_diverged_has_no_numbers(new_model: Callable[..., LanguageModel]) -> None:
    model = new_model(vocab_size=len(WORDS))
    with torch.no_grad():
        model.output.bias.fill_(math.nan)
    found = taken(model)
    names = ("loss", "excess", "excess_error", "agreement_number", "agreement_gender")
    assert [found.numbers[name] for name in names] == [None] * 5
    assert {row["model"] for row in found.next_words} == {None}
    assert found.numbers["entropy"] > 1


def test_the_trial_is_the_same_each_time_and_not_the_corpus() -> None:
    first, second = taken(Knowing(2.0)), taken(Knowing(2.0))
    assert first == second
    drawn = set(GRAMMAR.sentences(SENTENCES, (1, 1)))
    assert all(drawn != set(GRAMMAR.sentences(SENTENCES, seed)) for seed in range(3))
