"""What a line becomes, and the prepared text in parts."""

from __future__ import annotations

import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.errors import ArtifactError
from stages.text import reading
from stages.text.reading import BYTE_ORDER_MARK, LINE_END, Form, Parts, fold, normalise, one_line_end

FORMS = st.sampled_from(get_args(Form))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("  El\tPERRO \u3000 come\xa0pan ", "el perro come pan"),
        ("a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g", "a b c d e f g"),
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


@pytest.mark.parametrize(
    ("form", "sentence"),
    [("NFC", "é ﬁn ᴬ"), ("NFD", "e\u0301 ﬁn ᴬ"), ("NFKC", "é fin a"), ("NFKD", "e\u0301 fin a"), ("none", "é ﬁn ᴬ")],
)
def test_the_normal_form_is_the_one_asked_for(form: Form, sentence: str) -> None:
    assert normalise("É ﬁn ᴬ", lowercase=True, form=form) == sentence
    assert normalise("e\u0301", lowercase=True, form="none") == "e\u0301"


@given(st.text(), st.booleans(), FORMS)
@example("\u2126\u212b\u1fbc\u0345", True, "NFC")
@example("ᴬ\u1d2c\u2122", True, "NFKC")
def test_normalisation_is_settled_after_once(line: str, lowercase: bool, form: Form) -> None:
    sentence = normalise(line, lowercase=lowercase, form=form)
    assert normalise(sentence, lowercase=lowercase, form=form) == sentence
    assert form == "none" or unicodedata.is_normalized(form, sentence)
    assert BYTE_ORDER_MARK not in sentence
    assert sentence.split(" ") == sentence.split() or sentence == ""


@pytest.mark.parametrize("form", get_args(Form))
def test_every_character_is_settled_after_once(form: Form) -> None:
    text = "\n".join(chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000)
    once = fold(text, lowercase=True, form=form)
    assert fold(once, lowercase=True, form=form) == once


@given(st.text(), st.booleans())
def test_equivalent_spellings_become_one(line: str, lowercase: bool) -> None:
    composed, decomposed = (unicodedata.normalize(form, line) for form in ("NFC", "NFD"))
    assert normalise(composed, lowercase=lowercase) == normalise(decomposed, lowercase=lowercase)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))), st.booleans(), FORMS)
def test_folding_a_text_folds_each_of_its_lines(lines: list[str], lowercase: bool, form: Form) -> None:
    whole = fold("\n".join(lines), lowercase=lowercase, form=form)
    assert whole == "\n".join(fold(line, lowercase=lowercase, form=form) for line in lines)


@given(st.text(), st.text(), st.booleans(), FORMS)
@example("ΟΔΟΣ", "\u0301 ΟΣ", True, "NFC")
def test_what_is_behind_a_space_changes_nothing_before_it(left: str, right: str, lowercase: bool, form: Form) -> None:
    pieces = [fold(piece, lowercase=lowercase, form=form) for piece in (left, f" {right}")]
    assert "".join(pieces) == fold(f"{left} {right}", lowercase=lowercase, form=form)


def test_text_that_keeps_its_lines_has_one_kind_of_line_end() -> None:
    assert one_line_end(" a\r\nb\rc\x0bd\x0ce\x1cf\x85g\u2028h\u2029 i\n") == " a\nb\nc\nd\ne\nf\ng\nh\n i\n"


# --- the prepared text ------------------------------------------------------------------------------------------------


def test_units_are_the_lines_with_their_inner_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes("uno\r\x85 dos\n\ntres\u2028\u2028cuatro".encode())
    assert list(Parts(path).with_ends()) == [("uno\r\x85 dos", True), ("", True), ("tres\n\ncuatro", True)]
    path.write_bytes(b"")
    assert list(Parts(path)) == []


@given(st.lists(st.text("ab \u2028", min_size=1, max_size=30), max_size=5), st.integers(1, 40))
def test_parts_make_up_the_text(units: list[str], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_CHARACTERS", size)
        path = Path(folder) / "text.txt"
        path.write_text("".join(f"{unit}\n" for unit in units), encoding="utf-8")
        read: list[int] = []
        found, unit = [], ""
        for part, ends in Parts(path, read.append).with_ends():
            unit += part
            if ends:
                found.append(unit)
                unit = ""
        assert found == [one.replace("\u2028", "\n") for one in units]
        assert unit == ""
        assert sum(read) == path.stat().st_size


def test_a_long_unit_is_never_whole_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(f"palabra{LINE_END}" * 400_000 + "\n", encoding="utf-8")
    sizes = [len(part) for part in Parts(path)]
    assert len(sizes) > 2
    assert max(sizes) <= 2**21
    assert sum(sizes) == 8 * 400_000


def test_what_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="dvc repro"):
        list(Parts(tmp_path / "none.txt"))
    (tmp_path / "bad.txt").write_bytes(b"abc\xff\n")
    with pytest.raises(ArtifactError, match=r"bad\.txt: not what stage prepare writes"):
        list(Parts(tmp_path / "bad.txt"))
