"""The learning-rate range test: its rates, when it gives up, and what it suggests."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from stages.params import Params, TrainParams
from stages.text.vocabulary import BOS, EOS
from stages.training.batches import Sentences
from stages.training.range_test import Point, range_test, rates, suggest

IDS = [BOS, 4, 5, 6, EOS, BOS, 5, 6, 7, EOS, BOS, 7, 6, 5, EOS]


def settings(**changes: object) -> TrainParams:
    small = {"d_model": 16, "hidden": 16, "n_heads": 2, "dropout": 0.0, "optimizer": "sgd"}
    everything = Params.model_validate(small | changes).model_dump(include=TrainParams.model_fields.keys())
    return TrainParams.model_validate(everything)


@pytest.fixture
def splits() -> Mapping[str, Sentences]:
    import numpy as np

    return {"train": Sentences(np.array(IDS, dtype=np.int32)), "valid": Sentences(np.array([], dtype=np.int32))}


def test_rates_grow_by_one_factor() -> None:
    found = rates(1e-4, 1.0, 5)
    assert found == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


def test_each_update_uses_its_rate_whatever_the_schedule(splits: Mapping[str, Sentences]) -> None:
    tried = rates(1e-5, 1e-3, 30)
    points = list(range_test(settings(schedule="noam", max_updates=7, epochs=1), 8, splits, tried))
    assert [point.lr for point in points] == tried


def test_it_ends_where_the_loss_explodes(splits: Mapping[str, Sentences]) -> None:
    tried = rates(1e-3, 1e6, 60)
    points = list(range_test(settings(), 8, splits, tried))
    assert 10 < len(points) < 60
    assert all(math.isfinite(point.smoothed) for point in points)


def test_the_smoothed_loss_is_an_unbiased_average(splits: Mapping[str, Sentences]) -> None:
    points = list(range_test(settings(), 8, splits, rates(1e-9, 1e-8, 20)))
    assert points[0].smoothed == pytest.approx(points[0].loss)
    weights = [0.9**i for i in range(20)]
    mean = sum(w * p.loss for w, p in zip(weights, reversed(points), strict=True)) / sum(weights)
    assert points[-1].smoothed == pytest.approx(mean)


def made(*smoothed: float) -> list[Point]:
    return [Point(10.0**i, value, value) for i, value in enumerate(smoothed, start=-5)]


def test_the_peak_lies_below_the_rate_of_the_lowest_loss() -> None:
    found = suggest(made(4, 3, 2, 1, 5, 9), settings(optimizer="adam", beta2=0.98), 100_000)
    assert found.lowest == pytest.approx(1e-2)
    assert found.lr == pytest.approx(1e-2 / 3)
    assert not found.at_end


@pytest.mark.parametrize(
    ("changes", "updates", "warmup"),
    [
        ({"optimizer": "adam", "beta2": 0.98}, 100_000, 100),
        ({"optimizer": "adam", "beta2": 0.999}, 100_000, 2000),
        ({"optimizer": "adam", "beta2": 0.999}, 300, 30),
        ({"optimizer": "sgd"}, 1000, 50),
        ({"optimizer": "adam"}, 3, 1),
    ],
)
def test_the_ramp_follows_from_beta2_and_the_length_of_the_run(
    changes: dict[str, object], updates: int, warmup: int
) -> None:
    assert suggest(made(2, 1, 3), settings(**changes), updates).warmup == warmup


def test_a_loss_that_still_falls_at_the_end_is_said() -> None:
    assert suggest(made(4, 3, 2), settings(), 100).at_end
