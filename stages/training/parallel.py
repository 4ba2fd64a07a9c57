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
from stages.training.shared_sum import SharedSum


class ModelLoss(nn.Module):
    """The summed loss of a model, as one module: what the gradients of all ranks are added up of."""

    def __init__(self, model: LanguageModel, loss: Loss, kind: str) -> None:
        super().__init__()
        self.model, self._loss, self._kind = model, loss, kind

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Tensor | None) -> Tensor:
        return self._loss(self._kind, self.model, inputs_BT, targets_BT, masks_NBTD)


class DataParallel:
    """Gradients of this process's rows, added up over all ranks where they are kept.

    On devices DDP adds them up, bucket by bucket, while others are computed. On the processor there is nobody to do
    that meanwhile, and its buckets are two more copies: there all gradients are added up at once, in their one vector,
    through shared memory where the ranks have one machine.

    Args:
        model: its parameters have gradients, which are views of
        gradient: this vector.
        group: the processes.
        loss, kind: of the run.
    """

    def __init__(self, model: LanguageModel, gradient: Tensor, group: ProcessGroup, loss: Loss, kind: str) -> None:
        self._gradient, self._group, self._device = gradient, group, gradient.device
        self._parameters = list(model.parameters())
        self._gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]  # all
        # With `gradient_as_bucket_view` the gradients would be views of DDP's buckets and no longer one vector.
        self._loss = DistributedDataParallel(ModelLoss(model, loss, kind), gradient_as_bucket_view=False)
        self._shared = SharedSum.of(group, gradient) if is_host(self._device) else None
        self._run = self._run_on_host if is_host(self._device) else self._run_on_device
        if not is_host(self._device):
            self._settle()

    def run(self, work: Sequence[Work], count: int) -> float:
        """The gradient of the mean loss over all `count` targets of these batches; returns the sum of the losses."""
        return self._run(work, count)

    def _run_on_host(self, work: Sequence[Work], count: int) -> float:
        total = 0.0
        for i, (batch, masks) in enumerate(work):
            inputs_BT, targets_BT, masks_NBTD, share = piece_of(batch, masks, self._group)
            with self._loss.no_sync():
                loss = self._loss(inputs_BT, targets_BT, None if masks_NBTD is None else torch.from_numpy(masks_NBTD))
            total += loss.item() * share
            gradients = torch.autograd.grad(loss, self._parameters, torch.tensor(share / count))
            (torch._foreach_add_ if i else torch._foreach_copy_)(self._gradients, gradients)
        if self._shared is None:
            self._group.add_up(self._gradient)
            return self._group.share_loss(total)()
        self._shared.put(self._gradient)
        total = self._group.share_loss(total)()  # which nobody has before all have come here
        self._shared.take(self._gradient)
        return total

    def _run_on_device(self, work: Sequence[Work], count: int) -> float:
        self._gradient.zero_()
        total = torch.zeros((), device=self._device)
        for i, (batch, masks) in enumerate(work):
            inputs_BT, targets_BT, masks_NBTD, share = piece_of(batch, masks, self._group)
            with nullcontext() if i == len(work) - 1 else self._loss.no_sync():
                loss = self._loss(
                    there(inputs_BT, self._device),
                    there(targets_BT, self._device),
                    None if masks_NBTD is None else there(torch.from_numpy(masks_NBTD), self._device),
                )
                total = total + loss.detach() * share
                scale = self._group.size * share / count  # since DDP takes the mean over ranks
                loss.backward(torch.full((), scale, device=self._device))
        return self._group.share_loss(float(total))()

    def _settle(self) -> None:
        """Two passes that count for nothing.

        DDP orders its buckets anew after the first one. In which order a sum is rounded depends on them, so that a
        run gone on with would not have the bytes of one never interrupted.
        """
        one = torch.ones((1, 1), dtype=torch.long, device=self._device)
        for _ in range(2):
            self._loss(one, one, None).backward(torch.zeros((), device=self._device))
