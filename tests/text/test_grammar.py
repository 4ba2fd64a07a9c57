"""Sentences obey the rules of their grammar, and its numbers are those of its sentences."""

from __future__ import annotations

import math
from collections import Counter, deque
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import LabError
from stages.text import lexicon
from stages.text.grammar import Agreement, Grammar
from stages.text.lexicon import FORMS, Form
from stages.text.machine import floors
from stages.text.rules import END, START, STOP, follow
from stages.text.vocabulary import EOS, SPECIALS

DEPTHS = range(4)
SEEDS = st.integers(0, 2**32 - 1)
NOUN_OF = {form: noun for noun in lexicon.NOUNS for form in (noun.singular, noun.plural)}
VERB_OF = {form: verb for verb in lexicon.VERBS for form in (verb.singular, verb.plural)}
ADJECTIVE_OF = {form: adjective for adjective in lexicon.ADJECTIVES for form in adjective.forms}


@cache
def grammar(depth: int = 2) -> Grammar:
    return Grammar(depth)


@cache
def drawn(count: int = 40_000, seed: int = 7) -> list[str]:
    return list(grammar().sentences(count, seed))


class Reader:
    """Reads a sentence by the rules as they are written down; it knows words and what they show, but no state."""

    def __init__(self, sentence: str) -> None:
        self.words = deque(sentence.split(" "))
        self.deepest = 0
        noun = self.phrase(0)
        self.predicate(noun, 0)
        assert not self.words

    def next_is(self, part: str) -> bool:
        return bool(self.words) and FORMS[self.words[0]].part == part

    def take(self, part: str) -> tuple[str, Form]:
        assert self.next_is(part), f"no {part} before {list(self.words)}"
        word = self.words.popleft()
        return word, FORMS[word]

    def phrase(self, level: int) -> str:
        self.deepest = max(self.deepest, level)
        _, determiner = self.take("determiner")
        noun, form = self.take("noun")
        assert (determiner.number, determiner.gender) == (form.number, form.gender)
        if self.next_is("adjective"):
            self.adjective(noun)
        if self.words and self.words[0] == "que":
            self.words.popleft()
            self.clause(noun, level + 1)
        return noun

    def adjective(self, noun: str) -> str:
        adjective, form = self.take("adjective")
        assert form.number == FORMS[noun].number
        assert form.gender in ("", FORMS[noun].gender)
        assert NOUN_OF[noun].kind in ADJECTIVE_OF[adjective].kinds
        return adjective

    def verb(self, subject: str) -> lexicon.Verb:
        verb, form = self.take("verb")
        assert form.number == FORMS[subject].number
        assert NOUN_OF[subject].kind in VERB_OF[verb].subjects
        return VERB_OF[verb]

    def clause(self, noun: str, level: int) -> None:
        self.deepest = max(self.deepest, level)
        if self.next_is("determiner"):
            assert NOUN_OF[noun].kind in self.verb(self.phrase(level)).objects
        else:
            self.predicate(noun, level)

    def predicate(self, subject: str, level: int) -> None:
        verb = self.verb(subject)
        if verb.copula:
            if self.words[0] == "muy":
                self.words.popleft()
            assert ADJECTIVE_OF[self.adjective(subject)].copula == verb.singular
        elif verb.objects:
            assert NOUN_OF[self.phrase(level)].kind in verb.objects
        elif self.words and self.words[0] in ("hoy", "aquí"):
            self.words.popleft()


@pytest.mark.parametrize("depth", DEPTHS)
def test_drawn_sentences_agree_make_sense_and_are_no_deeper_than_allowed(depth: int) -> None:
    deepest = [Reader(sentence).deepest for sentence in grammar(depth).sentences(4000, 1)]
    assert set(deepest) == set(range(depth + 1))


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_word_is_said(depth: int) -> None:
    words = grammar(depth).words
    assert words == sorted({word for sentence in grammar(depth).sentences(4000, 1) for word in sentence.split()})
    assert len(words) == 78 - (depth == 0)  # `que` is one of them
    assert all(word == word.lower() and word.isalpha() for word in words)


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_probabilities_of_each_state_sum_to_one(depth: int) -> None:
    table = grammar(depth).table()
    sums = [math.fsum(probability for probability, _ in row.values()) for row in table]
    assert sums == pytest.approx([1.0] * len(table), abs=1e-12)
    assert min(probability for row in table for probability, _ in row.values()) > 0
    reached = {after for row in table for _, after in row.values() if after is not None}
    assert reached == set(range(1, len(table)))
    assert {word for row in table for word, (_, after) in row.items() if after is None} == {END}


