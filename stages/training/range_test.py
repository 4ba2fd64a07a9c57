"""The learning-rate range test: one short run whose rate grows from update to update.

L. N. Smith (2017): Cyclical Learning Rates for Training Neural Networks, section 3.3; with a rate that grows by a
constant factor, as is usual since. Its loss falls slowly, then fast, then flattens and rises: the peak of a schedule
belongs before the end of the fall.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stages.optim.knobs import OPTIMIZERS
from stages.params import TrainParams
from stages.training.batches import Sentences
from stages.training.records import Update
from stages.training.session import Session

_GIVEN_UP = 4.0  # times the lowest loss, from where the run is over
_MEMORY = 0.9  # of the smoothed loss
_BELOW = 3.0  # the suggested peak is the rate of the lowest smoothed loss divided by this
_MOST_RAMP = 0.1  # of the updates of a run
_DEFAULT_RAMP = 0.05  # likewise, for an optimiser without a second moment


@dataclass(frozen=True)
class Point:
    """An update of the test: its rate, its loss in nats a token, and that loss smoothed (NaN-free)."""

    lr: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class Suggestion:
    """What follows from the test.

    Attributes:
        lr: of the peak.
        warmup: updates of the ramp.
        lowest: rate at which the smoothed loss was lowest.
        at_end: that rate is the last that was tried, so that a higher one may be better.
    """

    lr: float
    warmup: int
    lowest: float
    at_end: bool


def rates(low: float, high: float, updates: int) -> list[float]:
    """From `low` to `high`, each by the same factor above the one before."""
    return [low * (high / low) ** (i / (updates - 1)) for i in range(updates)]


def range_test(
    settings: TrainParams, vocab_size: int, splits: Mapping[str, Sentences], tried: Sequence[float]
) -> Iterator[Point]:
    """Train from the seed in `settings`, an update at each rate; ends early where the loss explodes."""
    short = {
        "max_updates": len(tried),
        "epochs": len(tried),
        "eval_every": len(tried) + 1,
        "eval_updates": 0,
        "eval_tokens": 1,
    }
    alone = {"schedule": "none", "replicas": 1, "snapshots": 0, "counting": "paper", "processes": 1, "fsdp": False}
    session = Session(settings.model_copy(update=short | alone), vocab_size, splits)
    session.use_schedule(lambda t: tried[min(t, len(tried)) - 1])
    mean, lowest = 0.0, math.inf
    for record in session.records():
        if not isinstance(record, Update):
            continue
        mean = _MEMORY * mean + (1 - _MEMORY) * record.loss
        smoothed = mean / (1 - _MEMORY**record.step)
        lowest = min(lowest, smoothed)
        if smoothed > _GIVEN_UP * lowest:
            return
        yield Point(record.lr, record.loss, smoothed)


def suggest(points: Sequence[Point], settings: TrainParams, updates: int) -> Suggestion:
    """A peak and a ramp for runs of `updates` updates.

    The ramp is that of J. Ma and D. Yarats (2021): On the Adequacy of Untuned Warmup for Adaptive Optimization,
    2 / (1 − β₂) updates, by when the second moment is known, and at most a tenth of the run; for an optimiser without
    β₂ a twentieth of it.
    """
    best = min(range(len(points)), key=lambda i: points[i].smoothed)
    lowest = points[best].lr
    has_beta2 = "beta2" in OPTIMIZERS[settings.optimizer].uses
    ramp = 2 / (1 - settings.beta2) if has_beta2 else _DEFAULT_RAMP * updates
    warmup = max(1, round(min(ramp, _MOST_RAMP * updates)))
    return Suggestion(lowest / _BELOW, warmup, lowest, at_end=best >= len(points) - 2)
