"""A corpus whose truth is known: sentences of a grammar that gives the exact probability of each next word.

The machine that speaks them is unifilar (state and word determine the next state) and has finitely many states, since
relative clauses lie at most `depth` inside each other; so its entropy is exact (`stages.text.machine`). What may be
said is in `stages.text.rules`, with words of `stages.text.lexicon`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from stages.errors import LabError, nearest
from stages.text.lexicon import FORMS, THAT
from stages.text.machine import Floors, Table, floors
from stages.text.rules import END, START, STOP, State, follow


class _Arcs(NamedTuple):
    """What may leave a state, with the probabilities also added up."""

    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    after: tuple[State, ...]
    bounds: tuple[float, ...]


class Agreement(NamedTuple):
    """A place in a sentence at which the grammar allows `right` and forbids `wrong`.

    Attributes:
        prefix: the words before.
        right: the word that was said: a verb, or the adjective after a copula.
        wrong: the same verb in the other number, or the same adjective in the other gender.
        feature: `number` or `gender`.
        distance: words between here and the noun that `right` agrees with.
        attractors: nouns among them that have the number or gender of `wrong`.
    """

    prefix: str
    right: str
    wrong: str
    feature: str
    distance: int
    attractors: int


class Grammar:
    """The grammar with clauses at most `depth` inside each other."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._known: dict[State, _Arcs] = {}

    @property
    def words(self) -> list[str]:
        """All words that can be said, sorted; without the end."""
        return sorted(word for word in FORMS if word != THAT or self.depth)

    @cached_property
    def floors(self) -> Floors:
        """Exact entropies, in nats a token, of the words and the end of a sentence."""
        return floors(self.table())

    def table(self) -> Table:
        """All states that can be reached, the beginning first."""
        states, numbers = [START], {START: 0}
        rows: list[dict[str, tuple[float, int | None]]] = []
        for state in states:  # which grows
            row: dict[str, tuple[float, int | None]] = {}
            words, probabilities, following, _ = self._arcs(state)
            for word, probability, after in zip(words, probabilities, following, strict=True):
                if after != STOP and after not in numbers:
                    numbers[after] = len(states)
                    states.append(after)
                row[word] = probability, numbers.get(after)
            rows.append(row)
        return rows

    def sentences(self, count: int, seed: int | Sequence[int]) -> Iterator[str]:
        """Independent sentences, single spaces between the words; `count` only says when to stop."""
        draw = np.random.Generator(np.random.PCG64(seed)).random
        for _ in range(count):
            said, state = [], START
            while state is not STOP:
                words, _, after, bounds = self._arcs(state)
                choice = min(bisect_right(bounds, draw()), len(words) - 1)  # the last bound may round to less than 1
                said.append(words[choice])
                state = after[choice]
            yield " ".join(said[:-1])

    def next_words(self, prefix: str) -> dict[str, float] | None:
        """The probability of each word after these, the most likely first; None if no sentence begins so."""
        state = START
        for word in prefix.split():
            arcs = self._arcs(state)
            if word not in arcs.words:
                return None
            state = arcs.after[arcs.words.index(word)]
        arcs = self._arcs(state)
        pairs = zip(arcs.words, arcs.probabilities, strict=True)
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))) or None

    def log_probabilities(self, sentence: str) -> list[float]:
        """ln of the probability of each word of a sentence and of its end, given all words before.

        Raises:
            LabError: a word that cannot stand where it does.
        """
        steps = ((self._arcs(state), word) for state, word in self._read(sentence))
        return [math.log(arcs.probabilities[arcs.words.index(word)]) for arcs, word in steps]

    def agreements(self, sentence: str) -> Iterator[Agreement]:
        """The places of agreement in a sentence, in its order.

        Raises:
            LabError: a word that cannot stand where it does.
        """
        walk = self._read(sentence)[:-1]
        words = [word for _, word in walk]
        forms = [FORMS[word] for word in words]
        said: list[int] = []  # places of nouns
        waiting: list[int] = []  # of those in State.waiting
        subject = 0
        for place, (state, word) in enumerate(walk):
            form = forms[place]
            if form.part == "noun":
                said.append(place)
                if state.role.subject:
                    waiting.append(place)
                continue
            if form.part == "verb":
                feature, subject = "number", said[-1] if state.phase == "que" else waiting.pop()
            elif state.phase in ("copula", "muy") and form.other:
                feature = "gender"
            else:
                continue
            between = [noun for noun in said if noun > subject]
            attractors = sum(getattr(forms[noun], feature) != getattr(forms[subject], feature) for noun in between)
            yield Agreement(" ".join(words[:place]), word, form.other, feature, place - subject - 1, attractors)

    def agreement_items(self, count: int, seed: int | Sequence[int]) -> Iterator[Agreement]:
        """All places of agreement in `sentences(count, seed)`, in their order."""
        for sentence in self.sentences(count, seed):
            yield from self.agreements(sentence)

    def _read(self, sentence: str) -> list[tuple[State, str]]:
        """Each state and the word that leaves it, the end included."""
        walk, state = [], START
        for i, word in enumerate([*sentence.split(), END], start=1):
            arcs = self._arcs(state)
            if word not in arcs.words:
                raise LabError(
                    f"grammar: {word!r} cannot be word {i} of {sentence!r}{nearest(word, arcs.words)}; "
                    f"allowed: {', '.join(sorted(arcs.words))}"
                )
            walk.append((state, word))
            state = arcs.after[arcs.words.index(word)]
        return walk

    def _arcs(self, state: State) -> _Arcs:
        if state not in self._known:
            arcs = list(follow(state, self.depth))
            probabilities = tuple(probability for _, probability, _ in arcs)
            words, after = tuple(word for word, _, _ in arcs), tuple(after for _, _, after in arcs)
            self._known[state] = _Arcs(words, probabilities, after, tuple(accumulate(probabilities)))
        return self._known[state]
