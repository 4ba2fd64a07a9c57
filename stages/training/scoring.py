"""How well a model predicts sentences: sums over tokens, never means of batches."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from stages.model.language_model import LanguageModel
from stages.text.vocabulary import PAD, UNK
from stages.training.batches import Batch, Sentences


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


def score(
    model: LanguageModel, sentences: Sentences, batch_size: int = 32, *, tokens: int | None = None, threads: int = 1
) -> Score:
    """Score sentences, each word given the whole sentence before it, without dropout.

    The model's probabilities are the softmax of its logits, whatever loss it was trained with.

    Args:
        model: to be scored.
        sentences: on these,
        batch_size: so many at a time;
        tokens: only the first of them, with at most so many targets together (the first in any case).
        threads: batches at once; the sums are the same for any number.

    Raises:
        ValueError: no sentences.
    """
    if not len(sentences):
        raise ValueError("no sentences to score")
    count = len(sentences) if tokens is None else sentences.beginning(tokens)
    batches = sentences.in_order(batch_size, count)
    if threads == 1:
        parts = [_score_batch(model, batch) for batch in batches]
    else:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            parts = list(pool.map(partial(_score_batch, model), batches))
    nll, correct, targets, unknown = (sum(column) for column in zip(*parts, strict=True))
    return Score(nll, int(correct), int(targets), int(unknown), count)


def _score_batch(model: LanguageModel, batch: Batch) -> tuple[float, int, int, int]:
    with torch.inference_mode():
        logits_BTV, _ = model(batch.inputs_BT)
        real_BT = batch.targets_BT != PAD
        logits_NV, targets_N = logits_BTV[real_BT].double(), batch.targets_BT[real_BT]
        nll = F.cross_entropy(logits_NV, targets_N, reduction="sum").item()
        correct = int((logits_NV.argmax(dim=1) == targets_N).sum())
        return nll, correct, len(targets_N), int((targets_N == UNK).sum())
