"""Masked multi-head self-attention (Vaswani et al. 2017, section 3.2).

Shapes: B sentences, T positions, D = d_model, H heads, K width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHORT = 128  # positions up to which two batched products and a softmax are faster than the fused kernel


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
            return_weights: give the weights too.

        Returns:
            The output [B, T, D], and the weights [B, H, T, T] or None.
        """
        B, T, _ = x_BTD.shape
        qkv_3BHTK = self.qkv(x_BTD).view(B, T, 3, self.n_heads, self.head_width).permute(2, 0, 3, 1, 4)
        if T > SHORT and not return_weights:
            causal = mask.dim() == 2  # then the kernel skips what it would mask
            q_BHTK, k_BHTK, v_BHTK = qkv_3BHTK
            y_BHTK = F.scaled_dot_product_attention(
                q_BHTK, k_BHTK, v_BHTK, attn_mask=None if causal else mask, is_causal=causal
            )
            return self._merge(y_BHTK), None
        q_NTK, k_NTK, v_NTK = qkv_3BHTK.reshape(3, B * self.n_heads, T, self.head_width).unbind(0)  # N = B · H
        if mask.dim() > 2:
            mask = mask.expand(B, self.n_heads, T, T).reshape(-1, T, T)
        weights_NTT = torch.baddbmm(mask, q_NTK, k_NTK.transpose(1, 2), alpha=self.head_width**-0.5).softmax(dim=2)
        y_BHTK = torch.bmm(weights_NTT, v_NTK).view(B, self.n_heads, T, self.head_width)
        return self._merge(y_BHTK), weights_NTT.view(B, self.n_heads, T, T) if return_weights else None

    def _merge(self, y_BHTK: Tensor) -> Tensor:
        """The heads side by side, projected back to D."""
        output_BTD: Tensor = self.out(y_BHTK.transpose(1, 2).flatten(2))
        return output_BTD
