"""What of a training run goes into the journal: curves that stay readable however long the run is."""

from __future__ import annotations

import math

from stages.execution import Journal
from stages.training.records import Record, Update, Validation

_POINTS = 3000  # of the curves of single updates
_WINDOWS = 300  # of the curves of means and maxima: fewer than MLflow draws, so that it leaves none out


class JournalSeries:
    """Writes updates and validations of a run of `updates` updates to its journal.

    train/loss, optim/lr, optim/grad_norm   of single updates, thinned to at most 3000 of them
    window/loss_mean, window/loss_max       over at most 300 windows of equal length, so that no spike is lost
    eval/<split>_loss, _perplexity, _accuracy
    """

    def __init__(self, journal: Journal, updates: int) -> None:
        self._journal = journal
        self._updates = updates
        self._stride = math.ceil(updates / _POINTS)
        self._window = math.ceil(updates / _WINDOWS)
        self._losses: list[float] = []

    def add(self, record: Record) -> None:
        """The next record; of a divergence the journal learns otherwise."""
        if isinstance(record, Update):
            self.update(record)
        elif isinstance(record, Validation):
            self.validation(record)

    def update(self, record: Update) -> None:
        last = record.step == self._updates
        metrics: dict[str, float] = {}
        if record.step % self._stride == 1 or self._stride == 1 or last:
            metrics = {"train/loss": record.loss, "optim/lr": record.lr, "optim/grad_norm": record.grad_norm}
        self._losses.append(record.loss)
        if len(self._losses) == self._window or last:
            metrics["window/loss_mean"] = sum(self._losses) / len(self._losses)
            metrics["window/loss_max"] = max(self._losses)
            self._losses.clear()
        if metrics:
            self._journal.log(record.step, metrics)

    def validation(self, record: Validation) -> None:
        measured = {"loss": record.loss, "perplexity": record.perplexity, "accuracy": record.accuracy}
        name = f"eval/{record.split}"
        self._journal.log(record.step, {f"{name}_{key}": value for key, value in measured.items() if value is not None})
