"""Random draws from generators named by purpose, so that a new use of one doesn't shift the others."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_POOL = 2**16  # floats drawn at once: one call for many small masks


def generator(seed: int, purpose: str) -> torch.Generator:
    """The generator for one purpose ('init', 'order', 'dropout') of a run with this seed."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Dropout:
    """Drops each value with probability `p` and scales the others by 1 / (1 - p).

    The masks are cut one after the other from a pool that the generator fills, a whole pool at a time.
    """

    def __init__(self, p: float, source: torch.Generator) -> None:
        self.p = p
        self._source = source
        self._pool = torch.empty(0)
        self._next = 0

    def mask(self, shape: torch.Size) -> Tensor:
        """The next mask: 0 where a value is dropped, 1 / (1 - p) elsewhere."""
        n = shape.numel()
        if self._next + n > len(self._pool):
            self._pool = torch.empty(max(n, _POOL)).bernoulli_(1 - self.p, generator=self._source).div_(1 - self.p)
            self._next = 0
        self._next += n
        return self._pool[self._next - n : self._next].view(shape)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.mask(x.shape) if self.p else x
