"""Full sharding (FSDP2): each process keeps a part of every weight, its gradient and what the optimiser remembers.

A block's weights are put together when it is computed, and let go of after. Rajbhandari et al. 2020, "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", stage 3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from stages.model.language_model import LanguageModel
from stages.numerics import check_blas
from stages.optim import saving
from stages.optim.noam import without_compiler
from stages.optim.registry import make_optimizer
from stages.params import TrainParams
from stages.training.batches import Batch
from stages.training.devices import there
from stages.training.engine import with_masks
from stages.training.losses import LOSSES
from stages.training.pieces import piece_of
from stages.training.process_group import ProcessGroup
from stages.training.randomness import Dropout


class ShardedEngine:
    """As `Engine`, of a model that is sharded over the processes of a group.

    The parts that this process has of all weights lie in one vector, and those of their gradients in another, for an
    optimiser that goes by element. What is saved is whole, in the form of an engine that is not sharded.
    """

    averages = False  # no optimiser that goes by element has an average for its result

    def __init__(
        self, model: LanguageModel, settings: TrainParams, dropout: Dropout, updates: int, group: ProcessGroup
    ) -> None:
        check_blas()
        without_compiler()
        self.model, self._settings, self._dropout, self._group = model, settings, dropout, group
        self._loss = LOSSES[settings.precision]
        device = model.embedding.weight.device
        mesh = init_device_mesh(device.type, (group.size,))
        self._parts = Parts([(name, tuple(weight.shape)) for name, weight in model.named_parameters()], group)
        # The logits are a view, which nothing changes in place while gradients are recorded.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self._sharded: list[Any] = list(model.parameters())
        self._own = [weight.to_local() for weight in self._sharded]
        self.weights = nn.Parameter(torch.cat([own.detach().flatten() for own in self._own]))
        self.weights.grad = torch.zeros_like(self.weights)
        self._weight_views, self._gradient_views = (
            [
                part.view(own.shape)
                for part, own in zip(torch.split(vector, [own.numel() for own in self._own]), self._own, strict=True)
            ]
            for vector in (self.weights.detach(), self.weights.grad)
        )
        self.optimizer = make_optimizer([("weights", self.weights)], settings, updates)

    @contextmanager
    def result(self) -> Iterator[None]:
        """Within it the model may be measured; all ranks have to."""
        yield
        self._fsdp().reshard()  # measured without a way back, the weights outside the blocks would stay as they are

    def _fsdp(self) -> FSDPModule:
        assert isinstance(self.model, FSDPModule)  # noqa: S101 (for the type checker: `fully_shard` made it one)
        return self.model

    def compute(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """The gradient of the mean loss over all targets of these batches, this process's part of it.

        Returns:
            That loss in nats a token, and the Euclidean norm of the whole gradient before clipping.
        """
        count = sum(batch.count for batch in batches)
        work = with_masks(batches, self._dropout, self.model)
        device, total = self.weights.device, 0.0
        for i, (batch, masks) in enumerate(work):
            inputs_BT, targets_BT, masks_NBTD, share = piece_of(batch, masks, self._group)
            drop_NBTD = None if masks_NBTD is None else there(torch.from_numpy(masks_NBTD), device)
            self._fsdp().set_requires_gradient_sync(i == len(work) - 1)
            loss = self._loss(
                self._settings.loss, self.model, there(inputs_BT, device), there(targets_BT, device), drop_NBTD
            )
            # The mean over ranks is taken of what each has.
            scale = torch.full((), self._group.size * share / count, device=device)
            torch.autograd.backward(loss, scale)
            total += loss.item() * share
        for weight, gradient in zip(self._sharded, self._gradient_views, strict=True):
            if weight.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(weight.grad.to_local())
                weight.grad = None
        assert self.weights.grad is not None  # noqa: S101 (for the type checker)
        square = float(torch.linalg.vector_norm(self.weights.grad, dtype=torch.float32)) ** 2
        total = self._group.share_loss(total)()
        return total / count, math.sqrt(self._group.sum(square))

    def step(self, norm: float) -> None:
        """Clip the gradient, whose norm this is, and update this process's part of the weights."""
        if 0 < self._settings.clip < norm and self.weights.grad is not None:
            self.weights.grad.mul_(self._settings.clip / norm)
        self.optimizer.update()
        self._put_back()

    def _put_back(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._own, self._weight_views)

    def named_weights(self) -> dict[str, Tensor]:
        """The whole weights by name on rank 0, nothing on the others; to be asked of all of them."""
        whole = self._parts.gather(self.weights.detach())
        return {} if whole is None else self._parts.named(whole)

    def remembered(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As of an engine that is not sharded, on rank 0; to be asked of all ranks."""
        tensors, plan = saving.pack(self.optimizer)
        found = {}
        for name, tensor in tensors.items():
            whole = self._parts.gather(tensor) if tensor.dim() == 1 else tensor.cpu()
            if whole is not None:
                found[name] = whole
        return found, plan

    def restore(
        self, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor], plan: Mapping[str, Any], step: int
    ) -> None:
        """Take this process's part of what any engine's `named_weights` and `remembered` gave after `step` updates."""
        whole = torch.cat([weights[name].flatten() for name, _ in self._parts.shapes])
        self.weights.detach().copy_(self._parts.of(whole))
        self._put_back()
        own = {name: self._parts.of(tensor) if tensor.dim() == 1 else tensor for name, tensor in tensors.items()}
        saving.unpack(self.optimizer, own, plan, step)


class Parts:
    """Which numbers of all weights each rank has: of each weight equal shares of its rows, the last may be shorter.

    Args:
        shapes: of the weights, by name, in the model's order.
        group: of the ranks.
    """

    def __init__(self, shapes: Sequence[tuple[str, tuple[int, ...]]], group: ProcessGroup) -> None:
        self.shapes, self._group = list(shapes), group
        self._counts = [self._counts_of(rank) for rank in range(group.size)]

    def _counts_of(self, rank: int) -> list[tuple[int, int]]:
        """Of each weight the first number that a rank has, and how many."""
        found = []
        for _, (rows, *rest) in self.shapes:
            share, width = -(-rows // self._group.size), math.prod(rest)
            first, end = min(rank * share, rows), min((rank + 1) * share, rows)
            found.append((first * width, (end - first) * width))
        return found

    def of(self, whole: Tensor) -> Tensor:
        """This rank's part of a vector of all weights.

        Raises:
            ValueError: it has another length.
        """
        sizes = [math.prod(shape) for _, shape in self.shapes]
        if len(whole) != sum(sizes):
            raise ValueError(f"{len(whole)} numbers, of which {sum(sizes)} weights cannot be made")
        split = torch.split(whole, sizes)
        return torch.cat([one[a : a + n] for one, (a, n) in zip(split, self._counts[self._group.rank], strict=True)])

    def gather(self, own: Tensor) -> Tensor | None:
        """The vector of all weights out of each rank's part, on rank 0 and on its processor; None on the others."""
        longest = max(sum(n for _, n in counts) for counts in self._counts)
        padded = torch.cat([own, own.new_zeros(longest - len(own))])
        found = [one.cpu() for one in self._group.gather(padded)]
        if not found:
            return None
        split = [
            torch.split(one[: sum(n for _, n in c)], [n for _, n in c])
            for one, c in zip(found, self._counts, strict=True)
        ]
        return torch.cat([part for weight in zip(*split, strict=True) for part in weight])

    def named(self, whole: Tensor) -> dict[str, Tensor]:
        """The weights in a vector of all, by name."""
        parts = torch.split(whole, [math.prod(shape) for _, shape in self.shapes])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}
