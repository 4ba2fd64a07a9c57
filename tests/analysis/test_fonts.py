"""Every script has a font, and what has none is told."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.analysis import fonts

WORDS = {
    "Spanish": "niño",
    "Greek": "γάτα",
    "Cyrillic": "кошка",
    "Chinese": "小猫",
    "Japanese": "食べる",
    "Korean": "고양이",
    "Arabic": "القطة",
    "Hebrew": "חתול",
    "Hindi": "बिल्ली",
    "Thai": "น้ำ",
    "Bengali": "বিড়াল",
    "Tamil": "பூனை",
    "Amharic": "ድመት",
    "Khmer": "ឆ្មា",
    "emoji": "🐶🍕❤️",
}
NO_FONT = "ᠮᠤᠤᠷ"  # Mongolian


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_each_script_is_drawn_as_it_is(word: str) -> None:
    assert fonts.unreadable([word]) == []
    assert fonts.label(word) == word


def test_the_basic_font_alone_draws_what_it_can() -> None:
    assert fonts.families(["[bos] niño", WORDS["Greek"], WORDS["Arabic"], WORDS["Hebrew"]]) == fonts.families([])


def test_other_scripts_bring_their_font_and_no_more() -> None:
    basic, *others = fonts.families([WORDS["Hindi"]])
    assert "DejaVu" in basic
    assert len(others) == 1
    assert "Devanagari" in others[0]


@pytest.mark.parametrize(
    ("words", "style"), [(["直接"], "SC"), (["直接", "は"], "JP"), (["直接", "カ"], "JP"), (["直接", "고양이"], "KR")]
)
def test_han_characters_follow_their_neighbours(words: list[str], style: str) -> None:
    assert fonts.families(words)[-1].endswith(style)


def test_a_character_without_a_font_becomes_its_code() -> None:
    assert fonts.unreadable(["a", NO_FONT]) == sorted(set(NO_FONT))
    assert fonts.label("ᠮa") == "‹U+182E›a"


@pytest.mark.parametrize("char", ["\x07", "\ud800", "\ue000", "\u0378"], ids=["control", "half", "private", "none"])
def test_what_is_no_letter_becomes_its_code(char: str) -> None:
    assert fonts.label(char) == f"‹U+{ord(char):04X}›"


def test_long_words_end_in_an_ellipsis() -> None:
    assert fonts.label("a" * 24) == "a" * 24
    assert fonts.label("a" * 25) == "a" * 23 + "…"
    assert fonts.label("猫" * 20, 9) == "猫" * 4 + "…"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.integers(2, 30))
def test_labels_keep_to_their_width_and_never_split_a_letter_from_its_marks(word: str, longest: int) -> None:
    shown = fonts.label(word, longest)
    assert fonts.unreadable([shown]) == []
    if shown.endswith("…") and not word.endswith("…"):
        whole = fonts.label(word, 10_000)
        kept = len(shown) - 1
        assert whole.startswith(shown[:-1])
        assert kept == 1 or not unicodedata.category(whole[kept]).startswith("M")
    assert fonts.columns(shown) <= longest or len(shown) == 2


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert fonts.columns("ab") == 2
    assert fonts.columns("猫") == 2
    assert fonts.columns("e\u0301") == 1


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (" ", "␣"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        (" el", "␣el"),
        ("a\r\n", "a‹U+000D›⏎"),
        ("\u00a0", "‹U+00A0›"),
        ("\u2028", "‹U+2028›"),
        ("\u200d", "‹U+200D›"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("👩\u200d👩\u200d👧", "👩\u200d👩\u200d👧"),
        ("שָׁלוֹם", "שָׁלוֹם"),
        ("[bos]", "[bos]"),
        ("", ""),
    ],
)
def test_no_word_is_shown_as_nothing(word: str, shown: str) -> None:
    assert fonts.visible(word) == shown
    assert fonts.label(shown) == shown
    assert fonts.unreadable([word]) == []


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_visible_word_has_no_white_space_and_stays_as_it_is(word: str) -> None:
    shown = fonts.visible(word)
    assert not any(char.isspace() for char in shown)
    assert fonts.visible(shown) == shown
    assert any(unicodedata.category(char) not in ("Cf", "Mn", "Mc", "Me") for char in shown)
