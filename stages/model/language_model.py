"""The language model: embedding, positions, blocks, output layer.

Shapes: B sentences, T positions, D = d_model, H heads, L layers, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional as F

from stages.model.attention import CausalSelfAttention, attention_mask, causal_mask
from stages.model.blocks import BLOCKS, Drop, FeedForward, keep


class LanguageModelConfig(BaseModel):
    """Everything that the shape and the arithmetic of a model depend on; the keys are those of params.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    vocab_size: int
    d_model: int
    layers: int
    n_heads: int
    heads: Literal["full", "split"]
    hidden: int
    block: Literal["notebook", "post", "pre"]
    positions: Literal["paper", "notebook"]
    activation: Literal["relu", "gelu"]
    tied_output: bool

    @property
    def head_width(self) -> int:
        return self.d_model if self.heads == "full" else self.d_model // self.n_heads


def sinusoids(length: int, d_model: int, positions: str) -> Tensor:
    """Position encodings [T, D]: sines in the even columns, cosines in the odd ones.

    For j = 0, 2, 4, …, D-2 the divisor is 10000^(j/D) (Vaswani et al. 2017, section 3.5), or 10000^(2j/D) with
    `positions='notebook'`, whose exponent counts by two twice.
    """
    exponent_J = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model * (2 if positions == "notebook" else 1)
    angle_TJ = torch.arange(length, dtype=torch.float64)[:, None] / 10000**exponent_J
    return torch.stack([angle_TJ.sin(), angle_TJ.cos()], dim=2).flatten(1).float()


class LanguageModel(nn.Module):
    """A stack of masked self-attention blocks that predicts each next word.

    Dropout is an argument of `forward`, not a mode of the module: without it nothing is dropped, so that nobody
    predicts with dropout by oversight.
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, d)
        self.blocks = nn.ModuleList(
            BLOCKS[config.block](
                CausalSelfAttention(d, config.n_heads, config.head_width),
                FeedForward(d, config.hidden, config.activation),
                d,
            )
            for _ in range(config.layers)
        )
        self.final_norm = nn.LayerNorm(d) if config.block == "pre" else nn.Identity()
        self.output = nn.Linear(d, config.vocab_size)
        if config.tied_output:
            self.output.weight = self.embedding.weight
        self.dropouts = 1 + 2 * config.layers  # times that `forward` drops, each time at the shape [B, T, D]
        self._tables = (torch.empty(0, d), torch.empty(0, 0))

    def forward(
        self, ids_BT: Tensor, drop: Drop = keep, *, real_BT: Tensor | None = None, return_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits of the next word at each position.

        Args:
            ids_BT: word ids. Padding on the right needs nothing more: no earlier position sees it.
            drop: dropout to apply; none by default.
            real_BT: False at padding; needed only where padding stands on the left.
            return_weights: give the attention weights too, as they are before any dropout.

        Returns:
            Logits [B, T, V], and the weights of each layer [B, H, T, T] (an empty list unless asked for).
        """
        positions_TD, mask = self.positions_and_mask(ids_BT.shape[1])
        if real_BT is not None:
            mask = attention_mask(real_BT)
            positions_TD = positions_TD[(real_BT.cumsum(dim=1) - 1).clamp(min=0)]  # now of shape [B, T, D]
        x_BTD = drop(torch.add(positions_TD, self.embedding(ids_BT), alpha=math.sqrt(self.config.d_model)))
        weights = []
        for block in self.blocks:
            x_BTD, weights_BHTT = block(x_BTD, mask, drop, return_weights)
            if return_weights:
                weights.append(weights_BHTT)
        return self.output(self.final_norm(x_BTD)), weights

    def positions_and_mask(self, length: int) -> tuple[Tensor, Tensor]:
        """Position encodings [T, D] and causal mask [T, T], from tables that grow with the longest sentence."""
        positions, mask = self._tables
        if len(positions) < length:
            with torch.inference_mode(False):  # training may use what a measurement made first
                positions, mask = sinusoids(length, self.config.d_model, self.config.positions), causal_mask(length)
                device = self.embedding.weight.device
                positions, mask = self._tables = positions.to(device), mask.to(device)
        return positions[:length], mask[:length, :length]


def initialise(model: LanguageModel, generator: torch.Generator, kind: str = "torch") -> None:
    """Initial values, drawn from `generator`, one parameter after the other. Norms: gain 1, bias 0.

    torch: its own. Linear layers: uniform in ±1/sqrt(fan_in), weights and biases. Embedding: standard normal, or, where
    the output layer shares it, with a deviation of D^-0.5, so that no logit but that of the word just read is large at
    first.

    xavier: every matrix, the embedding as well, uniform in ±sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010,
    equation 16), where queries, keys and values are matrices of their own; biases 0.
    """
    if kind == "xavier":
        _initialise_xavier(model, generator)
        return
    embedding_std = model.config.d_model**-0.5 if model.config.tied_output else 1.0
    with torch.no_grad():
        model.embedding.weight.normal_(0.0, embedding_std, generator=generator)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                bound = module.in_features**-0.5
                if module.weight is not model.embedding.weight:
                    module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.uniform_(-bound, bound, generator=generator)


def _initialise_xavier(model: LanguageModel, generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                fan_out, fan_in = parameter.shape
                together = 3 if name.endswith("qkv.weight") else 1
                bound = (6 / (fan_in + fan_out / together)) ** 0.5
                parameter.uniform_(-bound, bound, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()


def language_model_loss(
    logits_BTV: Tensor, targets_BT: Tensor, kind: str, ignore: int, reduction: str = "mean"
) -> Tensor:
    """Mean (or `reduction='sum'`) of the loss in nats over the targets that are not `ignore`.

    `cross_entropy` takes logits, as it should. `notebook` applies a softmax first, so that the cross-entropy is one of
    probabilities taken for logits: with V words it cannot fall below ln(V - 1 + e) - 1.
    """
    if kind == "notebook":
        logits_BTV = logits_BTV.softmax(dim=2)
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=ignore, reduction=reduction)
