"""One update: gradients of a batch, in shards, and the optimiser's step over one flat vector of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stages.model.by_hand import ByHand
from stages.model.language_model import LanguageModel, language_model_loss
from stages.numerics import check_blas
from stages.optim.knobs import OPTIMIZERS
from stages.optim.noam import without_compiler
from stages.optim.registry import make_optimizer
from stages.params import TrainParams
from stages.text.vocabulary import PAD
from stages.training.batches import Batch
from stages.training.randomness import Dropout, Mask, Masks

Loss = Callable[[str, LanguageModel, Tensor, Tensor, Tensor | None], Tensor]


class Engine:
    """Trains a model in place, an update at a time.

    All weights lie in one vector and all gradients in another, of which the model's parameters are views: the norm,
    clipping and the optimiser are then one operation each, whatever the number of layers. An optimiser that needs the
    weights in their shapes gets these views.

    A batch is cut into `shards`, each with a copy of the model that shares the weights and has gradients of its own.
    A shard is computed by one thread, and gradients are added in the order of the shards; so the bytes of a result
    depend on the number of shards and not on how many of them run at once (`threads`).

    Args:
        model: to be trained.
        settings: of the run.
        dropout: of the run.
        updates: of the whole run, for what is planned over it.
    """

    def __init__(self, model: LanguageModel, settings: TrainParams, dropout: Dropout, updates: int) -> None:
        check_blas()
        self.model, self._settings, self._dropout = model, settings, dropout
        self.weights = nn.Parameter(nn.utils.parameters_to_vector(model.parameters()).detach())
        if settings.compile:
            torch.use_deterministic_algorithms(True)  # of the compiler as well
            model.positions_and_mask(settings.context)  # what is compiled depends on the length of these tables
        # Compiled code has a copy even for one shard: measurements may lengthen the model's own tables.
        copies = [copy.deepcopy(model) for _ in range(settings.shards - (not settings.compile))]
        copies = copies if settings.compile else [model, *copies]
        self._gradients = [torch.zeros_like(self.weights) for _ in copies]
        for one, gradient in zip([*copies, model], [*self._gradients, self._gradients[0]], strict=True):
            _share(one, self.weights.detach(), gradient)
        self.weights.grad = self._gradients[0]
        self._flat = self._gradients[0].numpy()
        if not settings.compile:
            without_compiler()
        in_shape = OPTIMIZERS[settings.optimizer].in_shape
        named = model.named_parameters() if in_shape else [("weights", self.weights)]
        self.optimizer = make_optimizer(named, settings, updates)

        compiled = torch.compile(_loss, dynamic=False, options={"cpp_wrapper": True}) if settings.compile else None
        self._shards = [
            _Shard(one, gradient, compiled, settings.loss)
            for one, gradient in zip(copies, self._gradients, strict=True)
        ]
        threads = min(settings.threads, settings.shards)
        self._pool = (
            ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else None
        )

    def compute(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """The gradient of the mean loss over all targets of these batches.

        Returns:
            That loss in nats a token, and the Euclidean norm of the gradient before clipping.
        """
        count = sum(batch.count for batch in batches)
        work = [(batch, self._masks(batch)) for batch in batches]
        jobs = [partial(shard.run, i, len(self._shards), work, 1 / count) for i, shard in enumerate(self._shards)]
        if self._pool is None:
            sums = [job() for job in jobs]
        else:
            sums = [one.result() for one in [self._pool.submit(job) for job in jobs]]
        gradient = self._gradients[0]
        for other in self._gradients[1:]:
            gradient.add_(other)
        with np.errstate(all="ignore"):  # a norm that is not finite is the caller's to notice
            return sum(sums) / count, math.sqrt(np.dot(self._flat, self._flat))

    def step(self, norm: float) -> None:
        """Clip the gradient, whose norm this is, and update the weights."""
        if 0 < self._settings.clip < norm:
            self._gradients[0].mul_(self._settings.clip / norm)
        self.optimizer.update()

    @property
    def averages(self) -> bool:
        """The optimiser's result is an average of weights, and not those that it trains."""
        return hasattr(self.optimizer.base, "eval")

    @contextmanager
    def result(self) -> Iterator[None]:
        """Within it the model has the weights that count: the average of an optimiser that has one."""
        if not self.averages:
            yield
            return
        base: Any = self.optimizer.base
        trained = self.weights.detach().clone()
        base.eval()
        try:
            yield
        finally:
            base.train()
            self.weights.detach().copy_(trained)  # as it was to the bit: there and back again would round

    def _masks(self, batch: Batch) -> Mask | None:
        """Dropout for one batch [N, B, T, D], drawn before it is cut, so that the draws don't depend on the shards."""
        if not self._dropout.p:
            return None
        return self._dropout.masks(self.model.dropouts, *batch.inputs_BT.shape, self.model.config.d_model)


