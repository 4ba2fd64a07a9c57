"""How well a model expects each line of a text that it is given, however long the text is.

A line is a sentence, scored as in the evaluation: each token given all before it, and one [eos] at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from stages.errors import LabError
from stages.model.predict import Predictor
from stages.text.vocabulary import EOS
from stages.training.batches import Sentences
from stages.training.scoring import perplexity, score

_LINES = 256  # looked at together, so that sentences of like length share a batch


@dataclass(frozen=True)
class Scored:
    """What a model makes of a line, or of several together.

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
        return perplexity(self.loss) if self.loss is not None else None

    def __add__(self, other: Scored) -> Scored:
        return Scored(self.tokens + other.tokens, self.unknown + other.unknown, self.nll + other.nll)

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "unknown": self.unknown, "nll": self.nll, "perplexity": self.perplexity}


def score_lines(predictor: Predictor, lines: Iterable[str]) -> Iterator[tuple[str, Scored]]:
    """Each line with its score, in order, however many there are; a blank one has no tokens.

    White space at its end is not part of a sentence, except where it is in the corpus too (running text).

    Raises:
        LabError: the model's numbers are not finite.
    """
    running = predictor.vocabulary.settings.keep_spaces
    waiting = iter(lines)
    while chunk := list(islice(waiting, _LINES)):
        encoded = [predictor.encode(line if running else line.rstrip()) for line in chunk]
        found = iter(_score(predictor, [ids for ids in encoded if len(ids) > 1]))
        for line, ids in zip(chunk, encoded, strict=True):
            yield line, next(found) if len(ids) > 1 else Scored(0, 0, 0.0)


def _score(predictor: Predictor, encoded: Sequence[list[int]]) -> list[Scored]:
    """Scores of sentences that begin with [bos] and do not end with [eos] yet."""
    if not encoded:
        return []
    sentences = Sentences(np.concatenate([[*ids, EOS] for ids in encoded]))
    result = score(predictor.model, sentences, max_length=predictor.window)
    if not math.isfinite(result.nll):
        raise LabError(predictor.not_finite)
    targets = result.targets
    sums = zip(targets.per_sentence(result.nll_N), targets.per_sentence(result.unknown_N), strict=True)
    return [Scored(len(ids), int(unknown), float(nll)) for ids, (nll, unknown) in zip(encoded, sums, strict=True)]
