"""The training loop: records, reproducibility, clipping, and runs that diverge."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stages.errors import TrainingError
from stages.model.language_model import LanguageModel
from stages.optim.registry import make_optimizer
from stages.optim.schedules import noam_rate
from stages.params import TrainParams
from stages.text.vocabulary import BOS, EOS
from stages.training.batches import Sentences
from stages.training.loop import Update, Validation, count_updates, train

NewModel = Callable[..., LanguageModel]
SETTINGS: dict[str, Any] = {"d_model": 12, "epochs": 3, "warmup": 5, "dropout": 0.3, "eval_every": 2}
TEXT = [[4, 5, 6], [7, 8], [4, 8, 9, 10], [11], [5, 5, 5]]


def split(text: list[list[int]]) -> Sentences:
    return Sentences(np.array([i for words in text for i in (BOS, *words, EOS)], dtype=np.uint16))


@pytest.fixture
def run(new_model: NewModel) -> Callable[..., tuple[LanguageModel, list[Update], list[Validation]]]:
    """Trains a small model; gives it with its updates and validations."""

    def go(
        text: list[list[int]] = TEXT, held_out: list[list[int]] | None = None, **changes: Any
    ) -> tuple[LanguageModel, list[Update], list[Validation]]:
        settings = TrainParams.model_validate(SETTINGS | changes)
        model = new_model(seed=settings.seed)
        optimizer = make_optimizer(model.parameters(), settings)
        splits = {"train": split(text), "valid": split(held_out or []), "test": split([])}
        records = list(train(model, optimizer, splits, settings))
        updates = [record for record in records if isinstance(record, Update)]
        assert len(updates) == count_updates(len(text), settings)
        return model, updates, [record for record in records if isinstance(record, Validation)]

    return go


Run = Callable[..., tuple[LanguageModel, list[Update], list[Validation]]]


def test_steps_epochs_and_rates(run: Run) -> None:
    _, updates, validations = run()
    assert [(u.step, u.epoch) for u in updates] == [(i + 1, i // 5 + 1) for i in range(15)]
    assert [u.lr for u in updates] == [noam_rate(t, 12, 5) for t in range(1, 16)]
    assert [(v.step, v.epoch, v.split) for v in validations] == [(0, 0, "train"), (10, 2, "train"), (15, 3, "train")]
    assert all(u.loss > 0 and u.grad_norm > 0 for u in updates)


def test_the_rate_recorded_is_the_rate_that_moved_the_weights(new_model: NewModel) -> None:
    settings = TrainParams.model_validate(SETTINGS | {"optimizer": "sgd", "beta1": 0, "schedule": "inverse_sqrt"})
    model = new_model()
    optimizer = make_optimizer(model.parameters(), settings)
    splits = {"train": split(TEXT), "valid": split([])}

    def weights() -> torch.Tensor:
        return torch.cat([weight.detach().flatten() for weight in model.parameters()]).double()

    before = weights()
    for record in train(model, optimizer, splits, settings):
        if isinstance(record, Update):
            after = weights()
            # Plain gradient descent moves the weights by the rate times the norm of the gradient.
            assert (after - before).norm().item() == pytest.approx(record.lr * record.grad_norm, rel=1e-3)
            before = after


def test_equal_settings_give_equal_weights_and_records(run: Run) -> None:
    torch.random.manual_seed(1)
    model, *records = run(seed=4)
    torch.random.manual_seed(2)
    again, *same_records = run(seed=4)
    other, *other_records = run(seed=5)
    assert records == same_records
    assert records[0] != other_records[0]
    for a, b, c in zip(model.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_training_draws_nothing_from_torchs_own_generator(new_model: NewModel) -> None:
    settings = TrainParams.model_validate(SETTINGS)
    model = new_model()
    optimizer = make_optimizer(model.parameters(), settings)
    before = torch.random.get_rng_state()
    records = list(train(model, optimizer, {"train": split(TEXT), "valid": split([])}, settings))
    assert len(records) == 18
    assert torch.equal(torch.random.get_rng_state(), before)


def test_held_out_text_is_what_is_validated_where_there_is_some(run: Run) -> None:
    _, _, validations = run(held_out=[[4, 5], [6]])
    assert {v.split for v in validations} == {"valid"}


@pytest.mark.parametrize("batch_size", [5, 64])
def test_a_batch_as_large_as_the_corpus_is_one_update_an_epoch(run: Run, batch_size: int) -> None:
    _, updates, _ = run(batch_size=batch_size)
    assert [u.step for u in updates] == [1, 2, 3]
    assert all(math.isfinite(u.loss) and u.loss > 0 for u in updates)


def test_a_last_batch_that_is_smaller_is_kept(run: Run) -> None:
    _, updates, _ = run(batch_size=2)
    assert len(updates) == 9


@pytest.mark.parametrize("text", [[[4]], [[4], [5], [4, 6, 7, 8]], [[]]])
def test_hardly_any_text_trains(run: Run, text: list[list[int]]) -> None:
    _, updates, validations = run(text)
    assert all(math.isfinite(record.loss) for record in (*updates, *validations))


def test_training_lowers_the_loss(run: Run) -> None:
    _, _, validations = run(epochs=60, warmup=50, dropout=0.0)
    assert validations[-1].loss < 0.75 < 2 < validations[0].loss
    assert validations[-1].perplexity == pytest.approx(math.exp(validations[-1].loss))
    assert validations[-1].accuracy > validations[0].accuracy


def test_dropout_is_for_training_alone(run: Run) -> None:
    _, updates, validations = run(epochs=1, dropout=0.5, batch_size=5, factor=1e-9)
    _, plain, same = run(epochs=1, dropout=0.0, batch_size=5, factor=1e-9)
    assert updates[0].loss != plain[0].loss
    assert plain[0].loss == pytest.approx(validations[0].loss, rel=1e-5)
    assert validations[0] == same[0]


def test_clipping_bounds_the_step_and_the_record_keeps_the_norm_before_it(run: Run) -> None:
    plain = {"optimizer": "sgd", "beta1": 0, "schedule": "none", "lr": 1.0, "epochs": 1, "batch_size": 5}
    start, _, _ = run(**plain | {"lr": 1e-30})
    free, (free_update,), _ = run(**plain)
    clipped, (update,), _ = run(**plain, clip=0.01)
    assert update.grad_norm == free_update.grad_norm > 1

    def distance(model: LanguageModel) -> float:
        moves = [a.detach() - b.detach() for a, b in zip(model.parameters(), start.parameters(), strict=True)]
        return torch.nn.utils.get_total_norm(moves).item()

    assert distance(clipped) == pytest.approx(0.01, rel=1e-3)
    assert distance(free) == pytest.approx(update.grad_norm, rel=1e-3)


@pytest.mark.parametrize("epochs", [1, 5])
def test_a_run_that_diverges_names_the_update(run: Run, epochs: int) -> None:
    wild = {"optimizer": "sgd", "schedule": "none", "lr": 1e30, "batch_size": 5}
    with pytest.raises(TrainingError, match="no longer finite") as caught:
        run(**wild, epochs=epochs)
    assert re.match(r"(after )?update \d+: ", str(caught.value))
    assert "lower factor, lr or decay" in str(caught.value)


def test_updates_are_counted_before_the_run() -> None:
    def settings(batch_size: int) -> TrainParams:
        return TrainParams(epochs=300, batch_size=batch_size)

    assert [count_updates(9, settings(size)) for size in (1, 2, 9, 64)] == [2700, 1500, 300, 300]
