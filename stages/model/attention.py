"""Masked multi-head self-attention (Vaswani et al. 2017, section 3.2).

Shapes: B sentences, T positions, D = d_model, H heads, K width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def causal_mask(length: int) -> Tensor:
    """What is added to the scores, of shape [T, T]: 0 up to the diagonal, -inf above it."""
    return torch.full((length, length), float("-inf")).triu(1)


def attention_mask(real_BT: Tensor) -> Tensor:
    """The causal mask of padded sentences, of shape [B, 1, T, T]: no position sees a later one or padding.

    A padded position sees itself, so that no row is empty and no softmax gives NaN.
    """
    length = real_BT.shape[1]
    seen_BTT = real_BT[:, None, :].expand(-1, length, -1).tril()
    seen_BTT = seen_BTT | torch.eye(length, dtype=torch.bool, device=real_BT.device)
    return torch.zeros(seen_BTT.shape, device=real_BT.device).masked_fill(~seen_BTT, float("-inf"))[:, None]


class CausalSelfAttention(nn.Module):
    """H heads side by side: softmax(q kᵀ / sqrt(K) + mask) v, concatenated and projected back to D.

    Args:
        d_model: width D of the input and output.
        n_heads: number of heads H.
        head_width: width K of a head; D for full heads, D / H for split ones.
    """

    def __init__(self, d_model: int, n_heads: int, head_width: int) -> None:
        super().__init__()
        self.n_heads, self.head_width = n_heads, head_width
        # One product for all heads; its rows are [q of head 0, q of head 1, …, k of head 0, …, v of head H-1].
        self.qkv = nn.Linear(d_model, 3 * n_heads * head_width, bias=False)
        self.out = nn.Linear(n_heads * head_width, d_model)

    def forward(self, x_BTD: Tensor, mask: Tensor, return_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            x_BTD: input.
            mask: added to the scores, [T, T] or [B, 1, T, T].
            return_weights: give the weights too; the fast path never computes them.

        Returns:
            The output [B, T, D], and the weights [B, H, T, T] or None.
        """
        B, T, _ = x_BTD.shape
        q_BHTK, k_BHTK, v_BHTK = self.qkv(x_BTD).view(B, T, 3, self.n_heads, self.head_width).permute(2, 0, 3, 1, 4)
        weights_BHTT = None
        if return_weights:
            scores_BHTT = q_BHTK @ k_BHTK.transpose(2, 3) * self.head_width**-0.5 + mask
            weights_BHTT = scores_BHTT.softmax(dim=3)
            y_BHTK = weights_BHTT @ v_BHTK
        else:
            y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask)
        y_BTHK = y_BHTK.transpose(1, 2).reshape(B, T, self.n_heads * self.head_width)
        return self.out(y_BTHK), weights_BHTT
