"""What counting alone can do: unigrams, and an interpolated Kneser-Ney 3-gram, as a baseline of the same tokens.

S. F. Chen, J. Goodman (1999): An empirical study of smoothing techniques for language modeling. Computer Speech and
Language 13, section 2.7, in its interpolated form (equation 24) with one discount D = n1 / (n1 + 2 n2) an order
(equation 26), where n1 and n2 n-grams occur once and twice. Orders below the highest count in how many contexts a word
was seen. Below all of them lies the uniform distribution over the vocabulary, so that no word is impossible.

Shapes: N tokens, C contexts, G n-grams.
"""

# ruff: noqa: N803, N806, N815 (shape suffixes)

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stages.text.vocabulary import BOS, Ids

MAX_TOKENS = 20_000_000  # of the training text that are counted; more take memory and hardly help

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class _Order(NamedTuple):
    """The n-grams of one order. A context is known by its rank among the contexts; a gram by rank · V + word."""

    contexts_C: Keys  # ascending
    totals_C: Keys  # counts of all words after a context
    types_C: Keys  # how many different words they are
    grams_G: Keys  # ascending
    counts_G: Keys
    discount: float


class Counts:
    """Unigram and 3-gram probabilities from the ids of a training text.

    Args:
        ids: sentences from [bos] to [eos], at most the first `MAX_TOKENS` of which count.
        vocab_size: V; every id below it has a probability.
    """

    def __init__(self, ids: Ids, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        known = ids[:MAX_TOKENS]
        positions_N = np.flatnonzero(known != BOS)
        self.tokens = len(positions_N)
        before_N, context_N, word_N = _words(known, positions_N)
        anywhere = np.zeros_like(word_N)
        self._words = self._order(anywhere, word_N)
        third = self._order(before_N * vocab_size + context_N, word_N)
        owner_G, word_G = np.divmod(third.grams_G, vocab_size)
        second = self._order(third.contexts_C[owner_G] % vocab_size, word_G)
        word_G = second.grams_G % vocab_size
        self._orders = (self._order(np.zeros_like(word_G), word_G), second, third)

    def _order(self, context_N: Keys, word_N: Keys) -> _Order:
        """From one entry an occurrence; of a lower order, from one for each n-gram of the next higher one."""
        contexts_C, rank_N = np.unique(context_N, return_inverse=True)
        grams_G, counts_G = np.unique(rank_N * self.vocab_size + word_N, return_counts=True)
        owner_G = grams_G // self.vocab_size
        starts_C = np.searchsorted(owner_G, np.arange(len(contexts_C)))
        totals_C = np.add.reduceat(counts_G, starts_C)
        once, twice = int((counts_G == 1).sum()), int((counts_G == 2).sum())
        # Where none occurs once the formula would make unseen words impossible.
        discount = once / (once + 2 * twice) if once else 0.5
        return _Order(contexts_C, totals_C, np.bincount(owner_G), grams_G, counts_G, discount)

    def trigram(self, before_N: Keys, context_N: Keys, word_N: Keys) -> Floats:
        """Probability of each word after the two before it ([bos] [bos] at the beginning of a sentence)."""
        found_N = np.full(len(word_N), 1 / self.vocab_size)
        contexts = (np.zeros_like(word_N), context_N, before_N * self.vocab_size + context_N)
        for order, keys_N in zip(self._orders, contexts, strict=True):
            found_N = self._interpolated(order, keys_N, word_N, found_N)
        return found_N

    def unigram(self, word_N: Keys) -> Floats:
        """Probability of each word by how often it occurs, discounted in the same way."""
        uniform_N = np.full(len(word_N), 1 / self.vocab_size)
        return self._interpolated(self._words, np.zeros_like(word_N), word_N, uniform_N)

    def _interpolated(self, order: _Order, keys_N: Keys, word_N: Keys, lower_N: Floats) -> Floats:
        """max(c - D, 0) / total + D · types / total · lower; `lower` alone after a context that was never seen."""
        rank_N, seen_N = _find(order.contexts_C, keys_N)
        gram_N, known_N = _find(order.grams_G, rank_N * self.vocab_size + word_N)
        count_N = np.where(known_N, order.counts_G[gram_N], 0)
        kept_N = np.maximum(count_N - order.discount, 0.0)
        left_N = order.discount * order.types_C[rank_N]
        return np.where(seen_N, (kept_N + left_N * lower_N) / order.totals_C[rank_N], lower_N)

    def nll(self, ids: Ids, positions_N: Keys) -> tuple[Floats, Floats]:
        """Nats of the targets at these positions of a text's ids, given by unigrams and by 3-grams."""
        before_N, context_N, word_N = _words(ids, positions_N)
        return _nats(self.unigram(word_N)), _nats(self.trigram(before_N, context_N, word_N))


def _nats(probability_N: Floats) -> Floats:
    """-ln p, by the one logarithm that has the same last digits on every processor (NumPy's has not)."""
    return np.fromiter((-math.log(p) for p in probability_N.tolist()), np.float64, len(probability_N))


def _words(ids: Ids, positions_N: Keys) -> tuple[Keys, Keys, Keys]:
    """The words at these positions and the two before each, [bos] where a sentence has no more."""
    context_N = ids[positions_N - 1].astype(np.int64)
    before_N = np.where(context_N == BOS, BOS, ids[positions_N - 2]).astype(np.int64)
    return before_N, context_N, ids[positions_N].astype(np.int64)


def _find(sorted_keys: Keys, keys: Keys) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """The place of each key, and whether it is there at all."""
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return places, sorted_keys[places] == keys
