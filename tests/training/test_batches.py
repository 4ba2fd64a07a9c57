"""Sentences as batches, and random draws by purpose."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import ArtifactError
from stages.text.vocabulary import BOS, EOS, PAD, UNK
from stages.training.batches import Sentences
from stages.training.randomness import Dropout, generator

TEXTS = st.lists(st.lists(st.integers(UNK, 30), max_size=6), min_size=1, max_size=12)


def flat(text: list[list[int]]) -> Sentences:
    return Sentences(np.array([i for words in text for i in (BOS, *words, EOS)], dtype=np.uint16))


def test_a_batch_is_padded_on_the_right_to_its_longest_sentence() -> None:
    batch = flat([[4], [5, 6, 7], [8, 9, 9, 9, 9]]).batch([0, 1])
    assert batch.inputs_BT.tolist() == [[BOS, 4, EOS, PAD], [BOS, 5, 6, 7]]
    assert batch.targets_BT.tolist() == [[4, EOS, PAD, PAD], [5, 6, 7, EOS]]


@given(TEXTS, st.integers(1, 20), st.integers(0, 5))
def test_every_word_and_end_is_a_target_once_an_epoch(text: list[list[int]], size: int, seed: int) -> None:
    sentences = flat(text)
    expected = Counter(i for words in text for i in (*words, EOS))
    for batches in (sentences.in_order(size), sentences.shuffled(size, torch.Generator().manual_seed(seed))):
        sizes, found = [], Counter()
        for batch in batches:
            sizes.append(len(batch.targets_BT))
            real = batch.targets_BT != PAD
            found.update(batch.targets_BT[real].tolist())
            assert torch.equal(
                batch.inputs_BT[:, 1:][real[:, :-1] & real[:, 1:]], batch.targets_BT[:, :-1][real[:, 1:]]
            )
        assert sizes[:-1] == [size] * (len(sizes) - 1)
        assert sum(sizes) == len(sentences) == len(text)
        assert found == expected
    assert sentences.targets == expected.total() == sum(len(words) + 1 for words in text)


def test_each_epoch_has_a_new_order_that_the_seed_decides() -> None:
    sentences = flat([[i] for i in range(4, 14)])

    def orders(seed: int) -> list[list[int]]:
        source = generator(seed, "order")
        return [[int(b.inputs_BT[0, 1]) for b in sentences.shuffled(1, source)] for _ in range(3)]

    first = orders(0)
    assert first == orders(0)
    assert first != orders(1)
    assert len({tuple(order) for order in first}) == 3
    assert all(sorted(order) == list(range(4, 14)) for order in first)


def test_loading(tmp_path: Path) -> None:
    path = tmp_path / "train.npy"
    with pytest.raises(ArtifactError, match=r"train\.npy: not there; `dvc repro` makes it"):
        Sentences.load(path)
    np.save(path, flat([[4], []]).ids)
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


def test_purposes_and_seeds_have_draws_of_their_own() -> None:
    draws = {
        (seed, purpose): torch.rand(8, generator=generator(seed, purpose))
        for seed in (0, 1, 2**32 - 1)
        for purpose in ("init", "order", "dropout")
    }
    assert len({tuple(draw.tolist()) for draw in draws.values()}) == 9
    assert torch.equal(draws[0, "init"], torch.rand(8, generator=generator(0, "init")))


def test_one_purpose_does_not_shift_another() -> None:
    order, drop = generator(3, "order"), Dropout(0.5, generator(3, "dropout"))
    for _ in range(5):
        drop(torch.ones(100))
    assert torch.equal(torch.randperm(50, generator=order), torch.randperm(50, generator=generator(3, "order")))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_dropout_keeps_the_mean_and_drops_its_share(p: float) -> None:
    drop = Dropout(p, generator(0, "dropout"))
    x = torch.full((500, 1000), 2.0)
    y = drop(x)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(2 / (1 - p)).item()}
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / 500_000) ** 0.5)
    assert y.double().mean().item() == pytest.approx(2, abs=0.02 + 0.03 * (p > 0.5))


def test_every_mask_is_new_and_the_seed_decides_them() -> None:
    def masks(seed: int) -> list[list[float]]:
        drop = Dropout(0.5, generator(seed, "dropout"))
        return [drop.mask(torch.Size([7, 9])).flatten().tolist() for _ in range(1500)]  # longer than the pool

    first = masks(0)
    assert len({tuple(mask) for mask in first}) == 1500
    assert first == masks(0)
    assert first != masks(1)


def test_without_dropout_nothing_is_drawn() -> None:
    source = generator(0, "dropout")
    x = torch.ones(3)
    assert Dropout(0.0, source)(x) is x
    assert torch.equal(torch.rand(3, generator=source), torch.rand(3, generator=generator(0, "dropout")))
