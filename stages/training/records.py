"""What training reports: one record an update, no files, no tracking."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stages.params import TrainParams


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser update.

    Attributes:
        step: number of the update, from 1.
        epoch: pass over the text, from 1.
        lr: rate that this update used.
        loss: training loss in nats a token, with dropout, before the update.
        grad_norm: Euclidean norm of the gradient, before clipping.
    """

    step: int
    epoch: int
    lr: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Validation:
    """A measurement without dropout after `step` updates, on `split` ('valid', or 'train' without held-out text)."""

    step: int
    epoch: int
    split: str
    loss: float
    perplexity: float | None
    accuracy: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The update `step` was not done, or the measurement after it not taken: a value was no longer finite."""

    step: int
    epoch: int
    lr: float
    problem: str

    def __str__(self) -> str:
        return (
            f"diverged at update {self.step}: {self.problem} is not finite, at rate {self.lr:.3g}; "
            "lower factor, lr or decay, raise warmup, or set clip"
        )


Record = Update | Validation | Divergence


def count_updates(batches_per_epoch: int, settings: TrainParams) -> int:
    """Optimiser updates of a whole run."""
    updates = settings.epochs * math.ceil(batches_per_epoch / settings.accumulate)
    return min(updates, settings.max_updates) if settings.max_updates else updates
