"""A unigram vocabulary (Kudo 2018, "Subword Regularization", section 3.2), the same for the same text.

Every word is cut into the pieces whose probabilities multiply to the most; a piece's probability is its share in all
pieces of the text so cut, by turns (Viterbi training). Then the pieces that are worth least are dropped: those without
which the text would lose the least likelihood, each cut into others in their place. All sums are of whole numbers, and
ties go by code point, so that nothing depends on the order of anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_ROUNDS = 2  # of counting between two of dropping
_KEPT = 0.75  # share of the pieces that is left by one round of dropping


def learn_unigram(
    words: Mapping[str, int], seeds: Iterable[str], size: int, make: Callable[[Mapping[str, float]], Any]
) -> dict[str, float]:
    """Pieces with their log-probabilities in nats, the likeliest first.

    Args:
        words: the words of a text, each with its count.
        seeds: pieces to begin with; those of one character stay.
        size: number of pieces to end with.
        make: a tokeniser (of Hugging Face's library) for such pieces.
    """
    pieces = sorted(set(seeds))
    scores = dict.fromkeys(pieces, -math.log(len(pieces)))
    while True:
        for _ in range(_ROUNDS):
            counts = _count(words, make(scores))
            scores = _scores(pieces, counts)
        if len(pieces) <= size:
            return dict(sorted(scores.items(), key=lambda entry: (-entry[1], entry[0])))
        dropped = max(1, min(len(pieces) - size, round((1 - _KEPT) * len(pieces))))
        pieces = _without_the_least(scores, counts, dropped)


def _count(words: Mapping[str, int], cutter: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    spelled = sorted(words)
    for word, cut in zip(spelled, cutter.encode_batch(spelled, is_pretokenized=False), strict=True):
        for piece in cut.tokens:
            found[piece] += words[word]
    return found


def _scores(pieces: Iterable[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Log-probabilities; a piece that does not occur counts as half of one that does once."""
    numbers = {piece: 2 * counts.get(piece, 0) or 1 for piece in pieces}
    total = sum(numbers.values())
    return {piece: math.log(number / total) for piece, number in numbers.items()}


def _without_the_least(scores: Mapping[str, float], counts: Mapping[str, int], dropped: int) -> list[str]:
    longer = [piece for piece in scores if len(piece) > 1]
    worth = {piece: counts.get(piece, 0) * (scores[piece] - _cut_otherwise(piece, scores)) for piece in longer}
    gone = set(sorted(longer, key=lambda piece: (worth[piece], piece))[:dropped])
    return [piece for piece in scores if piece not in gone]


def _cut_otherwise(piece: str, scores: Mapping[str, float]) -> float:
    """The log-probability of the best cut of a piece into shorter ones."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = range(1 if end == len(piece) else 0, end)
        best.append(max(best[start] + scores.get(piece[start:end], -math.inf) for start in starts))
    return best[-1]
