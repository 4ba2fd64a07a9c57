"""Only the matrix products of a model, forward and both of backward, into memory that is there already: the bound.

Whatever computes these products takes at least this long; the rest of an update is what an implementation adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch


@dataclass(frozen=True)
class Product:
    """`count` products of an m × k with a k × n matrix, done as one batch."""

    m: int
    k: int
    n: int
    count: int = 1


@dataclass(frozen=True)
class Sizes:
    """What the products of a model depend on."""

    layers: int
    d_model: int
    n_heads: int
    head_width: int
    hidden: int
    vocab_size: int


def forward_products(sizes: Sizes, windows: int, length: int) -> list[Product]:
    """The products of one forward pass over `windows` texts of `length` tokens."""
    tokens, heads = windows * length, sizes.n_heads * sizes.head_width
    block = [
        Product(tokens, sizes.d_model, 3 * heads),
        Product(length, sizes.head_width, length, count=windows * sizes.n_heads),
        Product(length, length, sizes.head_width, count=windows * sizes.n_heads),
        Product(tokens, heads, sizes.d_model),
        Product(tokens, sizes.d_model, sizes.hidden),
        Product(tokens, sizes.hidden, sizes.d_model),
    ]
    return [*block * sizes.layers, Product(tokens, sizes.d_model, sizes.vocab_size)]


def with_backward(products: Sequence[Product]) -> Callable[[], None]:
    """A function that does each of C = A B, dA = dC Bᵀ and dB = Aᵀ dC once."""
    calls = []
    for product in products:
        batch = (product.count,) if product.count > 1 else ()
        multiply = torch.bmm if batch else torch.mm
        a, b = torch.randn(*batch, product.m, product.k), torch.randn(*batch, product.k, product.n)
        c = torch.randn(*batch, product.m, product.n)
        calls.append(partial(multiply, a, b, out=torch.empty_like(c)))
        calls.append(partial(multiply, c, b.transpose(-1, -2), out=torch.empty_like(a)))
        calls.append(partial(multiply, a.transpose(-1, -2), c, out=torch.empty_like(b)))

    def once() -> None:
        for call in calls:
            call()

    return once


def run(sizes: Sizes, windows: int, lengths: Sequence[int]) -> Iterator[int]:
    """Updates without end, their lengths in turn; each gives its number of tokens."""
    passes = {length: with_backward(forward_products(sizes, windows, length)) for length in set(lengths)}
    for length in cycle(lengths):
        passes[length]()
        yield windows * length
