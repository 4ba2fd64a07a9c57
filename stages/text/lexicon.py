"""The words of the grammar: what each may stand beside, and how often it is chosen.

Spanish in its forms (number, gender), not in all its syntax: there is no personal `a`. A weight says how often a word
is chosen among those that may stand in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

SINGULAR, PLURAL = NUMBERS = ("singular", "plural")
MASCULINE, FEMININE = GENDERS = ("masculine", "feminine")
PERSON, ANIMAL, FOOD, TEXT = KINDS = ("person", "animal", "food", "text")
ANIMATE = (PERSON, ANIMAL)


class Noun(NamedTuple):
    singular: str
    plural: str
    gender: str
    kind: str
    weight: int

    def form(self, number: str) -> str:
        return self.singular if number == SINGULAR else self.plural


class Verb(NamedTuple):
    """A verb; `objects` are the kinds that it takes as its object, and a `copula` takes an adjective instead."""

    singular: str
    plural: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    weight: int
    copula: bool = False

    def form(self, number: str) -> str:
        return self.singular if number == SINGULAR else self.plural


class Adjective(NamedTuple):
    """An adjective; `kinds` are the nouns that it is said of, and `copula` (singular) is the one that it follows."""

    forms: tuple[str, str, str, str]  # in the order of NUMBERS, within it of GENDERS
    kinds: tuple[str, ...]
    copula: str
    weight: int

    def form(self, number: str, gender: str) -> str:
        return self.forms[2 * NUMBERS.index(number) + GENDERS.index(gender)]


class Determiner(NamedTuple):
    word: str
    number: str
    gender: str
    weight: int


class Adverb(NamedTuple):
    word: str
    weight: int


class Form(NamedTuple):
    """What a word shows: its part of speech, number and gender, each empty where it does not.

    `other` is a verb's other number, and an adjective's other gender if that is spelt otherwise.
    """

    part: str = ""
    number: str = ""
    gender: str = ""
    other: str = ""


NOUNS = (
    Noun("niño", "niños", MASCULINE, PERSON, 4),
    Noun("niña", "niñas", FEMININE, PERSON, 4),
    Noun("maestro", "maestros", MASCULINE, PERSON, 2),
    Noun("maestra", "maestras", FEMININE, PERSON, 2),
    Noun("perro", "perros", MASCULINE, ANIMAL, 4),
    Noun("gata", "gatas", FEMININE, ANIMAL, 3),
    Noun("caballo", "caballos", MASCULINE, ANIMAL, 2),
    Noun("vaca", "vacas", FEMININE, ANIMAL, 2),
    Noun("pan", "panes", MASCULINE, FOOD, 2),
    Noun("manzana", "manzanas", FEMININE, FOOD, 2),
    Noun("libro", "libros", MASCULINE, TEXT, 2),
    Noun("carta", "cartas", FEMININE, TEXT, 2),
)
VERBS = (
    Verb("ve", "ven", ANIMATE, KINDS, 4),
    Verb("sigue", "siguen", ANIMATE, ANIMATE, 3),
    Verb("come", "comen", ANIMATE, (FOOD,), 3),
    Verb("lee", "leen", (PERSON,), (TEXT,), 3),
    Verb("escribe", "escriben", (PERSON,), (TEXT,), 2),
    Verb("duerme", "duermen", ANIMATE, (), 3),
    Verb("corre", "corren", ANIMATE, (), 2),
    Verb("canta", "cantan", (PERSON,), (), 2),
    Verb("cae", "caen", (FOOD, TEXT), (), 3),
    Verb("es", "son", KINDS, (), 3, copula=True),
    Verb("está", "están", KINDS, (), 3, copula=True),
)
ADJECTIVES = (
    Adjective(("bueno", "buena", "buenos", "buenas"), KINDS, "es", 3),
    Adjective(("viejo", "vieja", "viejos", "viejas"), KINDS, "es", 2),
    Adjective(("grande", "grande", "grandes", "grandes"), KINDS, "es", 2),
    Adjective(("cansado", "cansada", "cansados", "cansadas"), ANIMATE, "está", 3),
    Adjective(("triste", "triste", "tristes", "tristes"), ANIMATE, "está", 2),
    Adjective(("limpio", "limpia", "limpios", "limpias"), KINDS, "está", 1),
)
DETERMINERS = (
    Determiner("el", SINGULAR, MASCULINE, 21),
    Determiner("la", SINGULAR, FEMININE, 21),
    Determiner("los", PLURAL, MASCULINE, 14),
    Determiner("las", PLURAL, FEMININE, 14),
    Determiner("un", SINGULAR, MASCULINE, 9),
    Determiner("una", SINGULAR, FEMININE, 9),
    Determiner("unos", PLURAL, MASCULINE, 6),
    Determiner("unas", PLURAL, FEMININE, 6),
)
ADVERBS = (Adverb("hoy", 2), Adverb("aquí", 1))
THAT, VERY = "que", "muy"

_Word = TypeVar("_Word", Determiner, Noun, Verb, Adjective, Adverb)


def shares(words: Iterable[_Word]) -> list[tuple[_Word, float]]:
    """Each word with its share of the weight of all."""
    words = list(words)
    total = sum(word.weight for word in words)
    return [(word, word.weight / total) for word in words]


@cache
def nouns(kinds: tuple[str, ...], gender: str) -> list[tuple[Noun, float]]:
    """The nouns of these kinds and this gender."""
    return shares(noun for noun in NOUNS if noun.kind in kinds and noun.gender == gender)


@cache
def verbs(subject: str, gap: str = "") -> list[tuple[Verb, float]]:
    """The verbs of a subject of this kind; with `gap`, those whose object may be of that kind."""
    return shares(verb for verb in VERBS if subject in verb.subjects and (not gap or gap in verb.objects))


@cache
def adjectives(kind: str, copula: str = "") -> list[tuple[Adjective, float]]:
    """The adjectives that are said of this kind; with `copula` (singular), those that follow it."""
    return shares(word for word in ADJECTIVES if kind in word.kinds and copula in ("", word.copula))


def _forms() -> Iterator[tuple[str, Form]]:
    for determiner in DETERMINERS:
        yield determiner.word, Form("determiner", determiner.number, determiner.gender)
    for number, other in (NUMBERS, NUMBERS[::-1]):
        for noun in NOUNS:
            yield noun.form(number), Form("noun", number, noun.gender)
        for verb in VERBS:
            yield verb.form(number), Form("verb", number, other=verb.form(other))
        for adjective in ADJECTIVES:
            masculine, feminine = (adjective.form(number, gender) for gender in GENDERS)
            if masculine == feminine:
                yield masculine, Form("adjective", number)
            else:
                yield masculine, Form("adjective", number, MASCULINE, feminine)
                yield feminine, Form("adjective", number, FEMININE, masculine)
    for word in (*(adverb.word for adverb in ADVERBS), THAT, VERY):
        yield word, Form()


FORMS = dict(_forms())
