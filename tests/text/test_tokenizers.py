"""Cutting text and putting it together again, with any Unicode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.text.reading import fold, normalise
from stages.text.tokenizers import BYTES, LEARNED, Learned, Tokenizer, learn, make_tokenizer
from stages.text.unigram import learn_unigram
from stages.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, TextSettings, Vocabulary
from tests.conftest import ROOT

KINDS = ("word", "word_punct", "char", "byte", "bpe", "unigram")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SPANISH = [
    "¡el perro come un hueso!", "¿un muchacho jugaba?", "el muchacho saltaba la cuerda, y el gato dormía",
    "un perro come croquetas", "el niño bebe agua", "el perro, el gato y el niño comen",
] * 3  # fmt: skip


@cache
def tokenizer(kind: str) -> Tokenizer:
    return make_tokenizer(kind, learn(kind, iter(SPANISH), 300, 1) if kind in LEARNED else None)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT)
@example(text="[bos] </s> <unk> [unk]")
@example(text="e\u0301 👩‍👩‍👧 \u200d\u202e שלום 日本語 ไทย x\ufeff")
@example(text="·a ␣ ⏎ Ġ ▁ ＃ ·")
def test_a_sentence_comes_back_letter_for_letter(kind: str, text: str) -> None:
    sentence = normalise(text, lowercase=False)
    cutter = tokenizer(kind)
    pieces = cutter.split(sentence)
    assert cutter.join(pieces) == sentence
    assert all(pieces)
    assert all(cutter.show(piece).strip() for piece in pieces)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "unigram"])
@given(text=TEXT)
@example(text=" \n\n two  spaces\n\ttab ")
def test_running_text_comes_back_with_its_white_space(kind: str, text: str) -> None:
    text = fold(text, lowercase=False, form="NFC")
    cutter = tokenizer(kind)
    assert cutter.join(cutter.split(text)) == text


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("word", "¡hola, mundo!", ["¡hola,", "mundo!"]),
        ("word_punct", "¡hola, mundo! 3.14 don't", ["¡", "·hola", "·,", "mundo", "·!", "3.14", "don't"]),
        ("word_punct", "a - b", ["a", "-", "b"]),
        ("char", "un ñe\u0301\n", ["u", "n", "␣", "ñ", "e\u0301", "⏎"]),
        ("char", "👩‍👩‍👧🇪🇸", ["👩‍👩‍👧", "🇪🇸"]),
        ("byte", "a ñ\n", ["a", "␣", "<C3>", "<B1>", "⏎"]),
    ],
)
def test_what_a_piece_is(kind: str, text: str, shown: list[str]) -> None:
    cutter = tokenizer(kind)
    assert [cutter.show(piece) for piece in cutter.split(text)] == shown


@pytest.mark.parametrize("kind", LEARNED)
def test_learned_pieces_are_words_and_all_bytes(kind: str) -> None:
    cutter = tokenizer(kind)
    assert isinstance(cutter, Learned)
    shown = [cutter.show(piece) for piece in cutter.pieces]
    assert len(cutter.pieces) == len(set(cutter.pieces)) == 300
    assert "␣perro" in shown
    assert "<C3>" in shown
    assert len([piece for piece in cutter.pieces if len(piece) == 1]) == len(BYTES)
    assert len(cutter.split("el perro come")) == 3


@pytest.mark.parametrize("kind", LEARNED)
def test_every_process_learns_the_same(kind: str) -> None:
    script = (
        "import sys; from stages.text.tokenizers import learn; from tests.text.test_tokenizers import SPANISH;"
        f"sys.stdout.write(learn({kind!r}, iter(SPANISH), 290, 1))"
    )
    models = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PATH": "", "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed, threads in (("0", "1"), ("1", "2"), ("2", "2"))
    }
    assert len(models) == 1
    assert models == {learn(kind, iter(SPANISH), 290, 1)}


def test_a_unigram_vocabulary_by_hand() -> None:
    """Three words of a and b: cut into the fewest pieces, 'ab' (4) and 'a' (2), whose shares are 4/6 and 2/6."""
    from tokenizers import Tokenizer as Cutter
    from tokenizers.models import Unigram

    def make(scores: object) -> Cutter:
        return Cutter(Unigram(list(scores.items())))  # type: ignore[attr-defined]

    found = learn_unigram({"abab": 1, "ab": 2, "a": 2}, ["a", "b", "ab", "aba"], 3, make)
    assert list(found) == ["ab", "a", "b"]  # 'aba' is worth nothing
    assert [round(2.718281828459045**score * 13) for score in found.values()] == [8, 4, 1]  # b counts as half of one


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.sampled_from(SPANISH) | st.just("[bos] el perro [eos] [unk] [pad]"))
def test_ids_of_known_text_decode_to_it_and_never_control(kind: str, text: str) -> None:
    vocabulary = build(kind)
    ids = vocabulary.encode(text)
    assert vocabulary.decode([BOS, *ids, EOS, PAD]) == vocabulary.normalise(text)
    assert min(ids) > UNK
    assert len(set(map(vocabulary.label, range(len(vocabulary))))) == len(vocabulary)
    assert not {vocabulary.label(i) for i in ids} & set(SPECIALS)


@cache
def build(kind: str) -> Vocabulary:
    settings = TextSettings(lowercase=True, tokenizer=kind)
    text = [*SPANISH, "[bos] el perro [eos] [unk] [pad]"]
    return Vocabulary.build(text, settings, order="frequency", min_count=1, max_vocab=300)


def test_only_words_and_characters_can_be_unknown() -> None:
    unknown = {kind: build(kind).unknown("el zorro ж") for kind in KINDS}
    assert unknown["word"] == unknown["word_punct"] == ["zorro", "ж"]
    assert unknown["char"] == ["z", "ж"]
    assert not unknown["byte"] + unknown["bpe"] + unknown["unigram"]


@pytest.mark.parametrize(
    ("kind", "keep", "text", "expected"),
    [
        ("char", False, "  El  perro ", "el perro "),
        ("word", False, "  El  perro ", "el perro"),
        ("char", False, "   ", ""),
        ("char", True, " El  perro \n", " el  perro \n"),
    ],
)
def test_the_shape_of_a_prompt(kind: str, keep: bool, text: str, expected: str) -> None:
    settings = TextSettings(lowercase=True, tokenizer=kind, keep_spaces=keep)
    assert Vocabulary(["a"], [1], settings).normalise(text) == expected


@pytest.mark.parametrize(("make", "words"), [(lambda: make_tokenizer("sentence"), "no tokenizer"),
                                             (lambda: make_tokenizer("bpe"), "without its model")])  # fmt: skip
def test_what_cannot_be_made_is_refused(make: Callable[[], Tokenizer], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
