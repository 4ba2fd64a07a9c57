"""Loss and gradients of a notebook-style model in one pass, written out instead of left to autograd.

With one short sentence an update, autograd's book-keeping costs more than the arithmetic. Here each gradient is
computed where it is kept, in the parameter's `.grad`, which is overwritten. The formulas are those of any textbook; a
test compares them with autograd's.

Shapes: B sentences, T positions, R = B · T rows, D = d_model, H heads, K width of a head, N = B · H, V vocabulary.
A name `dx` stands for the derivative of the loss by `x`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.model.attention import SHORT
from stages.model.blocks import NotebookBlock
from stages.model.language_model import LanguageModel
from stages.text.vocabulary import PAD

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default
_softmax_backward = torch._softmax_backward_data
Saved = tuple[Any, ...]


class _Block(NamedTuple):
    """The parameters of a block, looked up once; their gradients are in their `.grad`."""

    heads: int
    width: int  # of a head
    qkv: Tensor
    out: tuple[Tensor, Tensor]  # weight and bias
    w1: tuple[Tensor, Tensor]
    w2: tuple[Tensor, Tensor]
    gain: Tensor
    shift: Tensor
    scale: float  # of the gain
    eps: float

    @classmethod
    def of(cls, block: NotebookBlock) -> _Block:
        attention, f, norm = block.attention, block.feed_forward, block.norm
        out, w1, w2 = ((linear.weight, linear.bias) for linear in (attention.out, f.w1, f.w2))
        norms = (norm.gain, norm.bias, norm.scale, norm.eps)
        return cls(attention.n_heads, attention.head_width, attention.qkv.weight, out, w1, w2, *norms)


class ByHand:
    """Loss and gradients of one model; see `fits`."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._d_model, self._drops = model, model.config.d_model, model.dropouts
        self._embedding, self._output = model.embedding.weight, (model.output.weight, model.output.bias)
        self._blocks = [_Block.of(cast(NotebookBlock, block)) for block in model.blocks]

    @staticmethod
    def fits(model: LanguageModel, length: int) -> bool:
        """Whether this is for such a model and sentences of that length."""
        config = model.config
        return config.block == "notebook" and config.activation == "relu" and not config.tied_output and length <= SHORT

    @torch.no_grad()
    def loss_and_gradients(
        self, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Tensor | None, kind: str, scale: float
    ) -> float:
        """Write the gradients of `scale` times the summed loss into the parameters' `.grad`.

        Args:
            inputs_BT: ids.
            targets_BT: ids; those that are [pad] do not count.
            masks_NBTD: dropout, one mask before the blocks and two in each; None for none.
            kind: of the loss, as in `language_model_loss`.
            scale: of the gradients, one over the number of targets for those of the mean.

        Returns:
            The summed loss, in nats.
        """
        (B, T), D = inputs_BT.shape, self._d_model
        ids_R, targets_R = inputs_BT.flatten(), targets_BT.flatten()
        if masks_NBTD is None:
            masks = [torch.ones(1)] * self._drops
        else:
            masks = list(masks_NBTD.reshape(self._drops, B * T, D).unbind(0))
        positions_TD, mask_TT = self._model.positions_and_mask(T)
        if B > 1:
            positions_TD = positions_TD.repeat(B, 1)

        # forward
        x_RD = torch.add(positions_TD, torch.embedding(self._embedding, ids_R), alpha=D**0.5).mul_(masks[0])
        saved = []
        for i, block in enumerate(self._blocks):
            x_RD, kept = _forward(block, x_RD, mask_TT, masks[1 + 2 * i], masks[2 + 2 * i], B)
            saved.append(kept)
        weight, bias = self._output
        logits_RV = torch.addmm(bias, x_RD, weight.t())
        p_RV = logits_RV.softmax(dim=1) if kind == "notebook" else logits_RV
        log_q_RV = p_RV.log_softmax(dim=1)
        loss = F.nll_loss(log_q_RV, targets_R, ignore_index=PAD, reduction="sum").item()

        # backward: softmax minus the target, for each row that has one
        d_RV = log_q_RV.exp_()
        d_RV.scatter_add_(1, targets_R[:, None], torch.full((B * T, 1), -1.0))
        d_RV.mul_((targets_R != PAD)[:, None]).mul_(scale)
        if kind == "notebook":
            d_RV = _softmax_backward(d_RV, p_RV, 1, d_RV.dtype)
        d_RD = _linear_backward(self._output, d_RV, x_RD)
        for block, kept in zip(reversed(self._blocks), reversed(saved), strict=True):
            d_RD = _backward(block, kept, d_RD)
        assert self._embedding.grad is not None  # noqa: S101 (for the type checker)
        self._embedding.grad.zero_().index_add_(0, ids_R, d_RD.mul_(masks[0]).mul_(D**0.5))
        return loss


