"""Batches with their dropout, and the part of one that a shard or a process computes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from stages.training.batches import Batch
from stages.training.randomness import Mask

Work = tuple[Batch, Mask | None]  # a batch and its masks [N, B, T, D]


class Place(Protocol):
    """Of one among several."""

    rank: int
    size: int


def piece(batch: Batch, masks_NBTD: Mask | None, part: int, parts: int) -> tuple[Tensor, Tensor, Mask | None] | None:
    """Inputs, targets and masks of one of equal parts of a batch; None where it has fewer rows than parts."""
    if parts == 1:
        return batch.inputs_BT, batch.targets_BT, masks_NBTD
    size = len(batch.inputs_BT)
    rows = slice(size * part // parts, size * (part + 1) // parts)
    if rows.start == rows.stop:
        return None
    return batch.inputs_BT[rows], batch.targets_BT[rows], None if masks_NBTD is None else masks_NBTD[:, rows]


def piece_of(batch: Batch, masks_NBTD: Mask | None, place: Place) -> tuple[Tensor, Tensor, Mask | None, float]:
    """The part of one process, and what it counts: 1, or 0 of the first row, where there is no row for it.

    Every process has to take part in every sum, and so to compute something.
    """
    own = piece(batch, masks_NBTD, place.rank, place.size)
    if own is not None:
        return *own, 1.0
    return batch.inputs_BT[:1], batch.targets_BT[:1], None if masks_NBTD is None else masks_NBTD[:, :1], 0.0
