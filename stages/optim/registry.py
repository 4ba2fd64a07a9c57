"""The optimisers and schedules of params.yaml, put together. What each uses is listed in `stages.optim.knobs`.

adam, adamw    Kingma & Ba 2015; with decoupled decay: Loshchilov & Hutter 2019
nadam, radam   Dozat 2016 (torch's momentum_decay of 0.004); Liu et al. 2020
adafactor      Shazeer & Stern 2018; updates are relative to the size of each weight, so rates are larger: at most
               min(lr, t^-0.5) of it
muon           see `stages.optim.muon`
sgd, adagrad   with momentum beta1; Duchi et al. 2011
lion           Chen et al. 2023; of the sign alone, so rates are 3 to 10 times smaller than Adam's
soap           Vyas et al. 2024; its first update only looks at the gradient
ademamix       Pagliardini et al. 2024; beta3 = 0.9999 and alpha = 5, both with a ramp over the whole run
prodigy        Mishchenko & Defazio 2023; `lr` multiplies the rate that it finds, and is 1 in the paper
schedulefree   Defazio et al. 2024, AdamW; what is measured and kept is its average of the weights

adam, adamw, sgd and lion take no square roots of tensors and multiply no matrices: the others have the same bytes on
one machine, but perhaps not on another (see `stages.numerics`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from stages.optim.knobs import EXTRA, decay_form
from stages.optim.muon import MuonAndAdamW
from stages.optim.noam import BaseOptimizer, ScheduledOptimizer, adapt
from stages.optim.schedules import make_schedule
from stages.params import TrainParams


def make_optimizer(
    named: Iterable[tuple[str, nn.Parameter]], settings: TrainParams, updates: int
) -> ScheduledOptimizer:
    """The chosen optimiser, its rate set before each update by the chosen schedule.

    Args:
        named: the weights; of an optimiser that is `in_shape`, under the names that the model gives them.
        settings: all that is about either.
        updates: of the whole run.

    Raises:
        ImportError: the optimiser is one of the extra's, which is not installed; parameters are checked for this.
    """
    weights = dict(named)
    schedule = make_schedule(
        settings.schedule,
        d_model=settings.d_model,
        warmup=settings.warmup,
        factor=settings.factor,
        lr=settings.lr,
        updates=updates,
        decay_fraction=settings.decay_fraction,
        min_lr=settings.min_lr,
        counting=settings.counting,
    )
    return ScheduledOptimizer(list(weights.values()), _base(weights, settings, updates), schedule)


def _base(weights: dict[str, nn.Parameter], settings: TrainParams, updates: int) -> BaseOptimizer:
    betas, eps, decay = (settings.beta1, settings.beta2), settings.eps, settings.decay
    decoupled = decay_form(settings.optimizer, settings.decay_form) == "decoupled"
    ours: Any = {"betas": betas, "eps": eps, "decay": decay, "decoupled": decoupled}
    theirs: Any = {"betas": betas, "weight_decay": decay}  # the names of the extra's
    match settings.optimizer:
        case "adam" | "adamw":
            return adapt(torch.optim.Adam, list(weights.values()), **ours)
        case "nadam":
            return adapt(torch.optim.NAdam, list(weights.values()), **ours)
        case "radam":
            return adapt(torch.optim.RAdam, list(weights.values()), **ours)
        case "adafactor":
            return partial(torch.optim.Adafactor, weight_decay=decay)
        case "muon":
            return partial(_muon, weights, betas=betas, eps=eps, decay=decay)
        case "sgd":
            return partial(torch.optim.SGD, momentum=settings.beta1, weight_decay=decay)
        case "adagrad":
            return partial(torch.optim.Adagrad, eps=eps, weight_decay=decay)
        case "lion":
            return partial(_extra("Lion"), **theirs, weight_decouple=decoupled)
        case "soap":
            return partial(_extra("SOAP"), **theirs, eps=eps)
        case "ademamix":
            ramp: Any = {"betas": (*betas, 0.9999), "t_alpha_beta3": updates}
            return partial(_extra("AdEMAMix"), **theirs | ramp, eps=eps, weight_decouple=decoupled)
        case "prodigy":
            ramped = settings.schedule != "none"  # a small rate at first must not pass for a small distance
            return partial(_extra("Prodigy"), **theirs, eps=eps, weight_decouple=decoupled, safeguard_warmup=ramped)
        case "schedulefree":
            return partial(_extra("ScheduleFreeAdamW"), **theirs, eps=eps)


def _muon(weights: dict[str, nn.Parameter], _params: Any, *, lr: float, **options: Any) -> MuonAndAdamW:
    inside = {name for name, weight in weights.items() if name.startswith("blocks.") and weight.dim() == 2}
    matrices = [weight for name, weight in weights.items() if name in inside]
    rest = [weight for name, weight in weights.items() if name not in inside]
    return MuonAndAdamW(matrices, rest, lr=lr, **options)


def _extra(name: str) -> Any:
    """A class of the extra's package, which is loaded for it alone."""
    return getattr(import_module(EXTRA), name)
