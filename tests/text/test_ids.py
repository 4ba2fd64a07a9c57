"""Ids in a file: the same as in memory, whatever the size of the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import ArtifactError
from stages.text import ids as module
from stages.text.ids import Parts, save_ids
from stages.text.reading import LINE_END
from stages.text.vocabulary import EOS, UNK, TextSettings, Vocabulary

UNITS = ["un perro", "el gato duerme aquí y allá", "a\nb  c\n\nd", "ñ"]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text("".join(unit.replace("\n", LINE_END) + "\n" for unit in UNITS), encoding="utf-8")
    return path


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize("kind", ["word", "word_punct", "char", "byte"])
def test_ids_are_those_of_the_units(kind: str, size: int, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHARACTERS", size)
    settings = TextSettings(lowercase=False, keep_spaces=True, tokenizer=kind)
    vocabulary = Vocabulary.build(Parts(prepared), settings, order="frequency", min_count=1, max_vocab=9)
    counted = save_ids(prepared.with_suffix(".npy"), vocabulary, Parts(prepared))
    np.save(prepared.with_suffix(".expected"), vocabulary.flat_ids(UNITS))
    saved = prepared.with_suffix(".npy").read_bytes()
    assert saved == prepared.with_suffix(".expected.npy").read_bytes()
    ids = np.load(prepared.with_suffix(".npy"))
    assert counted == (len(ids), int((ids == UNK).sum()))
    assert int((ids == EOS).sum()) == len(UNITS)
    assert ids.dtype == np.uint16


@given(st.lists(st.text("ab \u2028", min_size=1, max_size=30), max_size=5), st.integers(1, 40))
def test_parts_make_up_the_text(units: list[str], size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHARACTERS", size)
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
