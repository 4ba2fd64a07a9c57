"""Lines of a file and what a line becomes."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.errors import CorpusError
from stages.text.reading import BYTE_ORDER_MARK, normalise, read_lines

LINES = ["el perro come pan", "la niña bebe agua", "el gato duerme aquí", "la perra come carne"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("final", [True, False])
def test_every_kind_of_line_end_gives_the_same_lines(end: str, final: bool, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes((end.join(LINES) + (end if final else "")).encode("utf-8"))
    assert read_lines(path) == LINES


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\n\r\nb\r\rc", ["a", "", "b", "", "c"]),
        (" \n\t\na\u2028b\x0bc\x85d\n".encode(), [" ", "\t", "a\u2028b\x0bc\x85d"]),
    ],
)
def test_blank_lines_count_and_nothing_else_ends_a_line(content: bytes, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert read_lines(path) == lines


@pytest.mark.parametrize(
    ("content", "line", "byte"),
    [
        ("hola\nadiós\n".encode("latin-1"), 2, 8),
        ("uno\r\ndos\r\ntres ñ".encode()[:-1], 3, 15),
        (b"a\rb\r\xff\xfe", 3, 4),
        (b"\x92", 1, 0),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_with_their_place(
    content: bytes, line: int, byte: int, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}, line {line}: byte {byte} (0x{content[byte]:02x}) is not UTF-8")
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="a folder; `corpus` expects one file of text"):
        read_lines(tmp_path)
    with pytest.raises(CorpusError, match=r"nope\.txt: no such file; `corpus` in params.yaml names it"):
        read_lines(tmp_path / "nope.txt")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("  El\tPERRO \u3000 come\xa0pan ", "el perro come pan"),
        ("\ufeffel pe\ufeffrro", "el perro"),
        ("\ufeff", ""),
        (" \t\x1f\u2003", ""),
        ("nin\u0303a", "niña"),
        ("ÀÉ İ", "àé i\u0307"),
        ("ΟΔΟΣ", "οδος"),
        ("「犬」が Ходит", "「犬」が ходит"),
    ],
)
def test_normalisation(line: str, sentence: str) -> None:
    assert normalise(line, lowercase=True) == sentence


def test_case_is_kept_where_asked() -> None:
    assert normalise(" Él  come ", lowercase=False) == "Él come"


@given(st.text(), st.booleans())
@example("\u2126\u212b\u1fbc\u0345", True)
def test_normalisation_is_settled_after_once(line: str, lowercase: bool) -> None:
    sentence = normalise(line, lowercase=lowercase)
    assert normalise(sentence, lowercase=lowercase) == sentence
    assert unicodedata.is_normalized("NFC", sentence)
    assert BYTE_ORDER_MARK not in sentence
    assert sentence.split(" ") == sentence.split() or sentence == ""


@given(st.text(), st.booleans())
def test_equivalent_spellings_become_one(line: str, lowercase: bool) -> None:
    composed, decomposed = (unicodedata.normalize(form, line) for form in ("NFC", "NFD"))
    assert normalise(composed, lowercase=lowercase) == normalise(decomposed, lowercase=lowercase)
