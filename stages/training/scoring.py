"""How well a model predicts sentences: sums over tokens, never means of batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.model.language_model import LanguageModel
from stages.text.vocabulary import PAD, UNK
from stages.training.batches import Sentences


@dataclass(frozen=True)
class Score:
    """Sums over the targets of a text: its words and one [eos] a sentence.

    Attributes:
        nll: negative log-likelihood in nats.
        correct: targets that were the most likely word.
        tokens: number of targets.
        unknown: targets that are [unk].
        sentences: number of sentences.
    """

    nll: float
    correct: int
    tokens: int
    unknown: int
    sentences: int

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float | None:
        """exp(loss), or None where that is beyond a float."""
        return math.exp(self.loss) if self.loss < 700 else None

    @property
    def accuracy(self) -> float:
        """Share of targets that were the most likely word."""
        return self.correct / self.tokens


def score(model: LanguageModel, sentences: Sentences, batch_size: int = 32) -> Score:
    """Score every sentence, each word given the whole sentence before it, without dropout.

    The model's probabilities are the softmax of its logits, whatever loss it was trained with.

    Raises:
        ValueError: no sentences.
    """
    if not len(sentences):
        raise ValueError("no sentences to score")
    nll, correct, tokens, unknown = 0.0, 0, 0, 0
    with torch.inference_mode():
        for batch in sentences.in_order(batch_size):
            logits_BTV, _ = model(batch.inputs_BT)
            real_BT = batch.targets_BT != PAD
            logits_NV, targets_N = logits_BTV[real_BT].double(), batch.targets_BT[real_BT]
            nll += F.cross_entropy(logits_NV, targets_N, reduction="sum").item()
            correct += int((logits_NV.argmax(dim=1) == targets_N).sum())
            tokens += len(targets_N)
            unknown += int((targets_N == UNK).sum())
    return Score(nll, correct, tokens, unknown, len(sentences))
