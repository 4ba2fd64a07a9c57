"""Words and their ids: order, limits, and text that looks like control symbols."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages import files
from stages.errors import ArtifactError, LabError
from stages.text.reading import normalise
from stages.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, TextSettings, Vocabulary
from tests.conftest import ROOT

SETTINGS = TextSettings.model_fields.keys()
TIES = ["d c b a", "a b c d", "b d a c"]
SENTENCES = st.lists(
    st.text().map(lambda text: normalise(text, lowercase=True)) | st.sampled_from(["[bos]", "[pad] <unk>", "[eos] a"]),
    min_size=1,
).filter(lambda sentences: any(sentences))


def build(sentences: list[str], **changes: Any) -> Vocabulary:
    choices = {"order": "frequency", "min_count": 1, "max_vocab": 0} | changes
    settings = TextSettings(**{"lowercase": True} | {key: choices.pop(key) for key in SETTINGS & choices.keys()})
    return Vocabulary.build(sentences, settings, **choices)


def test_control_symbols_have_fixed_ids() -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert SPECIALS == ("[pad]", "[bos]", "[eos]", "[unk]")
    vocabulary = build(["un gato"])
    assert [vocabulary.label(i) for i in range(6)] == [*SPECIALS, "gato", "un"]
    assert len(vocabulary) == 6


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({}, ["b", "ñ", "a", "c"]),
        ({"order": "first_appearance"}, ["c", "b", "ñ", "a"]),
        ({"min_count": 2}, ["b", "ñ"]),
        ({"max_vocab": 1}, ["b"]),
        ({"max_vocab": 3}, ["b", "ñ", "a"]),
        ({"max_vocab": 3, "order": "first_appearance"}, ["b", "ñ", "a"]),
        ({"max_vocab": 9, "min_count": 3}, ["b"]),
    ],
)
def test_order_and_limits(choices: dict[str, Any], words: list[str]) -> None:
    vocabulary = build(["c b ñ", "b a b ñ"], **choices)
    assert vocabulary.words == words
    counts = {"a": 1, "b": 3, "c": 1, "ñ": 2}
    assert vocabulary.counts == [counts[word] for word in words]


def test_a_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(LabError, match="nothing occurs min_count = 2 times in the training text"):
        build(["a b"], min_count=2)


@given(st.permutations(TIES * 2), st.sampled_from([0, 2]))
def test_ties_go_by_code_point_whatever_the_order_of_the_lines(lines: list[str], limit: int) -> None:
    assert build(lines, max_vocab=limit).words == ["a", "b", "c", "d"][: limit or None]


@pytest.mark.parametrize("order", ["frequency", "first_appearance"])
@pytest.mark.parametrize("limit", [0, 2])
def test_the_hash_seed_of_python_changes_no_byte(order: str, limit: int) -> None:
    script = (
        "import sys; from stages import files; from stages.text.vocabulary import TextSettings, Vocabulary;"
        f"settings = TextSettings(lowercase=True);"
        f"v = Vocabulary.build({TIES!r}, settings, order={order!r}, min_count=1, max_vocab={limit});"
        "sys.stdout.write(files.dump_json(v.to_dict()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "random", "random")
    }
    words = ["a", "b", "c", "d"] if order == "frequency" else ["d", "c", "b", "a"]
    expected = words[: limit or None] if order == "frequency" else [w for w in words if w in "abcd"[: limit or None]]
    choices = {"order": order, "max_vocab": limit}
    assert outputs == {files.dump_json(build(TIES, **choices).to_dict()).encode("utf-8")}
    assert build(TIES, **choices).words == expected


@pytest.mark.parametrize("line", ["el [bos] perro <unk> come [eos] pan", "[pad] <s> </s> [unk] hola"])
def test_text_that_spells_a_control_symbol_is_a_word(line: str) -> None:
    vocabulary = build([line])
    ids = vocabulary.encode(line)
    assert min(ids) > UNK
    assert vocabulary.decode(ids) == line
    assert vocabulary.unknown(line) == []
    flat = vocabulary.flat_ids([line, line]).tolist()
    assert (flat.count(BOS), flat.count(EOS), flat.count(PAD), flat.count(UNK)) == (2, 2, 0, 0)
    assert not {vocabulary.label(i) for i in ids} & set(SPECIALS)


def test_labels_stay_apart_even_where_the_text_has_the_backslash_too() -> None:
    vocabulary = build(["[bos] \\\\[bos] \\[bos] \\gato [unk] gato"])
    labels = [vocabulary.label(i) for i in range(len(vocabulary))]
    assert len(set(labels)) == len(vocabulary) == 10
    assert {"gato", "\\gato", "\\[bos]", "\\\\[bos]"} <= set(labels)


@given(SENTENCES)
def test_what_was_encoded_decodes_to_itself(sentences: list[str]) -> None:
    vocabulary = build(sentences)
    for sentence in sentences:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode([BOS, *ids, EOS, PAD]) == sentence
        assert UNK not in ids
    assert Counter(dict(zip(vocabulary.words, vocabulary.counts, strict=True))) == Counter(" ".join(sentences).split())
    assert len({vocabulary.label(i) for i in range(len(vocabulary))}) == len(vocabulary)


@given(SENTENCES, st.integers(1, 3), st.integers(0, 3))
def test_limits_send_the_rest_to_unknown(sentences: list[str], min_count: int, limit: int) -> None:
    counts = Counter(" ".join(sentences).split())
    if max(counts.values()) < min_count:
        return
    vocabulary = build(sentences, min_count=min_count, max_vocab=limit)
    assert all(counts[word] >= min_count for word in vocabulary.words)
    assert len(vocabulary.words) <= (limit or len(counts))
    left_out = [counts[word] for word in counts if word not in vocabulary.words]
    assert max([n for n in left_out if n >= min_count], default=0) <= min(vocabulary.counts)
    unknown = sum(vocabulary.encode(sentence).count(UNK) for sentence in sentences)
    assert unknown == sum(left_out)


@pytest.mark.parametrize(
    ("sentence", "ids", "unknown"),
    [
        ("el dragón come", [4, 3, 5], ["dragón"]),
        ("DRAGÓN dragón EL", [3, 3, 4], ["dragón"]),
        ("zorro oso zorro", [3, 3, 3], ["zorro", "oso"]),
        ("", [], []),
        ("   ", [], []),
    ],
)
def test_unknown_words_are_unk_and_named_once(sentence: str, ids: list[int], unknown: list[str]) -> None:
    vocabulary = build(["el come"], order="first_appearance")
    assert vocabulary.encode(sentence) == ids
    assert vocabulary.unknown(sentence) == unknown


def test_unk_is_shown_when_decoded() -> None:
    assert build(["a"]).decode([BOS, 4, UNK, EOS]) == "a [unk]"


def test_case_counts_where_it_was_kept() -> None:
    assert build(["El el"], lowercase=False).encode("EL El el") == [3, 4, 5]


@pytest.mark.parametrize(("words", "dtype"), [(2**16 - 4, np.uint16), (2**16 - 3, np.uint32)])
def test_ids_are_saved_in_the_narrowest_type(words: int, dtype: type[np.generic]) -> None:
    last = f"w{words - 1}"
    vocabulary = Vocabulary([f"w{i}" for i in range(words)], [1] * words, TextSettings(lowercase=True))
    ids = vocabulary.flat_ids([last])
    assert ids.dtype == dtype
    assert ids.tolist() == [BOS, words + 3, EOS]


def test_a_split_without_sentences_has_no_ids() -> None:
    assert build(["a"]).flat_ids([]).tolist() == []


def test_saving_and_loading(tmp_path: Path) -> None:
    vocabulary = build(["El ñandú 犬 [bos]"], lowercase=False)
    files.write_json(tmp_path / "vocab.json", vocabulary.to_dict())
    loaded = Vocabulary.load(tmp_path / "vocab.json")
    assert loaded.to_dict() == vocabulary.to_dict()
    assert loaded.encode("el El 犬") == vocabulary.encode("el El 犬")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"specials": ["<pad>"]}, r"control symbols \['<pad>'\]: expected"),
        ({"words": ["a", "a"], "counts": [1, 1]}, "not a vocabulary"),
        ({"counts": []}, "not a vocabulary"),
        ({"words": None}, "not a vocabulary"),
    ],
)
def test_a_damaged_vocabulary_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    files.write_json(path, build(["a"]).to_dict() | changes)
    with pytest.raises(ArtifactError, match=words):
        Vocabulary.load(path)
