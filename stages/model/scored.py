"""How well a model expects each sentence of a text that it is given.

A sentence is scored as in the evaluation: each token given all before it, and one [eos] at the end. Of a sentence
longer than the model's window, consecutive windows are scored, each given only what lies within it.

Shapes: B windows, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.nn import functional as F

from stages.errors import LabError
from stages.model.predict import Predictor
from stages.text.vocabulary import EOS, PAD, UNK

_LINES = 256  # looked at together, so that sentences of like length share a batch
_LOGITS = 2**23  # of a batch: 64 MiB in float64


@dataclass(frozen=True)
class Scored:
    """What a model makes of a sentence, or of several together.

    Attributes:
        tokens: targets: the words of each sentence and its [eos]; 0 of a blank line.
        unknown: targets that are [unk], which stand for words that the model does not know.
        nll: negative log-likelihood of the targets in nats.
    """

    tokens: int
    unknown: int
    nll: float

    @property
    def loss(self) -> float | None:
        """Nats a token; None of nothing."""
        return self.nll / self.tokens if self.tokens else None

    @property
    def perplexity(self) -> float | None:
        """exp(loss); None of nothing, and where it is beyond a float."""
        return math.exp(self.loss) if self.loss is not None and self.loss < 700 else None

    def __add__(self, other: Scored) -> Scored:
        return Scored(self.tokens + other.tokens, self.unknown + other.unknown, self.nll + other.nll)

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "unknown": self.unknown, "nll": self.nll, "perplexity": self.perplexity}


def score_sentences(predictor: Predictor, sentences: Iterable[str]) -> Iterator[tuple[str, Scored]]:
    """Each sentence with its score, in order, however many there are; a blank one has no tokens.

    Raises:
        LabError: the model's numbers are not finite.
    """
    waiting = iter(sentences)
    while chunk := list(islice(waiting, _LINES)):
        yield from zip(chunk, _score(predictor, [predictor.encode(text) for text in chunk]), strict=True)


def _score(predictor: Predictor, encoded: Sequence[list[int]]) -> list[Scored]:
    """Scores of sentences that begin with [bos] and do not end with [eos] yet."""
    windows: list[tuple[int, list[int], list[int]]] = []  # sentence, inputs, targets
    for i, ids in enumerate(encoded):
        targets = [*ids[1:], EOS]
        for start in range(0, len(ids) if len(ids) > 1 else 0, predictor.window):
            part = slice(start, start + predictor.window)
            windows.append((i, ids[part], targets[part]))
    windows.sort(key=lambda window: len(window[1]))
    nlls = [0.0] * len(encoded)
    while windows:
        size = max(1, _LOGITS // (len(windows[-1][1]) * predictor.model.config.vocab_size))
        batch, windows = windows[-size:], windows[:-size]
        losses_B = _nll(predictor, [inputs for _, inputs, _ in batch], [targets for _, _, targets in batch])
        for (i, _, _), nll in zip(batch, losses_B, strict=True):
            nlls[i] += nll
    return [
        Scored(len(ids) if len(ids) > 1 else 0, ids.count(UNK), nll) for ids, nll in zip(encoded, nlls, strict=True)
    ]


def _nll(predictor: Predictor, inputs: Sequence[list[int]], targets: Sequence[list[int]]) -> list[float]:
    """The sum over the targets of each window."""
    length = max(map(len, inputs))
    inputs_BT, targets_BT = (
        torch.tensor([[*ids, *[PAD] * (length - len(ids))] for ids in rows]) for rows in (inputs, targets)
    )
    with torch.inference_mode():
        logits_BTV, _ = predictor.model(inputs_BT)
        losses_BT = F.cross_entropy(logits_BTV.double().transpose(1, 2), targets_BT, ignore_index=PAD, reduction="none")
        nll_B: list[float] = losses_BT.sum(dim=1).tolist()
    if not all(map(math.isfinite, nll_B)):
        raise LabError(predictor.not_finite)
    return nll_B
