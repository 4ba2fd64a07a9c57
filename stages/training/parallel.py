"""Data parallelism: each process has the model and computes its rows of every batch; torch's DDP adds up gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stages.model.language_model import LanguageModel
from stages.training.devices import is_host, there
from stages.training.losses import Loss
from stages.training.pieces import Work, piece_of
from stages.training.process_group import ProcessGroup


class ModelLoss(nn.Module):
    """The summed loss of a model, as one module: what the gradients of all ranks are added up of."""

    def __init__(self, model: LanguageModel, loss: Loss, kind: str) -> None:
        super().__init__()
        self.model, self._loss, self._kind = model, loss, kind

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Tensor | None) -> Tensor:
        return self._loss(self._kind, self.model, inputs_BT, targets_BT, masks_NBTD)


class DataParallel:
    """Gradients of this process's rows, added up over all ranks where they are kept.

    Args:
        model: its parameters have gradients, which are views of
        gradient: this vector.
        group: the processes.
        loss, kind: of the run.
    """

    def __init__(self, model: LanguageModel, gradient: Tensor, group: ProcessGroup, loss: Loss, kind: str) -> None:
        self._gradient, self._group, self._device = gradient, group, gradient.device
        # With `gradient_as_bucket_view` the gradients would be views of DDP's buckets and no longer one vector.
        self._loss = DistributedDataParallel(ModelLoss(model, loss, kind), gradient_as_bucket_view=False)
        self._settle()

    def _settle(self) -> None:
        """Two passes that count for nothing.

        DDP orders its buckets anew after the first one. In which order a sum is rounded depends on them, so that a
        run gone on with would not have the bytes of one never interrupted.
        """
        one = torch.ones((1, 1), dtype=torch.long, device=self._device)
        for _ in range(2):
            self._loss(one, one, None).backward(torch.zeros((), device=self._device))

    def run(self, work: Sequence[Work], count: int) -> float:
        """The gradient of the mean loss over all `count` targets of these batches; returns the sum of the losses."""
        self._gradient.zero_()
        total: float | Tensor = 0.0
        for i, (batch, masks) in enumerate(work):
            last = i == len(work) - 1
            inputs_BT, targets_BT, masks_NBTD, share = piece_of(batch, masks, self._group)
            with nullcontext() if last else self._loss.no_sync():
                loss = self._loss(
                    there(inputs_BT, self._device),
                    there(targets_BT, self._device),
                    None if masks_NBTD is None else there(torch.from_numpy(masks_NBTD), self._device),
                )
                if is_host(self._device):
                    total += loss.item() * share
                else:
                    total = total + loss.detach() * share
                if last and is_host(self._device):
                    finish = self._group.share_loss(float(total))  # on its way while gradients are computed
                scale = self._group.size * share / count  # since DDP takes the mean over ranks
                loss.backward(torch.full((), scale, device=self._device))
        return finish() if is_host(self._device) else self._group.share_loss(float(total))()
