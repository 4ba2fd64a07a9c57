"""How well a model predicts sentences: what it gives each token, and sums over tokens, never means of batches.

Shapes: N targets in the order of the text, S sentences, B rows of a batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stages.model.language_model import LanguageModel
from stages.text.vocabulary import PAD, UNK
from stages.training.batches import Indices, Sentences

_BATCH_TOKENS = 1024  # positions of a batch, about
_BATCH_LOGITS = 2**20  # of a large vocabulary, about: 4 MiB stay in a cache
_BEST = 5
_MOSTLY = 0.8  # share of the positions of a batch

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Group(Protocol):
    """Processes that score together: this one's place, and how they put together what each has found out."""

    rank: int
    size: int

    def add(self, array: npt.NDArray[Any]) -> None:
        """Put the sum over all processes into the array."""


@dataclass(frozen=True, eq=False)
class Targets:
    """What is to be predicted of some sentences: their words and one [eos] each, in the order of the text.

    Attributes:
        sentences_S: which sentences, by number.
        tokens_S: targets of each: all of them, or the first where a text is cut.
        positions_N: place of each target among the ids of the text.
    """

    sentences_S: Indices
    tokens_S: Indices
    positions_N: Indices

    @classmethod
    def of(cls, sentences: Sentences, which: Indices | None = None, tokens: int | None = None) -> Targets:
        """Those of all sentences, of some (numbers in ascending order), of the first with at most so many `tokens`.

        The first sentence is taken in any case, and cut where it alone has more tokens.

        Raises:
            ValueError: no sentences.
        """
        starts, lengths = sentences.bounds[:-1], np.diff(sentences.bounds)
        which = np.arange(len(starts)) if which is None else which
        if not len(which):
            raise ValueError("no sentences to score")
        tokens_S = lengths[which] - 1
        if tokens is not None:
            count = max(1, int(np.searchsorted(np.cumsum(tokens_S), tokens, side="right")))
            which, tokens_S = which[:count], tokens_S[:count].copy()
            tokens_S[0] = min(tokens_S[0], max(1, tokens))
        first_S = np.cumsum(tokens_S) - tokens_S
        positions_N = np.repeat(starts[which] + 1 - first_S, tokens_S) + np.arange(tokens_S.sum())
        return cls(which, tokens_S, positions_N)

    @classmethod
    def spread_out(cls, sentences: Sentences, tokens: int) -> Targets:
        """Those of sentences evenly spread over the text, at most so many tokens together; all where they are fewer."""
        total = len(sentences.bounds) - 1
        count = max(1, total * min(tokens, sentences.targets) // max(1, sentences.targets))
        return cls.of(sentences, np.arange(count) * total // count, tokens)

    def __len__(self) -> int:
        return len(self.positions_N)

    @cached_property
    def starts(self) -> Indices:
        """Place of the first target of each sentence among the N."""
        return np.cumsum(self.tokens_S) - self.tokens_S

    @property
    def owners(self) -> Indices:
        """To which of the S sentences each target belongs."""
        return np.repeat(np.arange(len(self.tokens_S)), self.tokens_S)

    def per_sentence(self, values_N: npt.NDArray[Any]) -> Floats:
        """Sums [S] of a value of each target."""
        return np.add.reduceat(values_N, self.starts, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Score:
    """What a model gave each target.

    Attributes:
        targets: which they are.
        nll_N: negative log-likelihood in nats.
        confidence_N: probability of the most likely word.
        correct_N: the target was the most likely word,
        correct_top5_N: or one of the five.
        unknown_N: the target is [unk].
    """

    targets: Targets
    nll_N: Floats
    confidence_N: Floats
    correct_N: Flags
    correct_top5_N: Flags
    unknown_N: Flags

    @property
    def sentences(self) -> int:
        return len(self.targets.sentences_S)

    @property
    def tokens(self) -> int:
        """Number of targets."""
        return len(self.targets)

    @cached_property
    def nll(self) -> float:
        """Nats of all targets together."""
        return float(self.nll_N.sum())

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nll / self.tokens

    @property
    def finite(self) -> bool:
        """False of a model that diverged."""
        return math.isfinite(self.nll)

    @property
    def perplexity(self) -> float | None:
        """exp(loss), or None where that is beyond a float."""
        return perplexity(self.loss)

    @property
    def accuracy(self) -> float:
        """Share of targets that were the most likely word."""
        return float(self.correct_N.mean())


def perplexity(loss: float) -> float | None:
    """exp(loss), or None where that is beyond a float."""
    return math.exp(loss) if loss < 700 else None


def score(
    model: LanguageModel,
    sentences: Sentences,
    batch_tokens: int = _BATCH_TOKENS,
    *,
    targets: Targets | None = None,
    tokens: int | None = None,
    max_length: int | None = None,
    stride: int = 0,
    threads: int = 1,
    group: Group | None = None,
    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode,
) -> Score:
    """Score sentences, each word given the sentence before it, without dropout.

    The model's probabilities are the softmax of its logits, whatever loss it was trained with. The context of a word
    is its sentence from [bos] on. Of a sentence with more than `max_length` targets, it is a window of so many tokens
    that moves on by `stride`; each target is scored once, in the first window that holds it.

    Args:
        model: to be scored.
        sentences: on these,
        batch_tokens: about so many positions at a time; the sums are the same to rounding for any number.
        targets: which of them; by default all,
        tokens: or the first, with at most so many targets together (the first in any case, cut where it is longer).
        max_length: tokens that the model reads at once; None for no limit.
        stride: targets that a window adds; 0 for `max_length`, so that windows do not overlap.
        threads: batches at once; the results are the same for any number.
        group: processes that have batches each; all get the whole result, which is the same for any number.
        mode: in which nothing is recorded for gradients; what a sharded model puts together in it, it uses later too.

    Raises:
        ValueError: no sentences, or windows that would leave targets out.
    """
    targets = Targets.of(sentences, tokens=tokens) if targets is None else targets
    rows = _windows(sentences, targets, max_length or int(targets.tokens_S.max()), stride)
    scorer = _Scorer(model, sentences, len(targets), mode)
    batches = rows.batches(min(batch_tokens, max(128, _BATCH_LOGITS // model.config.vocab_size)))
    if group is not None:
        batches = islice(batches, group.rank, None, group.size)
    if threads == 1:
        for batch in batches:
            scorer.score(batch)
    else:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(scorer.score, batches))
    if group is not None:
        for found_N in (scorer.nll_N, scorer.confidence_N, scorer.correct_N, scorer.top5_N):
            group.add(found_N)
    unknown_N = sentences.ids[targets.positions_N] == UNK
    return Score(targets, scorer.nll_N, scorer.confidence_N, scorer.correct_N, scorer.top5_N, unknown_N)


@dataclass(frozen=True)
class _Rows:
    """What is read at once: `length` ids from `start` on, of whose targets the first `skipped` are context alone.

    The others are the targets from place `first` on.
    """

    start: Indices
    length: Indices
    skipped: Indices
    first: Indices

    def take(self, which: Indices) -> _Rows:
        return _Rows(self.start[which], self.length[which], self.skipped[which], self.first[which])

    def batches(self, tokens: int) -> Iterator[_Rows]:
        """Rows of like length together, about `tokens` positions a batch; at least one row."""
        order = np.argsort(self.length, kind="stable")[::-1]  # the longest first: memory is claimed once
        begin = 0
        while begin < len(order):
            count = max(1, tokens // int(self.length[order[begin]]))
            yield self.take(order[begin : begin + count])
            begin += count


def _windows(sentences: Sentences, targets: Targets, width: int, stride: int) -> _Rows:
    """The windows of all sentences: the k-th begins `k · stride` tokens into its sentence."""
    stride = stride or width
    if stride > width:
        raise ValueError(f"stride {stride}: more than the {width} tokens of a window")
    windows_S = 1 + np.maximum(0, -(-(targets.tokens_S - width) // stride))
    sentence_R = np.repeat(np.arange(len(windows_S)), windows_S)
    k_R = np.arange(len(sentence_R)) - np.repeat(np.cumsum(windows_S) - windows_S, windows_S)
    offset_R = k_R * stride
    skipped_R = np.where(k_R > 0, width - stride, 0)
    return _Rows(
        start=sentences.bounds[targets.sentences_S][sentence_R] + offset_R,
        length=np.minimum(width, targets.tokens_S[sentence_R] - offset_R),
        skipped=skipped_R,
        first=targets.starts[sentence_R] + offset_R + skipped_R,
    )


class _Scorer:
    """Fills in what is known of each target, batch by batch, in whatever order these come."""

    def __init__(
        self,
        model: LanguageModel,
        sentences: Sentences,
        targets: int,
        mode: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.model, self.ids, self._mode = model, sentences.ids, mode
        self.nll_N, self.confidence_N = np.zeros(targets), np.zeros(targets)
        self.correct_N, self.top5_N = np.zeros(targets, dtype=np.bool_), np.zeros(targets, dtype=np.bool_)
        self._device = next((weight.device for weight in model.parameters()), torch.device("cpu"))

    def score(self, rows: _Rows) -> None:
        place_T = np.arange(int(rows.length.max()) + 1)
        inside_BT = place_T <= rows.length[:, None]
        where_BT = np.minimum(rows.start[:, None] + place_T, len(self.ids) - 1)
        tokens_BT = torch.from_numpy(np.where(inside_BT, self.ids[where_BT], PAD).astype(np.int64)).to(self._device)
        wanted_BT = inside_BT[:, 1:] & (place_T[:-1] >= rows.skipped[:, None])
        targets_N = ((rows.first - rows.skipped)[:, None] + place_T[:-1])[wanted_BT]
        with self._mode():
            logits_BTV, _ = self.model(tokens_BT[:, :-1])
            target_BT1, wanted = tokens_BT[:, 1:, None], torch.from_numpy(wanted_BT).to(self._device)
            if wanted_BT.mean() < _MOSTLY:
                logits_NV, target_N1 = logits_BTV[wanted], target_BT1[wanted]
                wanted = torch.ones(len(targets_N), dtype=torch.bool, device=self._device)
            else:  # a copy of the logits would take longer than the few that are not wanted
                logits_NV, target_N1, wanted = logits_BTV.flatten(0, 1), target_BT1.flatten(0, 1), wanted.flatten()
            best_NK, best_ids_NK = logits_NV.topk(min(_BEST, logits_NV.shape[1]), dim=1)
            found_NK = (best_ids_NK == target_N1)[wanted].cpu().numpy()
            chosen_N1, top_N1 = logits_NV.gather(1, target_N1).cpu().double(), best_NK[:, :1]
            # The terms of the partition function, at most 1 each, as 32-bit numbers; its logarithm as 64-bit ones.
            mass_N1 = logits_NV.sub_(top_N1).exp_().sum(dim=1, keepdim=True).cpu().double()
            nll_N1, wanted = mass_N1.log() + (top_N1.cpu().double() - chosen_N1), wanted.cpu()
        self.nll_N[targets_N] = nll_N1[wanted, 0].numpy()
        self.confidence_N[targets_N] = mass_N1.reciprocal()[wanted, 0].numpy()
        self.correct_N[targets_N] = found_NK[:, 0]
        self.top5_N[targets_N] = found_NK.any(axis=1)
