"""Ids in a file: the same as in memory, whatever the size of the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages.text import reading
from stages.text.ids import save_ids
from stages.text.reading import LINE_END, Parts
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
    monkeypatch.setattr(reading, "_CHARACTERS", size)
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
