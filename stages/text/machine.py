"""How well the next word of a known source can be predicted: exactly, from the source's table of transitions.

The source is unifilar: state and word determine the next state, so who has read the words knows the state, and no model
can be better than the entropy of the words that leave it (Shannon 1948, section 7; Crutchfield and Young 1989).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Table = Sequence[Mapping[str, tuple[float, int | None]]]
"""By state, from 0, where a sentence begins: the probability of each word, and the state after it; None ends it."""


class Floors(NamedTuple):
    """The lowest cross-entropies, in nats a token, of predictors that know the source but see only so much.

    Attributes:
        entropy: all words from the beginning of the sentence.
        bigram: only the word before; at the beginning, that it is the beginning.
        unigram: nothing.
        length: expected number of tokens of a sentence, its end included.
        states: how many there are.
    """

    entropy: float
    bigram: float
    unigram: float
    length: float
    states: int


def floors(table: Table) -> Floors:
    """Floors of the source with this table; every sentence must come to an end.

    A state s is visited v_s times a sentence, where v = e_0 + Pᵀ v and P holds the probabilities from state to state;
    each visit gives one token. So the entropy is Σ v_s H_s / Σ v_s, with H_s the entropy of the words that leave s. The
    other two are entropies of the same expected counts of words, and of pairs of words.
    """
    from scipy import sparse  # 0.1 s that drawing sentences does not need
    from scipy.sparse.linalg import spsolve

    arcs = [
        (state, word, probability, -1 if after is None else after)
        for state, row in enumerate(table)
        for word, (probability, after) in row.items()
    ]
    id_of = {word: i for i, word in enumerate(sorted({word for _, word, _, _ in arcs}))}
    states, words = len(table), len(id_of)
    before = np.array([state for state, _, _, _ in arcs])
    word = np.array([id_of[word] for _, word, _, _ in arcs])
    probability = np.array([probability for _, _, probability, _ in arcs])
    after = np.array([state for _, _, _, state in arcs])
    goes_on = after >= 0

    onward = sparse.csc_matrix(
        (probability[goes_on], (after[goes_on], before[goes_on])), shape=(states, states)
    )  # transposed
    start = np.zeros(states)
    start[0] = 1.0
    visits = np.atleast_1d(spsolve(sparse.identity(states, format="csc") - onward, start))
    length = float(visits.sum())
    count = visits[before] * probability  # of each arc, a sentence

    # Pairs: how often each word (the last row: the beginning) leads to each state, times the words that leave it.
    arrivals = sparse.csr_matrix(
        (np.append(count[goes_on], 1.0), (np.append(word[goes_on], words), np.append(after[goes_on], 0))),
        shape=(words + 1, states),
    )
    pairs = arrivals @ sparse.csr_matrix((probability, (before, word)), shape=(states, words))
    contexts = np.asarray(pairs.sum(axis=1)).ravel()

    return Floors(
        entropy=float(-(count * np.log(probability)).sum()) / length,
        bigram=_nats(pairs.data, contexts) / length,
        unigram=_nats(np.bincount(word, weights=count), np.array([length])) / length,
        length=length,
        states=states,
    )


def _nats(counts: np.ndarray, contexts: np.ndarray) -> float:
    """Nats to tell apart what was counted, given the context: Σ N ln N over contexts − Σ n ln n over counts."""
    counts, contexts = counts[counts > 0], contexts[contexts > 0]
    return float((contexts * np.log(contexts)).sum() - (counts * np.log(counts)).sum())
