"""Random draws from generators named by purpose, so that a new use of one doesn't shift the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Mask = npt.NDArray[np.float32]

_POOL = 2**16  # floats drawn at once: one call for many small masks


def generator(seed: int, purpose: str) -> torch.Generator:
    """The generator for one purpose ('init', 'order', 'dropout') of a run with this seed."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Dropout:
    """Masks that drop each value with probability `p` and scale the others by 1 / (1 - p).

    They are cut one after the other from a pool that the generator fills, a whole pool at a time.
    """

    def __init__(self, p: float, source: torch.Generator) -> None:
        self.p = p
        self._source = source
        self._pool: Mask = np.empty(0, np.float32)
        self._next = 0
        self._before = source.get_state()  # of the generator, when the pool was drawn

    def masks(self, *shape: int) -> Mask:
        """The next masks, of this shape: 0 where a value is dropped, 1 / (1 - p) elsewhere."""
        n = math.prod(shape)
        if self._next + n > len(self._pool):
            self._fill(max(n, _POOL))
        self._next += n
        return self._pool[self._next - n : self._next].reshape(shape)

    def _fill(self, n: int) -> None:
        self._before = self._source.get_state()
        drawn = torch.empty(n, dtype=torch.float32).bernoulli_(1 - self.p, generator=self._source)
        self._pool = drawn.div_(1 - self.p).numpy()
        self._next = 0

    def position(self) -> tuple[Tensor, list[int]]:
        """From where the draws go on: the generator's state before the pool, the pool's size and what is used of it."""
        return self._before, [len(self._pool), self._next]

    def go_to(self, state: Tensor, place: list[int]) -> None:
        """Go on from a `position`."""
        self._source.set_state(state)
        self._before, self._pool = state, np.empty(0, np.float32)
        size, used = place
        if size:
            self._fill(size)
        self._next = used


class Masks:
    """Dropout by given masks [N, B, T, D], one for each of the N times that a model drops."""

    def __init__(self, masks_NBTD: Iterable[Tensor]) -> None:
        self._masks = iter(masks_NBTD)

    def __call__(self, x_BTD: Tensor) -> Tensor:
        return x_BTD * next(self._masks)
