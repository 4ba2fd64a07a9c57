"""Random draws by purpose, and the masks of dropout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.training.randomness import Dropout, Masks, generator


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
        drop.masks(100)
    assert torch.equal(torch.randperm(50, generator=order), torch.randperm(50, generator=generator(3, "order")))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_dropout_keeps_the_mean_and_drops_its_share(p: float) -> None:
    masks = Dropout(p, generator(0, "dropout")).masks(500, 1000)
    assert set(np.unique(masks).tolist()) == {0.0, torch.tensor(1 / (1 - p)).item()}
    assert (masks == 0).mean() == pytest.approx(p, abs=5 * (p * (1 - p) / 500_000) ** 0.5)
    assert masks.mean(dtype=np.float64) == pytest.approx(1, abs=0.01 + 0.015 * (p > 0.5))


def test_every_mask_is_new_and_the_seed_decides_them() -> None:
    def masks(seed: int) -> list[list[float]]:
        drop = Dropout(0.5, generator(seed, "dropout"))
        return [drop.masks(7, 9).flatten().tolist() for _ in range(1500)]  # longer than the pool

    first = masks(0)
    assert len({tuple(mask) for mask in first}) == 1500
    assert first == masks(0)
    assert first != masks(1)


def test_masks_have_the_shape_asked_for_and_are_cut_in_order() -> None:
    one, other = (Dropout(0.5, generator(0, "dropout")) for _ in range(2))
    assert np.array_equal(one.masks(3, 2, 5, 4).flatten(), other.masks(120))
    assert one.masks(2, 3).shape == (2, 3)


@given(st.lists(st.integers(1, 50_000), max_size=5), st.lists(st.integers(1, 150_000), min_size=1, max_size=4))
def test_from_a_position_the_draws_go_on(before: list[int], after: list[int]) -> None:
    """Also where one mask is larger than a pool."""
    drop, again = Dropout(0.3, generator(1, "dropout")), Dropout(0.3, generator(2, "dropout"))
    for n in before:
        drop.masks(n)
    again.go_to(*drop.position())
    for n in after:
        assert again.position()[1] == drop.position()[1]
        assert torch.equal(again.position()[0], drop.position()[0])
        assert np.array_equal(again.masks(n), drop.masks(n))


def test_given_masks_are_played_in_order() -> None:
    masks = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    drop = Masks(masks.unbind(0))
    x = torch.tensor([3.0, 5.0])
    assert drop(x).tolist() == [3.0, 0.0]
    assert drop(x).tolist() == [0.0, 10.0]
    with pytest.raises(StopIteration):
        drop(x)