class _Shard:
    """One of several equal parts of each batch, with its gradient."""

    def __init__(self, model: LanguageModel, gradient: Tensor, loss: Loss | None, kind: str) -> None:
        self._model, self._gradient, self._loss, self._kind = model, gradient, loss, kind
        self._by_hand = ByHand(model) if loss is None and ByHand.fits(model, 1) else None
        self._parameters = list(model.parameters())
        self._gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]  # all

    def run(self, part: int, parts: int, work: Sequence[tuple[Batch, Mask | None]], scale: float) -> float:
        """Gradient of this part of the batches into its vector; returns the sum of the losses."""
        pieces = [piece for batch, masks in work if (piece := _piece(batch, masks, part, parts))]
        if self._by_hand is not None and len(pieces) == 1 and ByHand.fits(self._model, pieces[0][0].shape[1]):
            return self._by_hand.loss_and_gradients(*pieces[0], self._kind, scale)
        total = 0.0
        for i, (inputs_BT, targets_BT, masks_NBTD) in enumerate(pieces):
            masks = None if masks_NBTD is None else torch.from_numpy(masks_NBTD)
            loss = (self._loss or _loss)(self._kind, self._model, inputs_BT, targets_BT, masks)
            # All into their places at once: `backward` would need zeros there, and add one after the other.
            gradients = torch.autograd.grad(loss, self._parameters, torch.tensor(scale))
            (torch._foreach_add_ if i else torch._foreach_copy_)(self._gradients, gradients)
            total += loss.item()
        if not pieces:
            self._gradient.zero_()
        return total


def _piece(batch: Batch, masks_NBTD: Mask | None, part: int, parts: int) -> tuple[Tensor, Tensor, Mask | None] | None:
    """Inputs, targets and masks of one of equal parts of a batch; None where it has fewer rows than parts."""
    if parts == 1:
        return batch.inputs_BT, batch.targets_BT, masks_NBTD
    size = len(batch.inputs_BT)
    rows = slice(size * part // parts, size * (part + 1) // parts)
    if rows.start == rows.stop:
        return None
    return batch.inputs_BT[rows], batch.targets_BT[rows], None if masks_NBTD is None else masks_NBTD[:, rows]


def _loss(kind: str, model: LanguageModel, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Tensor | None) -> Tensor:
    """The sum of the loss over all targets, in nats."""
    logits_BTV, _ = model(inputs_BT) if masks_NBTD is None else model(inputs_BT, Masks(masks_NBTD.unbind(0)))
    return language_model_loss(logits_BTV, targets_BT, kind, ignore=PAD, reduction="sum")


def _share(model: LanguageModel, weights: Tensor, gradient: Tensor) -> None:
    """Make the parameters of a model views of a vector, and their gradients views of another."""
    start = 0
    for parameter in model.parameters():
        end = start + parameter.numel()
        parameter.data = weights[start:end].view(parameter.shape)
        parameter.grad = gradient[start:end].view(parameter.shape)
        start = end
