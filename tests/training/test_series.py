"""What of a run goes into the journal: few points, no lost spike."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.training.records import Divergence, Update, Validation
from stages.training.series import JournalSeries


class Recorder:
    """A journal that keeps what it is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.entries.append((step, dict(metrics)))

    def series(self, key: str) -> dict[int, float]:
        return {step: metrics[key] for step, metrics in self.entries if key in metrics}


def write(losses: list[float]) -> Recorder:
    journal = Recorder()
    series = JournalSeries(journal, len(losses))  # type: ignore[arg-type]
    for step, loss in enumerate(losses, start=1):
        series.update(Update(step, epoch=1, lr=step / 10, loss=loss, grad_norm=2 * loss))
    return journal


@given(st.integers(1, 12_000), st.data())
def test_curves_are_thinned_and_windows_keep_every_maximum(updates: int, data: st.DataObject) -> None:
    losses = [1.0] * updates
    spike = data.draw(st.integers(1, updates))
    losses[spike - 1] = 99.0
    journal = write(losses)

    single = journal.series("train/loss")
    assert {1, updates} <= set(single)
    assert len(single) <= 3001
    assert all(loss == losses[step - 1] for step, loss in single.items())
    assert journal.series("optim/lr") == {step: step / 10 for step in single}
    assert journal.series("optim/grad_norm") == {step: 2 * loss for step, loss in single.items()}

    largest, mean = journal.series("window/loss_max"), journal.series("window/loss_mean")
    assert len(largest) <= 300
    assert list(largest) == list(mean)
    assert max(largest) == updates
    assert [step for step, loss in largest.items() if loss == 99.0] == [min(s for s in largest if s >= spike)]
    ends = [0, *largest]
    total = sum(mean[end] * (end - start) for start, end in itertools.pairwise(ends))
    assert total == pytest.approx(sum(losses))
    assert [step for step, _ in journal.entries] == sorted({step for step, _ in journal.entries})


def test_a_short_run_keeps_every_update() -> None:
    journal = write([3.0, 2.0, 1.0])
    assert journal.series("train/loss") == {1: 3.0, 2: 2.0, 3: 1.0}
    assert journal.series("window/loss_max") == {1: 3.0, 2: 2.0, 3: 1.0}


@pytest.mark.parametrize(
    ("perplexity", "metrics"),
    [
        (4.0, {"eval/valid_loss": 1.5, "eval/valid_perplexity": 4.0, "eval/valid_accuracy": 0.25}),
        (None, {"eval/valid_loss": 1.5, "eval/valid_accuracy": 0.25}),
    ],
)
def test_a_measurement_is_named_after_its_split(perplexity: float | None, metrics: dict[str, Any]) -> None:
    journal = Recorder()
    JournalSeries(journal, 9).validation(Validation(9, 1, "valid", 1.5, perplexity, 0.25))  # type: ignore[arg-type]
    assert journal.entries == [(9, metrics)]


def test_a_divergence_is_for_the_journal_to_learn_otherwise() -> None:
    journal = Recorder()
    series = JournalSeries(journal, 9)  # type: ignore[arg-type]
    series.add(Update(1, 1, 0.1, 2.0, 3.0))
    series.add(Validation(1, 1, "train", 1.5, 4.0, 0.25))
    series.add(Divergence(2, 1, 0.2, "loss nan"))
    assert [sorted(metrics)[0] for _, metrics in journal.entries] == ["optim/grad_norm", "eval/train_accuracy"]
