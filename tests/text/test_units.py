"""What a corpus becomes, in whatever pieces it comes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.text.formats import whole_lines
from stages.text.reading import normalise
from stages.text.splitting import rank, salt
from stages.text.units import UNITS, Units

TEXT = "\n  Él  come\u2028pan. \n\n Dos\x0b\n \n\ntres\n  "
CORPORA = st.lists(st.lists(st.text("aB Σ\u0301\ufeff\n\u2028\x1c", max_size=8), max_size=6), max_size=3)


def units_of(unit: str, *files: list[str] | list[tuple[str | None]], **choices: Any) -> tuple[str, Units]:
    """What is written of some files, each given as its texts, or as the texts of its records."""
    out = io.BytesIO()
    units = UNITS[unit](out, **{"seed": 0, "lowercase": True, "form": "NFC"} | choices)
    for texts in files:
        if texts and isinstance(texts[0], tuple):
            for (record,) in texts:
                units.record(record)  # type: ignore[arg-type]
        else:
            for block in whole_lines(texts, cut_at_spaces=units.cut_at_spaces):  # type: ignore[arg-type]
                units.text(block)
        units.end_file()
    units.close()
    return out.getvalue().decode(), units


def adds_up(units: Units) -> bool:
    counts = units.counts
    return counts.lines_read == counts.lines_used + counts.blank_lines_dropped + counts.records_without_text


@pytest.mark.parametrize(
    ("unit", "written", "used", "blank"),
    [
        ("line", "él come pan.\ndos\ntres\n", 3, 5),
        ("paragraph", "él come pan.\ndos\ntres\n", 3, 5),
        ("document", "él  come\u2028pan. \u2028\u2028 dos\u2028\u2028 \u2028\u2028tres\n", 6, 2),
        ("stream", "él  come\npan. \n\n dos\n\n \n\ntres\n", 6, 2),
    ],
)
def test_one_text_in_each_unit(unit: str, written: str, used: int, blank: int) -> None:
    found, units = units_of(unit, [TEXT])
    assert found == written
    counts = units.counts
    assert (counts.lines_read, counts.lines_used, counts.blank_lines_dropped) == (8, used, blank)
    assert (counts.sentences_used, counts.words) == (written.count("\n") if unit != "stream" else 1, 5)


def test_the_lines_of_a_paragraph_are_one_sentence() -> None:
    found, units = units_of("paragraph", ["Uno\n", "dos \n", " \n tres"], ["cuatro"], [("cinco\n\nseis\nsiete",)])
    assert found == "uno dos\ntres\ncuatro\ncinco\nseis siete\n"
    assert (units.counts.lines_read, units.counts.lines_used, units.counts.longest_sentence_in_words) == (6, 5, 2)


def test_files_and_records_are_documents() -> None:
    found, units = units_of("document", ["a\n", "b\n"], [" \n"], [("c\r\nd ",), (None,), ("",), ("\ufeff",)], ["e"])
    assert found == "a\u2028b\nc\u2028d\ne\n"
    counts = units.counts
    assert (counts.lines_read, counts.lines_used) == (8, 4)
    assert (counts.blank_lines_dropped, counts.records_without_text, counts.byte_order_marks_removed) == (3, 1, 1)
    expected = [rank(salt(0) + unit.encode()) for unit in found.removesuffix("\n").split("\n")]
    assert bytes(units.ranks) == b"".join(expected)


def test_files_and_records_follow_each_other_in_the_stream() -> None:
    found, units = units_of("stream", ["\n a"], ["b \n\n"], [(" c\nd ",), (None,)], ["\n e\n\n"])
    assert found == "a\nb \n\nc\nd\n\n e\n"
    counts = units.counts
    assert (counts.lines_read, counts.lines_used, counts.blank_lines_dropped, counts.records_without_text) == (
        9,
        6,
        2,
        1,
    )


def test_line_ends_inside_records_of_sentences_are_spaces() -> None:
    assert units_of("line", [("Uno\r\ndos\rtres\n\n",), ("x",)])[0] == "uno dos tres\nx\n"


@given(CORPORA, st.sampled_from(list(UNITS)), st.booleans(), st.sampled_from(["NFC", "NFKD", "none"]))
def test_where_the_pieces_of_a_text_end_has_no_part(
    corpus: list[list[str]], unit: str, lowercase: bool, form: str
) -> None:
    pieces, units = units_of(unit, *corpus, lowercase=lowercase, form=form)
    whole, at_once = units_of(unit, *(["".join(texts)] for texts in corpus), lowercase=lowercase, form=form)
    assert pieces == whole
    assert units.ranks == at_once.ranks
    assert adds_up(units)
    assert units.counts == at_once.counts


@given(CORPORA, st.booleans())
def test_sentences_are_the_lines_that_are_not_blank_normalised(corpus: list[list[str]], lowercase: bool) -> None:
    found, units = units_of("line", *corpus, lowercase=lowercase)
    lines = [line for texts in corpus if (text := "".join(texts)) for line in text.removesuffix("\n").split("\n")]
    sentences = [sentence for line in lines if (sentence := normalise(line, lowercase=lowercase))]
    assert found == "".join(f"{sentence}\n" for sentence in sentences)
    assert units.ranks == b"".join(rank(salt(0) + sentence.encode()) for sentence in sentences)
    counts = units.counts
    assert (counts.lines_read, counts.sentences_used) == (len(lines), len(sentences))
    normalised = [normalise(line, lowercase=lowercase) for line in lines]
    changed = sum(line != sentence for line, sentence in zip(lines, normalised, strict=True) if sentence)
    assert counts.lines_changed_by_normalisation == changed
    assert counts.words == sum(len(sentence.split()) for sentence in sentences)
    assert counts.longest_sentence_in_words == max((len(sentence.split()) for sentence in sentences), default=0)


@given(
    st.lists(st.one_of(st.none(), st.just(""), st.text("aB\r\n\ufeff \x0b", min_size=1))), st.sampled_from(list(UNITS))
)
def test_records_add_up_in_every_unit(texts: list[str | None], unit: str) -> None:
    _, units = units_of(unit, [(text,) for text in texts])
    assert adds_up(units)
    assert units.counts.lines_read == len(texts)
    assert units.counts.records_without_text == texts.count(None)
    assert units.counts.byte_order_marks_removed == sum(text.count("\ufeff") for text in texts if text)
