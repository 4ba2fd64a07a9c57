"""Blocks and norms against their formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.model.attention import causal_mask
from stages.model.blocks import UnbiasedNorm, keep
from stages.model.language_model import LanguageModel

NewModel = Callable[..., LanguageModel]
X_BTD = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))


def formula(x: Tensor, norm: UnbiasedNorm) -> Tensor:
    return norm.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + norm.bias


@pytest.mark.parametrize(("scale", "tolerance"), [(1e3, 2e-6), (10, 2e-6), (1, 5e-6), (0.1, 2e-4), (0.01, 2e-2)])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_unbiased_norm_is_the_notebooks_formula(scale: float, tolerance: float, offset: float) -> None:
    """Its eps stands inside the root, so it parts from the formula as the deviation nears 1e-3: by 1e-6 / s²."""
    norm = UnbiasedNorm(12).double()
    with torch.no_grad():
        norm.gain.copy_(torch.linspace(0.5, 2, 12))
        norm.bias.copy_(torch.linspace(-1, 1, 12))
    x = (X_BTD.double() + offset) * scale
    torch.testing.assert_close(norm(x), formula(x, norm), rtol=tolerance, atol=tolerance)


def test_equal_values_are_normalised_to_the_bias() -> None:
    norm = UnbiasedNorm(4)
    assert torch.equal(norm(torch.full((1, 1, 4), 3.0)), torch.zeros(1, 1, 4))


def test_a_fresh_norm_has_gain_one_and_bias_zero() -> None:
    norm = UnbiasedNorm(3)
    assert (norm.gain.tolist(), norm.bias.tolist()) == ([1, 1, 1], [0, 0, 0])


@pytest.mark.parametrize("kind", ["notebook", "post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_each_block_is_its_formula_with_dropout_in_its_places(new_model: NewModel, kind: str, activation: str) -> None:
    block = new_model(block=kind, layers=1, activation=activation).blocks[0]
    mask = causal_mask(5)
    source = torch.Generator().manual_seed(1)
    masks = [torch.empty(2, 5, 12).bernoulli_(0.5, generator=source) * 2 for _ in range(2)]

    def attention(x: Tensor) -> Tensor:
        return block.attention(x, mask)[0]

    def feed_forward(x: Tensor) -> Tensor:
        f = block.feed_forward
        return f.w2({"relu": F.relu, "gelu": F.gelu}[activation](f.w1(x)))

    for first, second in (masks, [1, 1]):
        drops = iter([first, second])
        found, weights = block(X_BTD, mask, keep if first is second else lambda x: x * next(drops))  # noqa: B023
        if kind == "notebook":
            h = attention(X_BTD)
            expected = ((X_BTD + block.norm(h)) * first + block.norm(feed_forward(h))) * second
        elif kind == "post":
            x = block.norm1(X_BTD + attention(X_BTD) * first)
            expected = block.norm2(x + feed_forward(x) * second)
        else:
            x = X_BTD + attention(block.norm1(X_BTD)) * first
            expected = x + feed_forward(block.norm2(x)) * second
        torch.testing.assert_close(found, expected)
        assert weights is None