@pytest.mark.parametrize("depth", DEPTHS)
def test_state_and_word_determine_the_next_state(depth: int) -> None:
    reached, new = {START}, [START]
    while new:
        words, _, after = zip(*follow(new.pop(), depth), strict=True)
        assert len(set(words)) == len(words)
        new += set(after) - reached - {STOP}
        reached |= set(after)
    assert list(follow(STOP, depth)) == []
    assert len(reached - {STOP}) == grammar(depth).floors.states


def test_the_end_is_called_as_in_a_vocabulary() -> None:
    assert SPECIALS[EOS] == END


# Sources with floors that can be worked out on paper.
HALF = math.log(2)


def test_a_source_whose_state_is_the_word_before() -> None:
    # Visits: v0 = 1 + v0/2 + v1/2 and v1 = v0/2, so 4 and 2. Of 6 tokens, 3 are a, 2 are b, and 1 is the end.
    found = floors([{"a": (0.5, 0), "b": (0.5, 1)}, {"a": (0.5, 0), END: (0.5, None)}])
    unigram = 1 / 2 * math.log(2) + 1 / 3 * math.log(3) + 1 / 6 * math.log(6)
    assert found == pytest.approx((HALF, HALF, unigram, 6, 2))


def test_a_source_that_remembers_its_first_word() -> None:
    # `a c a` or `b c b`: one choice in four tokens; given the word before alone, two choices each time.
    found = floors(
        [
            {"a": (0.5, 1), "b": (0.5, 2)},
            {"c": (1.0, 3)},
            {"c": (1.0, 4)},
            {"a": (1.0, 5)},
            {"b": (1.0, 5)},
            {END: (1.0, None)},
        ]
    )
    assert found == pytest.approx((HALF / 4, HALF, math.log(4), 4, 6))


def test_a_source_of_empty_sentences() -> None:
    assert floors([{END: (1.0, None)}]) == pytest.approx((0, 0, 0, 1, 1))


@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3, *[st.integers(0, 5)] * 2), min_size=1, max_size=6))
def test_who_sees_more_predicts_better(rows: list[tuple[int, int, int, int, int]]) -> None:
    table = [
        {"a": (a / (a + b + c), i % len(rows)), "b": (b / (a + b + c), j % len(rows)), END: (c / (a + b + c), None)}
        for a, b, c, i, j in rows
    ]
    found = floors(table)
    assert 0 < found.entropy <= found.bigram + 1e-12
    assert found.bigram <= found.unigram + 1e-12
    assert found.unigram <= math.log(3) + 1e-12


