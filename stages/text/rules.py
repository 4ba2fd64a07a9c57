"""The rules of the grammar: what may follow, given what was said.

    sentence  → phrase predicate                                       verb and subject agree in number
    phrase    → determiner noun [adjective] [que clause]               determiner, noun, adjective: number and gender
    clause    → predicate | phrase verb                                whose subject, or object, is the noun before que
    predicate → verb phrase | verb [adverb] | copula [muy] adjective   adjective and subject: number and gender

Who does what to whom is restricted: only people read, only food is eaten. `que` belongs to the noun just said.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from stages.text.lexicon import ADVERBS, ANIMATE, DETERMINERS, KINDS, THAT, VERY, adjectives, nouns, shares, verbs

END = "[eos]"  # the end of a sentence, which is a token like a word

# How often each comes where it may.
_ADJECTIVE = 0.25
_CLAUSE = 0.35
_OBJECT_CLAUSE = 0.4  # of clauses: the noun before `que` is the object in it
_ADVERB = 0.25
_VERY = 0.2


class Head(NamedTuple):
    """A noun, as far as the words to come depend on it; the rest is empty."""

    number: str = ""
    gender: str = ""
    kind: str = ""


class Role(NamedTuple):
    """What a noun phrase is for.

    Attributes:
        kinds: kinds of noun that it may have.
        subject: whether its noun gets a verb.
        gap: of a clause such as `(la carta) que el niño lee` the kind of noun that this verb has as its object.
    """

    kinds: tuple[str, ...] = ()
    subject: bool = False
    gap: str = ""


class Subject(NamedTuple):
    """A noun whose verb is still to come, its gap as in `Role`, and the number of clauses around it."""

    head: Head
    gap: str
    level: int


class State(NamedTuple):
    """All that the words so far say about the words to come.

    Attributes:
        phase: what was said last: `start` (of a sentence), `object` (a verb that needs one), `determiner`, `noun`,
            `adjective` (of the noun before), `que`, `copula`, `muy`, `verb` (that needs nothing more), `predicate` (a
            whole one, or a phrase that nothing can be added to) or `end`.
        level: number of clauses around the noun that was said last or comes next.
        head: the noun that was said last or comes next, or the subject of the copula.
        role: of the noun that comes next.
        copula: the copula in the singular.
        waiting: subjects without their verb, of which the last one gets the next verb.
    """

    phase: str
    level: int = 0
    head: Head = Head()
    role: Role = Role()
    copula: str = ""
    waiting: tuple[Subject, ...] = ()


Arc = tuple[str, float, State]  # a word, its probability, and the state after it

START = State("start", role=Role(KINDS, subject=True))
STOP = State("end")


def follow(state: State, depth: int) -> Iterator[Arc]:
    """The words that may come in a state, if clauses lie at most `depth` inside each other; none after the end."""
    head, level, waiting = state.head, state.level, state.waiting
    match state.phase:
        case "start" | "object":
            yield from _phrase(1.0, state.role, level, waiting)
        case "determiner":
            for noun, share in nouns(state.role.kinds, head.gender):
                said = head._replace(kind=noun.kind)
                more = (_subject(said, state.role.gap, level),) if state.role.subject else ()
                yield noun.form(head.number), share, _noun(said, level, depth, waiting + more)
        case "noun":
            after = state._replace(phase="adjective") if level < depth else State("predicate", waiting=waiting)
            for adjective, share in adjectives(head.kind):
                yield adjective.form(head.number, head.gender), _ADJECTIVE * share, after
            yield from _clause(1 - _ADJECTIVE, state, depth)
        case "adjective":
            yield from _clause(1.0, state, depth)
        case "que":
            yield from _predicate(1 - _OBJECT_CLAUSE, _subject(head, "", level), waiting)
            yield from _phrase(_OBJECT_CLAUSE, Role(ANIMATE, subject=True, gap=head.kind), level, waiting)
        case "copula" | "muy":
            if state.phase == "copula":
                yield VERY, _VERY, state._replace(phase="muy")
            for adjective, share in adjectives(head.kind, state.copula):
                share *= 1 - _VERY if state.phase == "copula" else 1
                yield adjective.form(head.number, head.gender), share, State("predicate", waiting=waiting)
        case "verb":
            for adverb, share in shares(ADVERBS):
                yield adverb.word, _ADVERB * share, State("predicate", waiting=waiting)
            yield from _next_verb(1 - _ADVERB, waiting)
        case "predicate":
            yield from _next_verb(1.0, waiting)


def _phrase(scale: float, role: Role, level: int, waiting: tuple[Subject, ...]) -> Iterator[Arc]:
    """The determiner of a noun phrase."""
    for word, share in shares(DETERMINERS):
        head = Head(word.number, word.gender)
        yield word.word, scale * share, State("determiner", level, head, role, waiting=waiting)


def _clause(scale: float, state: State, depth: int) -> Iterator[Arc]:
    """`que`, where a clause may still come, or what comes without one."""
    if state.level < depth:
        yield THAT, scale * _CLAUSE, State("que", state.level + 1, state.head, waiting=state.waiting)
        scale *= 1 - _CLAUSE
    yield from _next_verb(scale, state.waiting)


def _next_verb(scale: float, waiting: tuple[Subject, ...]) -> Iterator[Arc]:
    """The verb of the subject that waits for it, or the end."""
    if waiting:
        yield from _predicate(scale, waiting[-1], waiting[:-1])
    else:
        yield END, scale, STOP


def _predicate(scale: float, subject: Subject, waiting: tuple[Subject, ...]) -> Iterator[Arc]:
    """The verb of a subject."""
    for verb, share in verbs(subject.head.kind, subject.gap):
        if verb.copula:
            after = State("copula", head=subject.head, copula=verb.singular, waiting=waiting)
        elif subject.gap:
            after = State("predicate", waiting=waiting)
        elif verb.objects:
            after = State("object", subject.level, role=Role(verb.objects), waiting=waiting)
        else:
            after = State("verb", waiting=waiting)
        yield verb.form(subject.head.number), scale * share, after


# Nouns after which the same words may come are made one: fewer states, the same sentences.


def _noun(head: Head, level: int, depth: int, waiting: tuple[Subject, ...]) -> State:
    """The state after a noun; its kind matters for the verb of a clause, if one can come, and for its adjectives."""
    return State("noun", level, head if level < depth else head._replace(kind=_alike(head.kind)), waiting=waiting)


def _subject(head: Head, gap: str, level: int) -> Subject:
    """A noun that gets a verb; the verb of an object clause shows no gender."""
    if not gap:
        return Subject(head._replace(kind=_alike(head.kind)), "", level)
    kind, gap = _alike_with_gap(head.kind, gap)
    return Subject(Head(head.number, kind=kind), gap, 0)  # nothing comes after it that depends on the level


@cache
def _alike(kind: str) -> str:
    """The first kind of noun with the same verbs and adjectives."""
    return next(one for one in KINDS if (verbs(one), adjectives(one)) == (verbs(kind), adjectives(kind)))


@cache
def _alike_with_gap(kind: str, gap: str) -> tuple[str, str]:
    """The first kinds of subject and object with the same verbs."""
    return next(pair for pair in product(KINDS, KINDS) if verbs(*pair) == verbs(kind, gap))
