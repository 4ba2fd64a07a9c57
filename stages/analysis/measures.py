"""What is said of a model on one text: ratios of sums over its tokens, each with an interval over its sentences."""

# ruff: noqa: N803, N806, N815 (shape suffixes)

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stages.analysis.calibration import gaps
from stages.analysis.intervals import percentile_interval, resampled_sums
from stages.analysis.ngrams import Counts
from stages.training.batches import Sentences
from stages.training.scoring import Score, Targets, perplexity

MEASURES = (
    "loss", "perplexity", "bits_per_character", "bits_per_byte", "accuracy", "accuracy_top5", "ece", "gain",
)  # fmt: skip
_SEED = 0  # of the bootstrap: the same draws for every model, so that replicas and runs differ in nothing else

Floats = npt.NDArray[np.float64]


class Yardstick(NamedTuple):
    """What the tokens of a text are measured against, whatever the model.

    Attributes:
        characters_S: code points of each sentence, its end being one more,
        bytes_S: and bytes of UTF-8, likewise.
        unigram_N: nats that counting words gives each token,
        trigram_N: and that counting three words in a row does.
        uniform: nats of a word drawn from the whole vocabulary.
    """

    characters_S: Floats
    bytes_S: Floats
    unigram_N: Floats
    trigram_N: Floats
    uniform: float

    @classmethod
    def of(cls, sentences: Sentences, targets: Targets, parts: Iterable[tuple[str, bool]], counts: Counts) -> Yardstick:
        """From the text of all sentences; of one that is cut, characters and bytes count in proportion.

        Args:
            sentences: all of a split.
            targets: what is scored of them.
            parts: the text of these sentences, as `Parts.with_ends` gives it.
            counts: of words, for the baselines.

        Raises:
            ValueError: not as many units of text as sentences.
        """
        sizes = np.fromiter(_sizes(parts), dtype=np.dtype((np.float64, 2)))
        tokens_S = np.diff(sentences.bounds) - 1
        if len(sizes) != len(tokens_S):
            raise ValueError(f"{len(sizes)} units of text, but {len(tokens_S)} sentences of ids")
        which = targets.sentences_S
        characters_S, bytes_S = sizes[which].T * (targets.tokens_S / tokens_S[which])
        return cls(characters_S, bytes_S, *counts.nll(sentences.ids, targets.positions_N), math.log(counts.vocab_size))

    def losses(self) -> dict[str, float]:
        """Nats a token of each baseline."""
        return {
            "uniform": self.uniform,
            "unigram": float(self.unigram_N.mean()),
            "trigram": float(self.trigram_N.mean()),
        }


def _sizes(parts: Iterable[tuple[str, bool]]) -> Iterator[tuple[int, int]]:
    """Code points and bytes of each unit, its end being one more of both."""
    characters = size = 1
    for part, ends in parts:
        characters += len(part)
        size += len(part.encode("utf-8"))
        if ends:
            yield characters, size
            characters = size = 1


def measures(result: Score, yardstick: Yardstick, resamples: int) -> dict[str, Any]:
    """Everything that is said of one text; null what is not finite, or beyond a float.

    loss (nats a token), perplexity, bits_per_character, bits_per_byte; accuracy and accuracy_top5, the shares of
    targets that were the most likely word or one of five; ece, the expected calibration error; unknown_share; gain,
    the nats a token by which the model is better than 3-grams (negative where it is worse). `interval` holds
    `<name>_low` and `<name>_high` of each, null for a single sentence; `baseline` has the losses of counting on the
    same tokens. The sums behind them are those of Score and Yardstick.
    """
    found: dict[str, Any] = dict.fromkeys(MEASURES)
    interval: dict[str, float | None] | None = None
    if result.finite:
        sums_KS = _sums(result, yardstick)
        found |= {name: float(values[0]) for name, values in _ratios(sums_KS.sum(axis=1, keepdims=True)).items()}
        found["perplexity"] = result.perplexity
        interval = _interval(sums_KS, resamples) if result.sentences > 1 else None
    counted = {
        "unknown_share": float(result.unknown_N.mean()),
        "tokens": result.tokens,
        "sentences": result.sentences,
    }
    return {**found, **counted, "baseline": yardstick.losses(), "interval": interval}


def _sums(result: Score, yardstick: Yardstick) -> Floats:
    """What the measures are ratios of, as sums [K, S] over the tokens of each sentence."""
    targets = result.targets
    of_tokens = (
        result.nll_N,
        result.correct_N,
        result.correct_top5_N,
        result.unknown_N,
        yardstick.trigram_N - result.nll_N,
    )
    sizes = (targets.tokens_S, yardstick.characters_S, yardstick.bytes_S)
    gap_SM = gaps(result.confidence_N, result.correct_N, targets.owners, result.sentences)
    return np.stack([*sizes, *(targets.per_sentence(values) for values in of_tokens), *gap_SM.T])


def _ratios(sums_KR: Floats) -> dict[str, Floats]:
    """The measures [R] from the sums of each resample."""
    tokens, characters, size, nll, correct, correct_top5, unknown, gain, *gap = sums_KR
    return {
        "loss": nll / tokens,
        "bits_per_character": nll / characters / math.log(2),
        "bits_per_byte": nll / size / math.log(2),
        "accuracy": correct / tokens,
        "accuracy_top5": correct_top5 / tokens,
        "ece": np.abs(gap).sum(axis=0) / tokens,
        "gain": gain / tokens,
        "unknown_share": unknown / tokens,
    }


def _interval(sums_KS: Floats, resamples: int) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    resampled = _ratios(resampled_sums(sums_KS, resamples, np.random.default_rng(_SEED)))
    for name, values in resampled.items():
        found[f"{name}_low"], found[f"{name}_high"] = percentile_interval(values)
    for end in ("low", "high"):
        loss = found[f"loss_{end}"]
        found[f"perplexity_{end}"] = None if loss is None else perplexity(loss)
    return found
