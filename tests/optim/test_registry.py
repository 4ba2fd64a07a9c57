"""The optimisers and schedules of params.yaml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stages.optim.registry import make_optimizer
from stages.optim.schedules import noam_rate
from stages.params import TrainParams


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (
            {"optimizer": "adam", "decay": 0.2},
            lambda p: torch.optim.Adam(p, betas=(0.7, 0.9), eps=0.1, weight_decay=0.2),
        ),
        (
            {"optimizer": "adamw", "decay": 0.2},
            lambda p: torch.optim.AdamW(p, betas=(0.7, 0.9), eps=0.1, weight_decay=0.2),
        ),
        ({"optimizer": "sgd", "decay": 0.2}, lambda p: torch.optim.SGD(p, momentum=0.7, weight_decay=0.2)),
    ],
)
def test_each_name_is_that_optimiser_with_its_settings(
    settings: dict[str, Any], reference: Callable[..., torch.optim.Optimizer]
) -> None:
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64)) for _ in range(2)]
    ours = make_optimizer(weights[:1], TrainParams(schedule="none", lr=0.05, beta1=0.7, beta2=0.9, eps=0.1, **settings))
    theirs = reference(weights[1:])
    theirs.param_groups[0]["lr"] = 0.05
    for i in range(5):
        for weight in weights:
            weight.grad = (weight.detach() * i).sin()
        ours.step()
        theirs.step()
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-12, atol=0)
    assert not torch.equal(weights[0].detach(), torch.linspace(-1, 1, 5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("noam", [noam_rate(t, 64, 2, 3.0) for t in (1, 2, 3)]),
        ("inverse_sqrt", [0.05, 0.1, 0.1 * (2 / 3) ** 0.5]),
        ("constant", [0.05, 0.1, 0.1]),
        ("none", [0.1, 0.1, 0.1]),
    ],
)
def test_each_name_is_that_schedule_with_its_settings(schedule: Any, rates: list[float]) -> None:
    settings = TrainParams(schedule=schedule, d_model=64, warmup=2, factor=3.0, lr=0.1)
    optimizer = make_optimizer([torch.nn.Parameter(torch.ones(1))], settings)
    assert [optimizer.rate(t) for t in (1, 2, 3)] == pytest.approx(rates)