def ratio(nats: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """Nats a token over sentences, and its standard error."""
    mean = nats.sum() / tokens.sum()
    return mean, float(np.sqrt(((nats - mean * tokens) ** 2).sum()) / tokens.sum())


def test_the_entropy_is_that_of_the_sentences() -> None:
    scores = [grammar().log_probabilities(sentence) for sentence in drawn()]
    nats, tokens = -np.array([sum(score) for score in scores]), np.array([len(score) for score in scores])
    mean, error = ratio(nats, tokens)
    assert np.isfinite(nats).all()
    assert mean == pytest.approx(grammar().floors.entropy, abs=3 * error)
    assert error < 0.004
    assert tokens.mean() == pytest.approx(grammar().floors.length, abs=3 * tokens.std() / len(tokens) ** 0.5)


@pytest.mark.parametrize("seen", [0, 1], ids=["unigram", "bigram"])
def test_the_floors_of_short_memories_are_those_of_the_sentences(seen: int) -> None:
    """The entropy of the counts, with Miller's and Madow's correction for how many they are."""
    texts = [["", *sentence.split(), END] for sentence in drawn()]
    pairs = [[(before if seen else "", word) for before, word in pairwise(text)] for text in texts]
    counts = Counter(pair for sentence in pairs for pair in sentence)
    contexts: Counter[str] = Counter()
    for (before, _), count in counts.items():
        contexts[before] += count
    surprise = {pair: math.log(contexts[pair[0]] / count) for pair, count in counts.items()}
    nats = np.array([sum(surprise[pair] for pair in sentence) for sentence in pairs])
    mean, error = ratio(nats, np.array([len(sentence) for sentence in pairs]))
    mean += (len(counts) - len(contexts)) / (2 * counts.total())
    exact = grammar().floors.bigram if seen else grammar().floors.unigram
    assert mean == pytest.approx(exact, abs=3 * error)
    assert error < 0.004


def test_deeper_grammars_have_more_states_and_longer_sentences() -> None:
    found = [grammar(depth).floors for depth in DEPTHS]
    for shallow, deep in pairwise(found):
        assert shallow.states < deep.states
        assert shallow.length < deep.length
    assert all(one.entropy < one.bigram < one.unigram < math.log(79) for one in found)


def test_a_depth_beyond_reach_changes_no_shallow_sentence() -> None:
    sentence = "la niña que ve el pan duerme"
    deep, deeper = (grammar(depth).log_probabilities(sentence) for depth in (2, 3))
    assert deep == deeper


def test_a_seed_gives_the_same_sentences_and_another_one_others() -> None:
    one, again, other = (list(Grammar(2).sentences(200, seed)) for seed in (3, 3, 4))
    assert one == again
    assert one != other
    assert list(grammar().sentences(50, 3)) == one[:50]
    assert list(grammar().sentences(50, (3, 1))) != one[:50]
    assert list(grammar().sentences(0, 3)) == []


def test_the_sentences_of_a_seed_stay_what_they_are() -> None:
    assert list(grammar().sentences(3, 0)) == [
        "las maestras buenas que los caballos ven cantan",
        "unos panes buenos están muy limpios",
        "una gata que corre hoy ve las vacas",
    ]


@given(SEEDS, st.integers(0, 30))
def test_next_words_are_a_distribution_in_which_the_sentence_goes_on(seed: int, cut: int) -> None:
    (sentence,) = grammar().sentences(1, seed)
    words = sentence.split()
    cut = min(cut, len(words))
    after = grammar().next_words(" ".join(words[:cut]))
    assert after is not None
    assert math.fsum(after.values()) == pytest.approx(1)
    assert list(after.values()) == sorted(after.values(), reverse=True)
    assert math.log(after[[*words, END][cut]]) == grammar().log_probabilities(sentence)[cut]


def test_hand_examples_of_next_words() -> None:
    first = grammar().next_words("")
    assert first == {"el": 0.21, "la": 0.21, "las": 0.14, "los": 0.14, "un": 0.09, "una": 0.09, "unas": 0.06,
                     "unos": 0.06}  # fmt: skip
    assert grammar().next_words("la niña que los perros siguen está muy") == pytest.approx(
        {"cansada": 3 / 6, "triste": 2 / 6, "limpia": 1 / 6}
    )
    assert grammar().next_words("los panes corren") is None  # people and animals run
    assert grammar().next_words("la dragona") is None
    assert grammar().next_words("el perro corre hoy [eos]") is None
    assert grammar().next_words("el perro corre hoy") == {END: 1.0}


def test_clauses_end_where_the_depth_ends() -> None:
    prefix = "la niña que ve el perro"
    after = [grammar(depth).next_words(prefix) for depth in (1, 2)]
    assert [after is not None and "que" in after for after in after] == [False, True]
    assert grammar(0).next_words("la niña que") is None


def test_a_sentence_that_cannot_be_said_is_refused_with_the_word() -> None:
    with pytest.raises(
        LabError, match=r"grammar: 'duermen' cannot be word 3 of 'el perro duermen' \(did you mean 'due"
    ):
        grammar().log_probabilities("el perro duermen")
    with pytest.raises(LabError, match=r"grammar: '\[eos\]' cannot be word 3 of 'el perro'.*; allowed: bueno, can"):
        grammar().log_probabilities("el perro")


def test_places_of_agreement() -> None:
    sentence = "las niñas que el perro que come unos panes viejos ve están muy cansadas"
    found = [(item.right, item.wrong, item.feature, item.distance, item.attractors)
             for item in grammar().agreements(sentence)]  # fmt: skip
    assert found == [
        ("come", "comen", "number", 1, 0),  # perro
        ("ve", "ven", "number", 5, 1),  # perro; the other number: panes
        ("están", "está", "number", 9, 1),  # niñas; perro
        ("cansadas", "cansados", "gender", 11, 2),  # niñas; perro, panes
    ]
    assert list(grammar().agreements(sentence))[1].prefix == "las niñas que el perro que come unos panes viejos"
    assert list(grammar().agreements("el pan es grande")) == [
        Agreement("el pan", "es", "son", "number", 0, 0)  # an adjective without gender is no place of agreement
    ]


def test_of_each_place_the_grammar_allows_the_right_word_only() -> None:
    items = list(grammar().agreement_items(1500, 5))
    assert {(item.feature, item.attractors) for item in items} >= {(f, n) for f in ("number", "gender") for n in (0, 1)}
    for item in items:
        after = grammar().next_words(item.prefix)
        assert after is not None
        assert item.right in after
        assert item.wrong not in after
        assert item.wrong in grammar().words
        assert item.distance >= (item.feature == "gender")
        assert item.attractors <= (item.distance + 1) // 2
    verbs = sum(FORMS[word].part == "verb" for words in grammar().sentences(1500, 5) for word in words.split())
    assert sum(item.feature == "number" for item in items) == verbs
