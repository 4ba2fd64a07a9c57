"""A trial of a model by the grammar of its corpus: fresh sentences, places of agreement, next words.

The sentences are drawn anew, by a seed that no corpus has, so that they are what the grammar says and not what the
training text happens to lack. They are the same for every model with the same vocabulary.
"""

# ruff: noqa: N806 (shape suffixes)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stages.analysis.truth import agreement_table, next_word_table, paired_excess
from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.text.grammar import Agreement, Grammar
from stages.text.rules import END
from stages.text.vocabulary import EOS, Vocabulary
from stages.training.batches import Sentences
from stages.training.scoring import Score, score

SENTENCES = 1000
_SEED = (1, 1)  # two numbers, where a corpus has one

_PROMPTS = 5  # for the table of next words: beginnings of the first sentences


class Found(NamedTuple):
    """What a trial finds: numbers for the metrics, and tables for the figures."""

    numbers: dict[str, Any]
    agreement: list[dict[str, Any]]
    next_words: list[dict[str, Any]]


class Trial:
    """Sentences of a grammar and what is asked about them, as ids of a vocabulary.

    Args:
        grammar: of the corpus.
        vocabulary: of the models that will be tried, whatever its tokens are.
        sentences: how many are drawn; every place of agreement in them is asked for.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, sentences: int = SENTENCES) -> None:
        self.grammar, self.vocabulary = grammar, vocabulary
        drawn = list(grammar.sentences(sentences, _SEED))
        truth = [grammar.log_probabilities(sentence) for sentence in drawn]
        self._true_nll = [-sum(words) for words in truth]
        self._tokens = [len(words) for words in truth]
        self._ids = self._encoded(drawn)
        self._items: list[Agreement] = [item for sentence in drawn for item in grammar.agreements(sentence)]
        self._right = self._encoded([f"{item.prefix} {item.right}" for item in self._items])
        self._wrong = self._encoded([f"{item.prefix} {item.wrong}" for item in self._items])
        self._before = np.array([len(vocabulary.encode(item.prefix)) for item in self._items])
        beginnings = [" ".join(sentence.split()[:length]) for length, sentence in enumerate(drawn[:_PROMPTS])]
        self._prompts = list(dict.fromkeys(beginnings)) if self._of_words() else []

    def take(self, model: LanguageModel, window: int, threads: int) -> Found:
        """Try a model that reads at most `window` tokens at once."""
        of_text = score(model, self._ids, max_length=window, threads=threads)
        nll = of_text.targets.per_sentence(of_text.nll_N).tolist()
        right, wrong = (
            self._of_last_words(score(model, ids, max_length=window, threads=threads))
            for ids in (self._right, self._wrong)
        )
        table = agreement_table(self._items, right, wrong)
        agreement = {
            f"agreement_{row['feature']}": row["accuracy"] if of_text.finite else None
            for row in table
            if row["by"] == "all"
        }
        numbers = {
            **paired_excess(nll, self._true_nll, self._tokens),
            "entropy": self.grammar.floors.entropy,
            **agreement,
            "tokens": sum(self._tokens),
            "sentences": len(self._tokens),
            "unknown_share": float(of_text.unknown_N.mean()),
        }
        return Found(numbers, table, self._next_words(model, window))

    def _encoded(self, texts: Sequence[str]) -> Sentences:
        return Sentences(self.vocabulary.flat_ids(self.vocabulary.normalise(text) for text in texts))

    def _of_last_words(self, found: Score) -> list[float]:
        """Log-probability of the last word of each text, whatever its tokens, without the end."""
        targets = found.targets
        place_N = np.arange(len(targets)) - targets.starts[targets.owners]
        last_N = place_N == targets.tokens_S[targets.owners] - 1
        counts_N = (place_N >= self._before[targets.owners]) & ~last_N
        nats: list[float] = (-targets.per_sentence(np.where(counts_N, found.nll_N, 0.0))).tolist()
        return nats

    def _of_words(self) -> bool:
        """Whether each token of the vocabulary is a word of the grammar; else next words have no truth."""
        return all(len(self.vocabulary.encode(word)) == 1 for word in self.grammar.words)

    def _next_words(self, model: LanguageModel, window: int) -> list[dict[str, Any]]:
        """The true and the model's probability of each next word after the prompts; None of numbers not finite."""
        predictor = Predictor(model, self.vocabulary, {"training": {"max_length": window}})
        rows = []
        for prompt in self._prompts:
            shares = predictor.next_logits(predictor.encode(prompt)).softmax(dim=0).tolist()
            names = [END if i == EOS else self.vocabulary.label(i) for i in range(len(shares))]
            rows += next_word_table(
                prompt, self.grammar.next_words(prompt) or {}, dict(zip(names, shares, strict=True))
            )
        return rows
