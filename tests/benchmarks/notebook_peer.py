"""The notebook's network and loop, as plainly as it runs them: one sentence an update, one head at a time.

Written from its equations, to be measured against. Nothing is kept from one forward pass to the next: mask and position
encodings are computed anew in each.

Shapes: T positions, D = d_model, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

D, HEADS, HIDDEN, P = 128, 5, 128, 0.3


def read_sentences(path: Path) -> tuple[list[list[int]], int]:
    """The ids of each sentence from [bos] to [eos], and the number of ids; words are numbered as they appear."""
    id_of = {"[bos]": 0, "[eos]": 1}
    sentences = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = ["[bos]", *line.lower().split(" "), "[eos]"]
        sentences.append([id_of.setdefault(word, len(id_of)) for word in words])
    return sentences, len(id_of)


def future_mask(length: int) -> Tensor:
    """True where a key comes after its query."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def position_encodings(length: int, d_model: int) -> Tensor:
    """Sines in the even columns, cosines in the odd ones; the divisor is 10000^(2j/D) for j = 0, 2, 4, …, D-2."""
    j = torch.arange(0, d_model, 2)
    angles = torch.arange(length)[:, None] / 10000 ** (2 * j / d_model)
    encodings_TD = torch.zeros(length, d_model)
    encodings_TD[:, 0::2] = torch.sin(angles)
    encodings_TD[:, 1::2] = torch.cos(angles)
    return encodings_TD


class Encoding(nn.Module):
    """`dropout(sqrt(D) · embedding(x) + positions)`."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, D)
        self.dropout = nn.Dropout(P)

    def forward(self, ids_T: Tensor) -> Tensor:
        return self.dropout(math.sqrt(D) * self.embedding(ids_T) + position_encodings(len(ids_T), D))


class Head(nn.Module):
    """One full-width head: `softmax(Q Kᵀ / sqrt(D) + mask) V`."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))

    def forward(self, x_TD: Tensor) -> Tensor:
        scores_TT = self.q(x_TD) @ self.k(x_TD).transpose(0, 1) / math.sqrt(D)
        scores_TT = scores_TT.masked_fill(future_mask(len(x_TD)), float("-inf"))
        return torch.softmax(scores_TT, dim=-1) @ self.v(x_TD)


class Attention(nn.Module):
    """The heads one after the other, concatenated and projected to D."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))
        self.out = nn.Linear(HEADS * D, D)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.out(torch.cat([head(x_TD) for head in self.heads], dim=-1))


class Norm(nn.Module):
    """`gain · (x - mean) / (std + 1e-6) + bias` with the unbiased standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x_TD: Tensor) -> Tensor:
        mean, std = x_TD.mean(dim=-1, keepdim=True), x_TD.std(dim=-1, keepdim=True)
        return self.gain * (x_TD - mean) / (std + 1e-6) + self.bias


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.w2(torch.relu(self.w1(x_TD)))


class Network(nn.Module):
    """`h1 = dropout(x + norm(h))`, then `dropout(h1 + norm(f(h)))`: f reads h, and one norm serves twice."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.encoding = Encoding(vocab_size)
        self.attention = Attention()
        self.norm = Norm()
        self.feed_forward = FeedForward()
        self.dropout1, self.dropout2 = nn.Dropout(P), nn.Dropout(P)
        self.output = nn.Linear(D, vocab_size)

    def forward(self, ids_T: Tensor) -> Tensor:
        """Probabilities [T, V] of the next words."""
        x_TD = self.encoding(ids_T)
        h_TD = self.attention(x_TD)
        h1_TD = self.dropout1(x_TD + self.norm(h_TD))
        h2_TD = self.dropout2(h1_TD + self.norm(self.feed_forward(h_TD)))
        return torch.softmax(self.output(h2_TD), dim=-1)


class Noam:
    """Adam, its rate set before each step (Vaswani et al. 2017, equation 3)."""

    def __init__(self, parameters: Iterator[nn.Parameter], d_model: int, warmup: int) -> None:
        self.optimizer = torch.optim.Adam(parameters, lr=0, betas=(0.9, 0.98), eps=1e-9)
        self.d_model, self.warmup = d_model, warmup
        self.t = 0

    def rate(self) -> float:
        return self.d_model**-0.5 * min(self.t**-0.5, self.t * self.warmup**-1.5)

    def step(self) -> None:
        self.t += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


def train(corpus: Path, *, warmup: int = 40000, seed: int = 0) -> Iterator[tuple[int, float]]:
    """Updates without end; each gives its number of targets and its loss, the second softmax included."""
    torch.manual_seed(seed)
    sentences, vocab_size = read_sentences(corpus)
    network = Network(vocab_size)
    criterion = nn.CrossEntropyLoss()
    optimizer = Noam(network.parameters(), D, warmup)
    while True:
        for i in torch.randperm(len(sentences)).tolist():
            ids = sentences[i]
            inputs_T, targets_T = torch.tensor(ids[:-1]), torch.tensor(ids[1:])
            optimizer.zero_grad()
            loss = criterion(network(inputs_T), targets_T)
            loss.backward()
            optimizer.step()
            yield len(targets_T), loss.item()