def _forward(
    block: _Block, x_RD: Tensor, mask_TT: Tensor, drop1: Tensor, drop2: Tensor, B: int
) -> tuple[Tensor, Saved]:
    """`h = attention(x); drop2 · (drop1 · (x + norm(h)) + norm(feed_forward(h)))`, and what the way back needs."""
    (rows, D), H, K = x_RD.shape, block.heads, block.width
    T = rows // B
    qkv = (x_RD @ block.qkv.t()).view(B, T, 3, H, K).permute(2, 0, 3, 1, 4).reshape(3, B * H, T, K)
    q_NTK, k_NTK, v_NTK = qkv.unbind(0)
    weights_NTT = torch.baddbmm(mask_TT, q_NTK, k_NTK.transpose(1, 2), alpha=K**-0.5).softmax(dim=2)
    y_RHK = torch.bmm(weights_NTT, v_NTK).view(B, H, T, K).transpose(1, 2).reshape(-1, H * K)
    h_RD = _linear(block.out, y_RHK)
    gain = block.gain * block.scale
    norm1_RD, *stats1 = torch.native_layer_norm(h_RD, (D,), gain, block.shift, block.eps)
    a_RF = _linear(block.w1, h_RD).relu_()
    f_RD = _linear(block.w2, a_RF)
    norm2_RD, *stats2 = torch.native_layer_norm(f_RD, (D,), gain, block.shift, block.eps)
    out_RD = norm1_RD.add_(x_RD).mul_(drop1).add_(norm2_RD).mul_(drop2)
    return out_RD, (B, T, x_RD, qkv, weights_NTT, y_RHK, h_RD, gain, stats1, a_RF, f_RD, stats2, drop1, drop2)


def _backward(block: _Block, saved: Saved, d_RD: Tensor) -> Tensor:
    """The derivative by the block's input; those by its parameters go where they belong."""
    B, T, x_RD, qkv, weights_NTT, y_RHK, h_RD, gain, stats1, a_RF, f_RD, stats2, drop1, drop2 = saved
    H, K, D = block.heads, block.width, x_RD.shape[1]
    q_NTK, k_NTK, v_NTK = qkv.unbind(0)

    dnorm2_RD = d_RD.mul_(drop2)
    dx_RD: Tensor = dnorm2_RD * drop1  # of x + norm(h): into x directly, and into the first norm
    df_RD, dgain2, dshift2 = _layer_norm_backward(dnorm2_RD, f_RD, (D,), *stats2, gain, block.shift, (True,) * 3)
    da_RF = _linear_backward(block.w2, df_RD, a_RF).mul_(a_RF > 0)
    dh_RD, dgain1, dshift1 = _layer_norm_backward(dx_RD, h_RD, (D,), *stats1, gain, block.shift, (True,) * 3)
    torch.add(dgain1, dgain2, out=block.gain.grad).mul_(block.scale)
    torch.add(dshift1, dshift2, out=block.shift.grad)
    dh_RD.add_(_linear_backward(block.w1, da_RF, h_RD))

    dy_NTK = _linear_backward(block.out, dh_RD, y_RHK).view(B, T, H, K).transpose(1, 2).reshape(-1, T, K)
    dweights_NTT = torch.bmm(dy_NTK, v_NTK.transpose(1, 2))
    dscores_NTT = _softmax_backward(dweights_NTT, weights_NTT, 2, weights_NTT.dtype).mul_(K**-0.5)
    dqkv = torch.empty_like(qkv)
    torch.bmm(dscores_NTT, k_NTK, out=dqkv[0])
    torch.bmm(dscores_NTT.transpose(1, 2), q_NTK, out=dqkv[1])
    torch.bmm(weights_NTT.transpose(1, 2), dy_NTK, out=dqkv[2])
    dqkv = dqkv.view(3, B, H, T, K).permute(1, 3, 0, 2, 4).reshape(-1, 3 * H * K)
    torch.mm(dqkv.t(), x_RD, out=block.qkv.grad)
    dx_RD.addmm_(dqkv, block.qkv)
    return dx_RD


def _linear(parameters: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """`x Wᵀ + b` over rows."""
    weight, bias = parameters
    return torch.addmm(bias, x, weight.t())


def _linear_backward(parameters: tuple[Tensor, Tensor], dy: Tensor, x: Tensor) -> Tensor:
    """The derivative of `_linear` by x; those by weight and bias go where they belong."""
    weight, bias = parameters
    torch.mm(dy.t(), x, out=weight.grad)
    torch.sum(dy, 0, out=bias.grad)
    return dy @ weight
