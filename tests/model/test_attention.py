"""What must hold of masked self-attention: no look ahead, rows that sum to one, padding that changes nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stages.model.attention import CausalSelfAttention, attention_mask, causal_mask
from stages.model.language_model import LanguageModel, language_model_loss
from stages.text.vocabulary import PAD

BLOCKS, HEADS = ("notebook", "post", "pre"), ("full", "split")
NewModel = Callable[..., LanguageModel]
CHOICES = st.fixed_dictionaries(
    {
        "block": st.sampled_from(BLOCKS),
        "heads": st.sampled_from(HEADS),
        "layers": st.integers(1, 3),
        "positions": st.sampled_from(["paper", "notebook"]),
        "activation": st.sampled_from(["relu", "gelu"]),
        "tied_output": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


def sharpened(model: LanguageModel) -> LanguageModel:
    """The model with query and key weights a thousand times as large, so that a finite mask would be overtaken."""
    with torch.no_grad():
        for block in model.blocks:
            attention: CausalSelfAttention = block.attention
            rows = 2 * attention.n_heads * attention.head_width
            attention.qkv.weight[:rows] *= 1e3
    return model


@given(choices=CHOICES, sharp=st.booleans(), data=st.data())
def test_no_logit_depends_on_a_later_word(
    new_model: NewModel, choices: dict[str, Any], sharp: bool, data: st.DataObject
) -> None:
    model = sharpened(new_model(**choices)) if sharp else new_model(**choices)
    ids = data.draw(st.lists(st.integers(0, 19), min_size=2, max_size=8))
    changed = data.draw(st.integers(1, len(ids) - 1))
    other = [*ids[:changed], (ids[changed] + 7) % 20, *data.draw(st.permutations(ids[changed + 1 :]))]
    for return_weights in (False, True):
        with torch.inference_mode():
            before, _ = model(torch.tensor([ids]), return_weights=return_weights)
            after, _ = model(torch.tensor([other]), return_weights=return_weights)
        assert torch.equal(before[:, :changed], after[:, :changed])
        assert not torch.equal(before[:, changed:], after[:, changed:])


@given(choices=CHOICES, sharp=st.booleans(), ids=st.lists(st.integers(0, 19), min_size=1, max_size=8))
def test_weights_are_a_distribution_over_the_past(
    new_model: NewModel, choices: dict[str, Any], sharp: bool, ids: list[int]
) -> None:
    model = sharpened(new_model(**choices)) if sharp else new_model(**choices)
    with torch.inference_mode():
        _, weights = model(torch.tensor([ids]), return_weights=True)
    assert len(weights) == choices["layers"]
    for weights_BHTT in weights:
        assert weights_BHTT.shape == (1, 3, len(ids), len(ids))
        assert not weights_BHTT.triu(1).any()
        assert (weights_BHTT >= 0).all()
        torch.testing.assert_close(weights_BHTT.sum(dim=3), torch.ones(1, 3, len(ids)), rtol=0, atol=1e-5)


def test_rows_sum_to_one_over_keys_where_all_sizes_differ() -> None:
    B, H, T, K, D = 2, 3, 5, 4, 7
    source = torch.Generator().manual_seed(0)
    attention = CausalSelfAttention(D, H, K)
    x_BTD = torch.randn(B, T, D, generator=source)
    y_BTD, weights_BHTT = attention(x_BTD, causal_mask(T), return_weights=True)
    assert y_BTD.shape == (B, T, D)
    assert weights_BHTT.shape == (B, H, T, T)
    torch.testing.assert_close(weights_BHTT.sum(dim=3), torch.ones(B, H, T))
    assert weights_BHTT.max() <= 1

    # One head of one sentence, from the definition (Vaswani et al. 2017, equation 1).
    q_KD, k_KD, v_KD = attention.qkv.weight.view(3, H, K, D)[:, 1]
    x_TD = x_BTD[1]
    for i in range(T):
        scores = torch.stack([(q_KD @ x_TD[i]) @ (k_KD @ x_TD[j]) / math.sqrt(K) for j in range(i + 1)])
        torch.testing.assert_close(weights_BHTT[1, 1, i, : i + 1], scores.softmax(dim=0))
    heads_HTK = weights_BHTT[1] @ (attention.qkv.weight.view(3, H, K, D)[2] @ x_TD.T).transpose(1, 2)
    torch.testing.assert_close(heads_HTK[1], weights_BHTT[1, 1] @ (x_TD @ v_KD.T))
    torch.testing.assert_close(y_BTD[1], attention.out(heads_HTK.transpose(0, 1).reshape(T, H * K)))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("heads", HEADS)
def test_the_fast_path_is_the_path_that_shows_weights(new_model: NewModel, block: str, heads: str) -> None:
    model = new_model(block=block, heads=heads)
    ids_BT = torch.tensor([[1, 4, 5, 6], [1, 7, 8, 9]])
    fast, nothing = model(ids_BT)
    shown, weights = model(ids_BT, return_weights=True)
    torch.testing.assert_close(fast, shown)
    assert (len(nothing), len(weights)) == (0, 2)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize(("block", "heads", "side"), list(itertools.product(BLOCKS, HEADS, ("right", "left"))))
def test_a_sentence_is_the_same_alone_and_padded(
    new_model: NewModel, block: str, heads: str, side: str, return_weights: bool
) -> None:
    model = new_model(block=block, heads=heads, positions="notebook")
    sentences = [[1, 4], [1, 5, 6, 7, 8, 9, 10, 11, 12]]  # one word and eight
    targets = [[4, 2], [5, 6, 7, 8, 9, 10, 11, 12, 2]]

    def padded(rows: list[list[int]]) -> Tensor:
        padding = [[PAD] * (9 - len(row)) for row in rows]
        return torch.tensor([r + p if side == "right" else p + r for r, p in zip(rows, padding, strict=True)])

    ids_BT = padded(sentences)
    real_BT = ids_BT != PAD
    masks = {"right": [None, real_BT], "left": [real_BT]}[side]
    for real in masks:
        model.zero_grad()
        logits_BTV, _ = model(ids_BT, real_BT=real, return_weights=return_weights)
        loss = language_model_loss(logits_BTV, padded(targets), "cross_entropy", ignore=PAD)
        loss.backward()
        assert math.isfinite(loss.item())
        gradients = [weight.grad.clone() for weight in model.parameters()]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert logits_BTV.isfinite().all()

        model.zero_grad()
        total = torch.zeros(())
        for row, (sentence, target) in enumerate(zip(sentences, targets, strict=True)):
            alone_BTV, _ = model(torch.tensor([sentence]), return_weights=return_weights)
            torch.testing.assert_close(logits_BTV[row][real_BT[row]], alone_BTV[0], rtol=0, atol=1e-5)
            total = total + language_model_loss(alone_BTV, torch.tensor([target]), "cross_entropy", ignore=PAD) * len(
                target
            )
        (total / 11).backward()
        assert loss.item() == pytest.approx(total.item() / 11, abs=1e-5)
        for padded_gradient, weight in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(padded_gradient, weight.grad, rtol=0, atol=1e-5)


def test_no_row_of_a_mask_is_empty() -> None:
    real_BT = torch.tensor([[False, False, True, True], [True, True, True, False], [False] * 4])
    mask_BTT = attention_mask(real_BT)[:, 0]
    assert ((mask_BTT == 0) | mask_BTT.isneginf()).all()
    assert (mask_BTT == 0).any(dim=2).all()
    assert (mask_BTT[0] == 0).int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert torch.equal(mask_BTT[1, :3, :3], causal_mask(3))
