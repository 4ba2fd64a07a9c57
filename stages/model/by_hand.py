"""Loss and gradients of a notebook-style model in one pass, written out in NumPy instead of left to autograd.

With one short sentence an update, torch's book-keeping for each operator and for autograd costs more than the
arithmetic; NumPy's is a fraction of it. The arrays are views of the parameters' own memory: each gradient is written
where it is kept, in the parameter's `.grad`, which is overwritten. The formulas are those of any textbook; a test
compares them with autograd's.

Shapes: B sentences, T positions, R = B · T rows, D = d_model, H heads, K width of a head, V vocabulary.
A name `dx` stands for the derivative of the loss by `x`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stages.model.attention import SHORT
from stages.model.blocks import NotebookBlock, UnbiasedNorm
from stages.model.language_model import LanguageModel
from stages.text.vocabulary import PAD

Array = npt.NDArray[Any]
Saved = tuple[Any, ...]  # what the way back needs of the way there


class ByHand:
    """Loss and gradients of one model; see `fits`."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._embedding, self._dembedding = _memory(model.embedding.weight)
        self._blocks = [_Block(cast(NotebookBlock, block)) for block in model.blocks]
        self._output = _Linear(model.output)
        self._tables: dict[int, list[Array]] = {}

    @staticmethod
    def fits(model: LanguageModel, length: int) -> bool:
        """Whether this is for such a model and sentences of that length."""
        config = model.config
        return config.block == "notebook" and config.activation == "relu" and not config.tied_output and length <= SHORT

    @np.errstate(all="ignore")  # a loss that is not finite is the caller's to notice
    def loss_and_gradients(
        self, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Array | None, kind: str, scale: float
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
        (B, T), D, N = inputs_BT.shape, self._embedding.shape[1], self._model.dropouts
        ids_R, targets_R = inputs_BT.numpy().reshape(-1), targets_BT.numpy().reshape(-1)
        rows_R, real_R = np.arange(B * T), targets_R != PAD
        masks: Any = [1] * N if masks_NBTD is None else masks_NBTD.reshape(N, B * T, D)
        positions_TD, mask_TT = self._tables.get(T) or self._tables_of(T)

        # forward
        x_RD = self._embedding[ids_R]
        x_RD *= D**0.5
        x_BTD = x_RD.reshape(B, T, D)
        x_BTD += positions_TD
        x_RD *= masks[0]
        saved = []
        for i, block in enumerate(self._blocks):
            x_RD, kept = block.forward(x_RD, mask_TT, masks[1 + 2 * i], masks[2 + 2 * i], B)
            saved.append(kept)
        logits_RV = self._output.forward(x_RD)
        p_RV = _softmax(logits_RV) if kind == "notebook" else logits_RV
        log_q_RV = torch.from_numpy(p_RV).log_softmax(1)
        loss = -log_q_RV.numpy()[rows_R, targets_R][real_R].sum(dtype=np.float64)

        # backward: softmax minus the target, for each row that has one
        d_RV = log_q_RV.exp_().numpy()
        d_RV[rows_R, targets_R] -= 1
        d_RV *= (real_R * scale).astype(d_RV.dtype)[:, None]
        if kind == "notebook":
            d_RV = _softmax_backward(d_RV, p_RV)
        d_RD = self._output.backward(d_RV, x_RD)
        for block, kept in zip(reversed(self._blocks), reversed(saved), strict=True):
            d_RD = block.backward(d_RD, kept)
        d_RD *= masks[0]
        d_RD *= D**0.5
        self._dembedding.fill(0)
        np.add.at(self._dembedding, ids_R, d_RD)
        return float(loss)

    def _tables_of(self, T: int) -> list[Array]:
        """Position encodings [T, D] and mask [T, T], found once for each of the few lengths that this is for."""
        self._tables[T] = [table.numpy() for table in self._model.positions_and_mask(T)]
        return self._tables[T]


class _Block:
    """`h = attention(x); drop2 · (drop1 · (x + norm(h)) + norm(feed_forward(h)))`."""

    def __init__(self, block: NotebookBlock) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self._heads, self._width = attention.n_heads, attention.head_width
        self._qkv, self._out = _Linear(attention.qkv), _Linear(attention.out)
        self._w1, self._w2 = _Linear(feed_forward.w1), _Linear(feed_forward.w2)
        self._norm = _Norm(block.norm)

    def forward(self, x_RD: Array, mask_TT: Array, drop1: Array, drop2: Array, B: int) -> tuple[Array, Saved]:
        H, K = self._heads, self._width
        qkv = self._qkv.forward(x_RD).reshape(B, -1, 3, H, K)
        q_BHTK, k_BHTK, v_BHTK = qkv.transpose(2, 0, 3, 1, 4)
        scores_BHTT = q_BHTK @ k_BHTK.swapaxes(2, 3)
        scores_BHTT *= K**-0.5
        scores_BHTT += mask_TT
        w_BHTT = _softmax(scores_BHTT)
        y_RC = (w_BHTT @ v_BHTK).swapaxes(1, 2).reshape(-1, H * K)  # C = H · K
        h_RD = self._out.forward(y_RC)
        out_RD, saved1 = self._norm.forward(h_RD)
        a_RF = np.maximum(self._w1.forward(h_RD), 0)
        norm2_RD, saved2 = self._norm.forward(self._w2.forward(a_RF))
        out_RD += x_RD
        out_RD *= drop1
        out_RD += norm2_RD
        out_RD *= drop2
        return out_RD, (x_RD, q_BHTK, k_BHTK, v_BHTK, w_BHTT, y_RC, h_RD, saved1, a_RF, saved2, drop1, drop2)

    def backward(self, d_RD: Array, saved: Saved) -> Array:
        """The derivative by the block's input; those by its parameters go where they belong."""
        x_RD, q_BHTK, k_BHTK, v_BHTK, w_BHTT, y_RC, h_RD, saved1, a_RF, saved2, drop1, drop2 = saved
        B, H, T, K = q_BHTK.shape
        d_RD *= drop2  # of norm2
        dx_RD: Array = d_RD * drop1  # of x + norm(h): into x directly, and into the first norm
        da_RF = self._w2.backward(self._norm.backward(d_RD, saved2), a_RF)
        da_RF *= a_RF > 0
        dh_RD = self._norm.backward(dx_RD, saved1, again=True)
        dh_RD += self._w1.backward(da_RF, h_RD)

        dy_BHTK = self._out.backward(dh_RD, y_RC).reshape(B, T, H, K).swapaxes(1, 2)
        dscores_BHTT = _softmax_backward(dy_BHTK @ v_BHTK.swapaxes(2, 3), w_BHTT)
        dscores_BHTT *= K**-0.5
        dqkv = np.empty((B, T, 3, H, K), x_RD.dtype)
        dq_BHTK, dk_BHTK, dv_BHTK = dqkv.transpose(2, 0, 3, 1, 4)
        np.matmul(dscores_BHTT, k_BHTK, out=dq_BHTK)
        np.matmul(dscores_BHTT.swapaxes(2, 3), q_BHTK, out=dk_BHTK)
        np.matmul(w_BHTT.swapaxes(2, 3), dy_BHTK, out=dv_BHTK)
        dx_RD += self._qkv.backward(dqkv.reshape(B * T, -1), x_RD)
        return dx_RD


class _Linear:
    """`x Wᵀ + b` over rows."""

    def __init__(self, layer: nn.Linear) -> None:
        self._weight, self._dweight = _memory(layer.weight)
        self._bias, self._dbias = _memory(layer.bias) if layer.bias is not None else (None, None)

    def forward(self, x: Array) -> Array:
        y: Array = x @ self._weight.T
        if self._bias is not None:
            y += self._bias
        return y

    def backward(self, dy: Array, x: Array) -> Array:
        np.matmul(dy.T, x, out=self._dweight)
        if self._dbias is not None:
            dy.sum(0, out=self._dbias)
        dx: Array = dy @ self._weight
        return dx


class _Norm:
    """`gain · scale · n + bias` with `n = (x - mean) / sqrt(variance + eps)` of each row; a block uses it twice."""

    def __init__(self, norm: UnbiasedNorm) -> None:
        self._gain, self._dgain = _memory(norm.gain)
        self._bias, self._dbias = _memory(norm.bias)
        self._scale, self._eps = norm.scale, norm.eps
        self._mean_D1 = np.full((len(self._gain), 1), 1 / len(self._gain), self._gain.dtype)  # x @ it: mean of each row

    def forward(self, x_RD: Array) -> tuple[Array, Saved]:
        n_RD = x_RD - x_RD @ self._mean_D1
        r_R1 = 1 / np.sqrt((n_RD * n_RD) @ self._mean_D1 + self._eps)
        n_RD *= r_R1
        gain_D = self._gain * self._scale
        y_RD: Array = n_RD * gain_D
        y_RD += self._bias
        return y_RD, (n_RD, r_R1, gain_D)

    def backward(self, dy_RD: Array, saved: Saved, *, again: bool = False) -> Array:
        """The derivative by x; those by gain and bias are added to what is there the second time."""
        n_RD, r_R1, gain_D = saved
        dgain_D, dbias_D = (dy_RD * n_RD).sum(0), dy_RD.sum(0)
        dgain_D *= self._scale
        if again:
            self._dgain += dgain_D
            self._dbias += dbias_D
        else:
            self._dgain[:], self._dbias[:] = dgain_D, dbias_D
        dx_RD: Array = dy_RD * gain_D
        dx_RD -= n_RD * ((dx_RD * n_RD) @ self._mean_D1) + dx_RD @ self._mean_D1
        dx_RD *= r_R1
        return dx_RD


def _memory(parameter: Tensor) -> tuple[Array, Array]:
    """A parameter and its gradient, as arrays over the same memory."""
    if parameter.grad is None:
        raise ValueError("the parameters must have gradients to write to")
    return parameter.detach().numpy(), parameter.grad.numpy()


def _softmax(x: Array) -> Array:
    """torch's, whose exponential is the same on every processor."""
    p: Array = torch.from_numpy(x).softmax(-1).numpy()
    return p


def _softmax_backward(dp: Array, p: Array) -> Array:
    dx: Array = p * dp
    dx -= p * dx.sum(-1, keepdims=True)
    return dx
