"""The three ways to put attention, feed-forward and normalisation together.

notebook  h = attention(x); h1 = dropout(x + norm(h)); dropout(h1 + norm(feed_forward(h))), one norm for both
post      x = norm(x + f(x)) for f = attention, feed-forward    (Vaswani et al. 2017, section 3.1)
pre       x = x + f(norm(x)), and a final norm after the last   (Xiong et al. 2020, "On Layer Normalization")
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from stages.model.attention import CausalSelfAttention

Drop = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def keep(x: Tensor) -> Tensor:
    """The dropout of evaluation: none."""
    return x


class UnbiasedNorm(nn.Module):
    """The notebook's `gain · (x - mean) / (std + 1e-6) + bias`, with the unbiased standard deviation.

    torch's layer norm divides by sqrt(var + eps) with the biased variance, so the gain is scaled by sqrt((D-1)/D). Its
    eps of 2e-6 stands for the notebook's 1e-6 beside a deviation near 1.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(Tensor(d_model).fill_(1.0))
        self.bias = nn.Parameter(Tensor(d_model).fill_(0.0))
        self.scale, self.eps = ((d_model - 1) / d_model) ** 0.5, 2e-6

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.layer_norm(x_BTD, self.gain.shape, self.gain * self.scale, self.bias, eps=self.eps)


class FeedForward(nn.Module):
    """`W2 f(W1 x + b1) + b2` at each position (Vaswani et al. 2017, equation 2)."""

    def __init__(self, d_model: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.w1 = nn.Linear(d_model, hidden)
        self.w2 = nn.Linear(hidden, d_model)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_BTD: Tensor) -> Tensor:
        output: Tensor = self.w2(self.activation(self.w1(x_BTD)))
        return output


class NotebookBlock(nn.Module):
    """The notebook's block: the feed-forward reads the attention's output, and one norm serves twice."""

    def __init__(self, attention: CausalSelfAttention, feed_forward: FeedForward, d_model: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm = UnbiasedNorm(d_model)

    def forward(
        self, x_BTD: Tensor, mask: Tensor, drop: Drop = keep, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        h_BTD, weights_BHTT = self.attention(x_BTD, mask, return_weights)
        h1_BTD = drop(x_BTD + self.norm(h_BTD))
        return drop(h1_BTD + self.norm(self.feed_forward(h_BTD))), weights_BHTT


class _TwoNormBlock(nn.Module):
    """What the usual blocks have in common: each sub-layer has a norm of its own."""

    def __init__(self, attention: CausalSelfAttention, feed_forward: FeedForward, d_model: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)


class PostNormBlock(_TwoNormBlock):
    """Normalisation after each sum."""

    def forward(
        self, x_BTD: Tensor, mask: Tensor, drop: Drop = keep, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        h_BTD, weights_BHTT = self.attention(x_BTD, mask, return_weights)
        x_BTD = self.norm1(x_BTD + drop(h_BTD))
        return self.norm2(x_BTD + drop(self.feed_forward(x_BTD))), weights_BHTT


class PreNormBlock(_TwoNormBlock):
    """Normalisation before each sub-layer; the sum itself is never normalised."""

    def forward(
        self, x_BTD: Tensor, mask: Tensor, drop: Drop = keep, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        h_BTD, weights_BHTT = self.attention(self.norm1(x_BTD), mask, return_weights)
        x_BTD = x_BTD + drop(h_BTD)
        return x_BTD + drop(self.feed_forward(self.norm2(x_BTD))), weights_BHTT


BLOCKS = {"notebook": NotebookBlock, "post": PostNormBlock, "pre": PreNormBlock}
