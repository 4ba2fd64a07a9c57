"""A GPT-2-style network and loop at the settings that nanoGPT publishes for a CPU, to be measured against.

Written from Radford et al. 2019 and those settings: learned positions, normalisation before each sub-layer and after
the last, no biases, GELU, tied output, AdamW, a cosine after a ramp, random windows out of a memory map of ids.

Shapes: B windows, T positions, D width, H heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Settings:
    """The settings for a CPU."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 12
    dropout: float = 0.0
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 100
    decay_updates: int = 2000
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip: float = 1.0
    log_interval: int = 10


class LayerNorm(nn.Module):
    """A layer norm without a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.layer_norm(x_BTD, self.weight.shape, self.weight, None, 1e-5)


class Attention(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads, self.p = settings.heads, settings.dropout
        self.qkv = nn.Linear(settings.width, 3 * settings.width, bias=False)
        self.out = nn.Linear(settings.width, settings.width, bias=False)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q_BHTK, k_BHTK, v_BHTK = (
            part.view(B, T, self.heads, D // self.heads).transpose(1, 2) for part in self.qkv(x_BTD).split(D, dim=2)
        )
        p = self.p if self.training else 0.0
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, dropout_p=p, is_causal=True)
        return self.dropout(self.out(y_BHTK.transpose(1, 2).contiguous().view(B, T, D)))


class FeedForward(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.w1 = nn.Linear(settings.width, 4 * settings.width, bias=False)
        self.gelu = nn.GELU()
        self.w2 = nn.Linear(4 * settings.width, settings.width, bias=False)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.dropout(self.w2(self.gelu(self.w1(x_BTD))))


class Block(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(settings.width), LayerNorm(settings.width)
        self.attention, self.feed_forward = Attention(settings), FeedForward(settings)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        return x_BTD + self.feed_forward(self.norm2(x_BTD))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a last norm, and an output that shares the token embedding."""

    def __init__(self, vocab_size: int, settings: Settings) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, settings.width)
        self.positions = nn.Embedding(settings.context, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = LayerNorm(settings.width)
        self.output = nn.Linear(settings.width, vocab_size, bias=False)
        self.output.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # what is added to the residual stream shrinks with the number of additions
                last = name.endswith(("attention.out.weight", "feed_forward.w2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * settings.layers) if last else 0.02)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean cross-entropy of the targets."""
        positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        x_BTD = self.dropout(self.tokens(ids_BT) + self.positions(positions_T))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.output(self.norm(x_BTD))
        return F.cross_entropy(logits_BTV.view(-1, logits_BTV.shape[-1]), targets_BT.view(-1))


def random_windows(path: Path, settings: Settings) -> tuple[Tensor, Tensor]:
    """Inputs and targets [B, T] at random places of a file of uint16 ids, which is mapped anew for each batch."""
    ids = np.memmap(path, dtype=np.uint16, mode="r")
    T = settings.context
    starts = torch.randint(len(ids) - T, (settings.batch,))
    inputs = torch.stack([torch.from_numpy(ids[i : i + T].astype(np.int64)) for i in starts])
    targets = torch.stack([torch.from_numpy(ids[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
    return inputs, targets


def rate(update: int, settings: Settings) -> float:
    """A ramp, half a cosine, then the least rate; the first update is number 0."""
    if update < settings.warmup:
        return settings.lr * (update + 1) / (settings.warmup + 1)
    if update > settings.decay_updates:
        return settings.min_lr
    share = (update - settings.warmup) / (settings.decay_updates - settings.warmup)
    return settings.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (settings.lr - settings.min_lr)


def make_optimizer(model: GPT, settings: Settings) -> torch.optim.AdamW:
    """AdamW, as torch chooses it for a CPU; only matrices decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas)


def train(
    path: Path, vocab_size: int, settings: Settings, *, compiled: bool = False, seed: int = 1337
) -> Iterator[tuple[int, float | None]]:
    """Updates without end; each gives its number of targets and, at the log interval, its loss."""
    torch.manual_seed(seed)
    model = GPT(vocab_size, settings)
    optimizer = make_optimizer(model, settings)
    forward = torch.compile(model) if compiled else model
    update = 0
    inputs_BT, targets_BT = random_windows(path, settings)
    while True:
        for group in optimizer.param_groups:
            group["lr"] = rate(update, settings)
        loss = forward(inputs_BT, targets_BT)
        inputs_BT, targets_BT = random_windows(path, settings)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield targets_BT.numel(), loss.item() if update % settings.log_interval == 0 else None
        update += 1
