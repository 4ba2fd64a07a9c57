"""The optimisers and schedules of params.yaml, put together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from stages.optim.noam import BaseOptimizer, ScheduledOptimizer, adapt
from stages.optim.schedules import make_schedule
from stages.params import TrainParams


def make_optimizer(params: Iterable[torch.nn.Parameter], settings: TrainParams) -> ScheduledOptimizer:
    """The chosen optimiser, its rate set before each update by the chosen schedule."""
    weights = list(params)
    schedule = make_schedule(
        settings.schedule, d_model=settings.d_model, warmup=settings.warmup, factor=settings.factor, lr=settings.lr
    )
    return ScheduledOptimizer(weights, _base(weights, settings), schedule)


def _base(weights: list[torch.nn.Parameter], settings: TrainParams) -> BaseOptimizer:
    betas = (settings.beta1, settings.beta2)
    if settings.optimizer == "sgd":
        return partial(torch.optim.SGD, momentum=settings.beta1, weight_decay=settings.decay)
    decoupled = settings.optimizer == "adamw"
    return adapt(torch.optim.Adam, weights, betas=betas, eps=settings.eps, decay=settings.decay, decoupled=decoupled)
