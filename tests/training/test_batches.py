"""Text as batches: sentences in any order or by length, windows of a fixed length, and the epochs made of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from stages.errors import ArtifactError, ParamError
from stages.text.vocabulary import BOS, EOS, PAD, UNK
from stages.training.batches import Batch, Epochs, Sentences, Windows
from stages.training.randomness import generator
from tests.training.small import sentences

TEXTS = st.lists(st.lists(st.integers(UNK, 30), max_size=6), min_size=1, max_size=12)
LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def numbered(lengths: list[int]) -> Sentences:
    """Sentences of these lengths in which no word comes twice."""
    words = itertools.count(4)
    return sentences([list(itertools.islice(words, length)) for length in lengths])


def batches_of(epochs: Epochs, source: torch.Generator) -> Iterator[Batch]:
    """The batches of the next epoch."""
    epoch = epochs.draw(source)
    return (epoch.batch(i) for i in range(epochs.per_epoch))


def targets_of(batch: Batch) -> list[int]:
    return batch.targets_BT[batch.targets_BT != PAD].tolist()


# --- sentences --------------------------------------------------------------------------------------------------------


def test_a_batch_is_padded_on_the_right_to_its_longest_sentence() -> None:
    batch = sentences([[4], [5, 6, 7], [8, 9, 9, 9, 9]]).batch([0, 1])
    assert batch.inputs_BT.tolist() == [[BOS, 4, EOS, PAD], [BOS, 5, 6, 7]]
    assert batch.targets_BT.tolist() == [[4, EOS, PAD, PAD], [5, 6, 7, EOS]]
    assert batch.count == 6


@given(TEXTS, st.integers(1, 20), st.integers(0, 5), st.sampled_from(["shuffled", "bucketed"]))
def test_every_word_and_end_is_a_target_once_an_epoch(
    text: list[list[int]], size: int, seed: int, batches: str
) -> None:
    whole = sentences(text)
    expected = Counter(i for words in text for i in (*words, EOS))
    source = torch.Generator().manual_seed(seed)
    drawn = batches_of(Epochs(whole, batches, size, context=64), source)
    sizes: list[int] = []
    found: Counter[int] = Counter()
    for batch in drawn:
        sizes.append(len(batch.targets_BT))
        real = batch.targets_BT != PAD
        assert batch.count == real.sum().item()
        found.update(targets_of(batch))
        assert torch.equal(batch.inputs_BT[:, 1:][real[:, :-1] & real[:, 1:]], batch.targets_BT[:, :-1][real[:, 1:]])
    # The turn of the smaller one of a bucketed epoch is drawn as well.
    assert sorted(sizes)[1:] == [size] * (len(sizes) - 1)
    assert batches == "bucketed" or sizes[:-1] == [size] * (len(sizes) - 1)
    assert sum(sizes) == len(whole) == len(text)
    assert found == expected
    assert whole.targets == expected.total() == sum(len(words) + 1 for words in text)


@pytest.mark.parametrize("batches", ["shuffled", "bucketed"])
def test_each_epoch_has_a_new_order_that_the_seed_decides(batches: str) -> None:
    epochs = Epochs(sentences([[i] for i in range(4, 14)]), batches, 1, context=64)

    def orders(seed: int) -> list[list[int]]:
        source = generator(seed, "order")
        return [[int(batch.inputs_BT[0, 1]) for batch in batches_of(epochs, source)] for _ in range(3)]

    first = orders(0)
    assert first == orders(0)
    assert first != orders(1)
    assert len({tuple(order) for order in first}) == 3
    assert all(sorted(order) == list(range(4, 14)) for order in first)


def padding(epochs: Epochs, count: int) -> float:
    """Share of the cells of an epoch of `count` targets that hold no target."""
    cells = sum(batch.targets_BT.numel() for batch in batches_of(epochs, generator(0, "order")))
    return 1 - count / cells


@pytest.mark.parametrize("count", [300, 3000])  # one pool of sentences, and several
def test_bucketed_batches_pad_less(count: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, count).tolist()
    whole = numbered(lengths)
    shares = {batches: padding(Epochs(whole, batches, 8, 64), whole.targets) for batches in ("shuffled", "bucketed")}
    assert shares["bucketed"] < 0.05 < 0.3 < shares["shuffled"]


@given(LENGTHS, st.integers(1, 4), st.integers(0, 5))
def test_bucketed_batches_hold_sentences_of_like_length(lengths: list[int], size: int, seed: int) -> None:
    """Of one pool: cut anywhere between two batches, all of one side are at most as long as all of the other."""
    epochs = Epochs(numbered(lengths), "bucketed", size, 64)
    found = [(batch.targets_BT != PAD).sum(1).tolist() for batch in batches_of(epochs, generator(seed, "order"))]
    found.sort(key=lambda batch: (min(batch), max(batch)))
    assert all(max(one) <= min(other) for one, other in itertools.pairwise(found))


def test_sentences_that_do_not_end_are_refused() -> None:
    with pytest.raises(ValueError, match="the first must begin with"):
        Sentences(np.array([4, EOS], dtype=np.uint16))
    broken = Sentences(np.array([BOS, 4, BOS, 4, EOS], dtype=np.uint16))
    with pytest.raises(ValueError, match="each sentence must begin with"):
        len(broken)


def test_loading(tmp_path: Path) -> None:
    path = tmp_path / "train.npy"
    with pytest.raises(ArtifactError, match=r"train\.npy: not there; `dvc repro` makes it"):
        Sentences.load(path)
    np.save(path, sentences([[4], []]).ids)
    assert Sentences.load(path).batch([0, 1]).targets_BT.tolist() == [[4, EOS], [EOS, PAD]]
    np.save(path, np.array([BOS, 4, EOS, BOS], dtype=np.uint16))
    with pytest.raises(ArtifactError, match="not the ids of sentences"):
        Sentences.load(path)
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(ArtifactError, match="not the ids of sentences"):
        Sentences.load(path)
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="not the ids of sentences"):
        Sentences.load(path)
    np.save(path, np.array([], dtype=np.uint16))
    assert len(Sentences.load(path)) == 0


def test_bounds_are_found_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.training.batches._CHUNK", 3)
    whole = sentences([[4, 5, 6], [], [7], [8, 9]])
    assert whole.bounds.tolist() == [0, 5, 7, 10, 14]
    assert whole.lengths.tolist() == [5, 2, 3, 4]


@given(TEXTS, st.integers(1, 9))
def test_long_sentences_come_in_windows_that_begin_where_the_last_one_ended(
    text: list[list[int]], longest: int
) -> None:
    whole = sentences(text)
    cut = whole.within(longest)
    rows = [cut.batch([i]) for i in range(len(cut))]
    assert all(1 <= row.inputs_BT.shape[1] <= longest for row in rows)
    assert [i for row in rows for i in targets_of(row)] == [i for words in text for i in (*words, EOS)]
    assert [i for row in rows for i in row.inputs_BT[0].tolist()] == [i for words in text for i in (BOS, *words)]
    assert sum(row.count for row in rows) == cut.targets == whole.targets
    assert cut.lengths.tolist() == [row.count + 1 for row in rows]


def test_sentences_that_fit_stay_as_they_are() -> None:
    whole = numbered([3, 5])
    assert whole.within(6) is whole
    assert len(whole.within(5)) == 3


# --- windows ----------------------------------------------------------------------------------------------------------


def test_a_window_runs_across_sentences_and_nobody_predicts_a_beginning() -> None:
    windows = Windows(sentences([[4, 5], [6], [7, 8, 9]]).ids, context=4, offset=1)
    batch = windows.batch([0, 1])
    assert batch.inputs_BT.tolist() == [[4, 5, EOS, BOS], [6, EOS, BOS, 7]]
    assert batch.targets_BT.tolist() == [[5, EOS, PAD, 6], [EOS, PAD, 7, 8]]
    assert batch.count == 6


@given(LENGTHS, st.integers(2, 12), st.integers(1, 5), st.integers(0, 99))
def test_packed_windows_have_every_target_at_most_once_an_epoch(
    lengths: list[int], context: int, size: int, seed: int
) -> None:
    whole = numbered(lengths)
    assume(len(whole.ids) > context)
    following = dict(itertools.pairwise(whole.ids.tolist()))  # of words, which come once
    epochs = Epochs(whole, "packed", size, context)
    source = generator(seed, "order")
    for _ in range(3):
        found: Counter[int] = Counter()
        for batch in batches_of(epochs, source):
            assert batch.inputs_BT.shape[1] == context
            assert batch.count == len(targets_of(batch)) >= context // 2
            found.update(targets_of(batch))
            for word, target in zip(
                batch.inputs_BT.flatten().tolist(), batch.targets_BT.flatten().tolist(), strict=True
            ):
                assert target == PAD if word == EOS else word == BOS or target == following[word]
        assert found[BOS] == 0
        assert found.pop(EOS, 0) <= len(whole)
        assert all(count == 1 for count in found.values())


@pytest.mark.parametrize(("words", "context"), [(60, 7), (62, 8), (13, 8), (9, 8), (100, 10)])
def test_over_many_epochs_every_target_has_its_turn(words: int, context: int) -> None:
    """Also the last ones, however many tokens are left over after whole windows."""
    whole = numbered([words])
    epochs = Epochs(whole, "packed", 2, context)
    source = generator(0, "order")
    found = Counter(i for _ in range(300) for batch in batches_of(epochs, source) for i in targets_of(batch))
    assert set(found) == {*range(4, 4 + words), EOS}


def test_each_epoch_has_windows_of_its_own_that_the_seed_decides() -> None:
    epochs = Epochs(numbered([40]), "packed", 1, 8)

    def epochs_of(seed: int) -> list[list[int]]:
        source = generator(seed, "order")
        return [[int(batch.inputs_BT[0, 0]) for batch in batches_of(epochs, source)] for _ in range(8)]

    first = epochs_of(0)
    assert first == epochs_of(0)
    assert first != epochs_of(1)
    assert len({frozenset(windows) for windows in first}) >= 4  # other windows, not only another order
    assert any(windows != sorted(windows) for windows in first)


@given(st.integers(3, 40), st.integers(2, 12), st.integers(1, 5))
def test_an_epoch_of_windows_has_the_length_it_says(words: int, context: int, size: int) -> None:
    assume(words + 2 > context)
    epochs = Epochs(numbered([words]), "packed", size, context)
    sizes = [len(batch.inputs_BT) for batch in batches_of(epochs, generator(0, "order"))]
    assert len(sizes) == epochs.per_epoch
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert 1 <= sizes[-1] <= size
    # At most one window's worth and what is left over of the text has no turn in an epoch.
    assert sum(sizes) * context > words + 1 - 2 * context


def test_a_text_without_room_for_a_window_is_refused_by_name() -> None:
    short = numbered([6])  # 8 tokens
    assert Epochs(short, "packed", 4, 7).per_epoch == 1
    with pytest.raises(ParamError, match=r"^params\.yaml: context = 8: expected less than the 8 tokens of the text$"):
        Epochs(short, "packed", 4, 8)
    assert Epochs(short, "shuffled", 4, 8).per_epoch == 1


def test_a_window_of_one_token_is_refused_since_it_may_have_nothing_to_predict() -> None:
    with pytest.raises(ParamError, match=r"^params\.yaml: context = 1: expected at least 2 with batches: packed"):
        Epochs(numbered([3, 3]), "packed", 1, 1)
