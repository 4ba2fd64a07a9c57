"""One update: gradients of a batch, in shards, and the optimiser's step over one flat vector of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from stages.model.by_hand import ByHand
from stages.model.language_model import LanguageModel
from stages.numerics import check_blas
from stages.optim import saving
from stages.optim.knobs import OPTIMIZERS
from stages.optim.noam import without_compiler
from stages.optim.registry import make_optimizer
from stages.params import TrainParams
from stages.training.batches import Batch
from stages.training.devices import is_host, there
from stages.training.losses import LOSSES, Loss
from stages.training.pieces import Work, piece
from stages.training.randomness import Dropout

if TYPE_CHECKING:
    from stages.training.process_group import ProcessGroup


class Engine:
    """Trains a model in place, an update at a time.

    All weights lie in one vector and all gradients in another, of which the model's parameters are views: the norm,
    clipping and the optimiser are then one operation each, whatever the number of layers. An optimiser that needs the
    weights in their shapes gets these views.

    A batch is cut into `shards`, each with a copy of the model that shares the weights and has gradients of its own.
    A shard is computed by one thread, and gradients are added in the order of the shards; so the bytes of a result
    depend on the number of shards and not on how many of them run at once (`threads`).

    As one of several processes it computes the gradient of its rows, which all ranks add up to the same sum; each takes
    the optimiser's step.

    Args:
        model: to be trained, on its device.
        settings: of the run.
        dropout: of the run.
        updates: of the whole run, for what is planned over it.
        group: of the processes that train together; None for this one alone.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: TrainParams,
        dropout: Dropout,
        updates: int,
        group: ProcessGroup | None = None,
    ) -> None:
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
        self._host = is_host(self.weights.device)
        if not settings.compile:
            without_compiler()
        in_shape = OPTIMIZERS[settings.optimizer].in_shape
        named = model.named_parameters() if in_shape else [("weights", self.weights)]
        self.optimizer = make_optimizer(named, settings, updates)

        loss: Loss = LOSSES[settings.precision]
        if settings.compile:
            loss = torch.compile(loss, dynamic=False, options={"cpp_wrapper": True})
        self._parallel = None
        if group is not None:
            from stages.training.parallel import DataParallel

            self._parallel = DataParallel(model, self._gradients[0], group, loss, settings.loss)
        by_hand = self._host and group is None and not settings.compile and settings.precision == "fp32"
        self._shards = [
            _Shard(one, gradient, loss, settings.loss, by_hand)
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
        work = with_masks(batches, self._dropout, self.model)
        if self._parallel is not None:
            return self._parallel.run(work, count) / count, self._numbers()[0]
        jobs = [partial(shard.run, i, len(self._shards), work, 1 / count) for i, shard in enumerate(self._shards)]
        if self._pool is None:
            sums = [job() for job in jobs]
        else:
            sums = [one.result() for one in [self._pool.submit(job) for job in jobs]]
        gradient = self._gradients[0]
        for other in self._gradients[1:]:
            gradient.add_(other)
        norm, *totals = self._numbers(*sums)
        return sum(totals) / count, norm

    def _numbers(self, *others: float | Tensor) -> list[float]:
        """The norm of the gradient, and other numbers; from another device all at once, since each time is a wait."""
        gradient = self._gradients[0]
        if not self._host:
            norm = torch.linalg.vector_norm(gradient)
            return [
                float(one) for one in torch.stack([norm, *(torch.as_tensor(one).to(norm) for one in others)]).tolist()
            ]
        flat = gradient.numpy()
        with np.errstate(all="ignore"):  # a norm that is not finite is the caller's to notice
            return [math.sqrt(np.dot(flat, flat)), *(float(one) for one in others)]

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

    def named_weights(self) -> dict[str, Tensor]:
        """Those that count, by the names of the model's parameters; of a processor's they may be the engine's own."""
        with self.result():
            found = {name: parameter.detach().cpu() for name, parameter in self.model.named_parameters()}
            return {name: weight.clone() for name, weight in found.items()} if self.averages else found

    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the optimiser goes on with, as `stages.optim.saving` packs it, and the weights that it trains."""
        tensors, plan = saving.pack(self.optimizer)
        return {name: tensor.cpu() for name, tensor in tensors.items()}, plan

    def restore(
        self, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor], plan: Mapping[str, Any], step: int
    ) -> None:
        """Go on with what `named_weights` and `remembered` gave after `step` updates."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        saving.unpack(self.optimizer, tensors, plan, step)


def with_masks(batches: Sequence[Batch], dropout: Dropout, model: LanguageModel) -> list[Work]:
    """Dropout [N, B, T, D] for each batch, drawn before it is cut, so that the draws don't depend on the parts."""
    if not dropout.p:
        return [(batch, None) for batch in batches]
    shapes = [(model.dropouts, *batch.inputs_BT.shape, model.config.d_model) for batch in batches]
    return [(batch, dropout.masks(*shape)) for batch, shape in zip(batches, shapes, strict=True)]


class _Shard:
    """One of several equal parts of each batch, with its gradient."""

    def __init__(self, model: LanguageModel, gradient: Tensor, loss: Loss, kind: str, by_hand: bool) -> None:
        self._model, self._gradient, self._loss, self._kind = model, gradient, loss, kind
        self._device = gradient.device
        self._by_hand = ByHand(model) if by_hand and ByHand.fits(model, 1) else None
        self._parameters = list(model.parameters())
        self._gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]  # all

    def run(self, part: int, parts: int, work: Sequence[Work], scale: float) -> float | Tensor:
        """Gradient of this part of the batches into its vector; returns the sum of the losses."""
        pieces = [own for batch, masks in work if (own := piece(batch, masks, part, parts))]
        if self._by_hand is not None and len(pieces) == 1 and ByHand.fits(self._model, pieces[0][0].shape[1]):
            return self._by_hand.loss_and_gradients(*pieces[0], self._kind, scale)
        total: float | Tensor = 0.0
        for i, (inputs_BT, targets_BT, masks_NBTD) in enumerate(pieces):
            masks = None if masks_NBTD is None else there(torch.from_numpy(masks_NBTD), self._device)
            inputs, targets = there(inputs_BT, self._device), there(targets_BT, self._device)
            loss = self._loss(self._kind, self._model, inputs, targets, masks)
            # All into their places at once: `backward` would need zeros there, and add one after the other.
            seed = torch.full((), scale, device=self._device)
            gradients = torch.autograd.grad(loss, self._parameters, seed)
            (torch._foreach_add_ if i else torch._foreach_copy_)(self._gradients, gradients)
            total = total + (loss.item() if is_host(self._device) else loss.detach())
        if not pieces:
            self._gradient.zero_()
        return total


def _share(model: LanguageModel, weights: Tensor, gradient: Tensor) -> None:
    """Make the parameters of a model views of a vector, and their gradients views of another."""
    start = 0
    for parameter in model.parameters():
        end = start + parameter.numel()
        parameter.data = weights[start:end].view(parameter.shape)
        parameter.grad = gradient[start:end].view(parameter.shape)
        start = end
