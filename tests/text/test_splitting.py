"""Held-out sentences: a function of the text and the seed alone."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import LabError
from stages.text import routing
from stages.text.reading import Parts
from stages.text.routing import route_stream, route_units
from stages.text.splitting import assign, rank, salt, to_ranks

TEXTS = st.lists(st.text("abñ犬", min_size=1, max_size=4), min_size=4, max_size=60).filter(lambda t: len(set(t)) >= 4)
FRACTIONS = st.sampled_from([0.0, 0.01, 0.1, 0.25])
SEEDS = st.integers(0, 2**32 - 1)
NAMES = ["train", "valid", "test"]


def split_sentences(text: list[str], valid: float, test: float, seed: int) -> dict[str, list[str]]:
    """Sentences by split, by way of files."""
    ranks = to_ranks(b"".join(rank(salt(seed) + sentence.encode()) for sentence in text))
    splits, distinct = assign(ranks, valid, test)
    assert distinct == len(set(text))
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything.tmp"
        everything.write_text("".join(f"{sentence}\n" for sentence in text), encoding="utf-8", newline="\n")
        counted = route_units(everything, Path(folder), splits)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["test.txt", "train.txt", "valid.txt"]
        found = {name: list(Parts(Path(folder) / f"{name}.txt")) for name in NAMES}
    assert counted == {name: len(sentences) for name, sentences in found.items()}
    return found


@given(TEXTS, FRACTIONS, FRACTIONS, SEEDS)
def test_every_sentence_lands_in_one_split_in_the_order_of_the_text(
    text: list[str], valid: float, test: float, seed: int
) -> None:
    splits = split_sentences(text, valid, test, seed)
    assert sum((Counter(sentences) for sentences in splits.values()), Counter()) == Counter(text)
    sets = [set(sentences) for sentences in splits.values()]
    assert sum(map(len, sets)) == len(set(text))
    for sentences in splits.values():
        assert sentences == [sentence for sentence in text if sentence in set(sentences)]
    for fraction, held_out in ((valid, sets[1]), (test, sets[2])):
        assert len(held_out) == (max(1, round(fraction * len(set(text)))) if fraction else 0)


@given(TEXTS, SEEDS)
def test_the_first_of_the_whole_digests_are_the_tests_and_the_next_validations(text: list[str], seed: int) -> None:
    ordered = sorted(set(text), key=lambda sentence: hashlib.sha256(f"{seed}\n{sentence}".encode()).digest())
    splits = split_sentences(text, 0.25, 0.1, seed)
    n_test, n_valid = (max(1, round(fraction * len(ordered))) for fraction in (0.1, 0.25))
    assert set(splits["test"]) == set(ordered[:n_test])
    assert set(splits["valid"]) == set(ordered[n_test : n_test + n_valid])


@given(TEXTS, SEEDS, st.randoms(use_true_random=False), st.data())
def test_reordering_and_repeating_move_nothing(text: list[str], seed: int, random: Any, data: st.DataObject) -> None:
    shuffled = text + data.draw(st.lists(st.sampled_from(text), max_size=5))
    random.shuffle(shuffled)
    one, other = split_sentences(text, 0.25, 0.25, seed), split_sentences(shuffled, 0.25, 0.25, seed)
    assert {name: set(sentences) for name, sentences in one.items()} == {n: set(s) for n, s in other.items()}


def test_the_seed_decides() -> None:
    text = [f"frase {i}" for i in range(100)]
    first = split_sentences(text, 0.1, 0.1, 0)
    assert split_sentences(text, 0.1, 0.1, 0) == first
    assert split_sentences(text, 0.1, 0.1, 1) != first
    assert [len(first[name]) for name in NAMES] == [80, 10, 10]


def test_a_little_more_text_moves_few_sentences() -> None:
    text = [f"frase {i}" for i in range(100)]
    before, after = split_sentences(text, 0.1, 0.0, 0), split_sentences([*text, "otra"], 0.1, 0.0, 0)
    assert len(set(before["valid"]) & set(after["valid"])) >= 9


@pytest.mark.parametrize(
    ("text", "valid", "test"),
    [(["a"] * 100, 0.1, 0.0), (["a", "b"], 0.1, 0.1), (["a", "b", "c"], 0.5, 0.4)],
)
def test_too_few_distinct_sentences_are_refused(text: list[str], valid: float, test: float) -> None:
    with pytest.raises(LabError, match=r"distinct sentence\(s\) are too few to hold some out") as caught:
        split_sentences(text, valid, test, 0)
    assert f"valid_fraction = {valid:g}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ranks_sort_as_the_digests_do() -> None:
    ranks = [rank(f"{i}".encode()) for i in range(300)]
    numbers = to_ranks(b"".join(ranks))
    assert [ranks[i] for i in np.argsort(numbers)] == sorted(ranks)


# --- a running text ---------------------------------------------------------------------------------------------------


def cut(folder: Path, text: str, valid: float, test: float) -> tuple[dict[str, str], dict[str, Any]]:
    everything = folder / "everything.tmp"
    everything.write_text(f"{text}\n", encoding="utf-8", newline="\n")
    told = route_stream(everything, folder, valid, test)
    found = {name: list(Parts(folder / f"{name}.txt")) for name in NAMES}
    assert not everything.exists()
    assert told["sentences_by_split"] == {name: len(units) for name, units in found.items()}
    return {name: "".join(units) for name, units in found.items()}, told


def test_the_last_lines_of_a_running_text_are_held_out(tmp_path: Path) -> None:
    lines = ["uno", "  dos ", "", "uno", "tres", "", " dos", "uno", "cuatro", "cinco"]
    splits, told = cut(tmp_path, "\n".join(lines), 0.3, 0.2)
    assert splits == {"train": "uno\n  dos \n\nuno\ntres", "valid": "dos\nuno", "test": "cuatro\ncinco"}
    assert told["lines_by_split"] == {"train": 5, "valid": 3, "test": 2}
    assert told["held_out_lines_that_train_has_too"] == 2
    assert "split_seed has no part" in told["held_out"]


def test_a_long_line_is_cut_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_PIECE", 3)
    splits, _ = cut(tmp_path, "ñandú  come\n\nhierba seca\nlejos  de aquí", 0.2, 0.2)
    assert splits == {"train": "ñandú  come", "valid": "hierba seca", "test": "lejos  de aquí"}


@given(st.lists(st.text("añ ", min_size=1, max_size=3).filter(str.strip), min_size=4), FRACTIONS, FRACTIONS)
def test_the_splits_of_a_running_text_are_its_lines(lines: list[str], valid: float, test: float) -> None:
    lines = [line.strip() for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        splits, told = cut(Path(folder), "\n".join(lines), valid, test)
    assert "\n".join(filter(None, splits.values())) == "\n".join(lines)
    for name, fraction in (("valid", valid), ("test", test)):
        assert told["lines_by_split"][name] == (max(1, round(fraction * len(lines))) if fraction else 0)
    train = lines[: told["lines_by_split"]["train"]]
    assert told["held_out_lines_that_train_has_too"] == sum(line in train for line in lines[len(train) :])


def test_a_running_text_too_short_to_be_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"corpus: 2 line\(s\) are too few to hold some out"):
        cut(tmp_path, "uno\ndos", 0.1, 0.1)
    with pytest.raises(LabError, match=r"corpus: the 1 line\(s\) held out as valid are blank; set a larger fraction"):
        cut(tmp_path, "uno\n\ndos", 0.1, 0.1)
