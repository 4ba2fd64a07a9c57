"""The loss that gradients are taken of: the sum over all targets, in nats."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stages.model.language_model import LanguageModel, language_model_loss
from stages.text.vocabulary import PAD
from stages.training.randomness import Masks

Loss = Callable[[str, LanguageModel, Tensor, Tensor, Tensor | None], Tensor]


def summed_loss(
    kind: str, model: LanguageModel, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Tensor | None
) -> Tensor:
    """In the arithmetic of the weights."""
    logits_BTV, _ = model(inputs_BT) if masks_NBTD is None else model(inputs_BT, Masks(masks_NBTD.unbind(0)))
    return language_model_loss(logits_BTV, targets_BT, kind, ignore=PAD, reduction="sum")


def mixed_loss(
    kind: str, model: LanguageModel, inputs_BT: Tensor, targets_BT: Tensor, masks_NBTD: Tensor | None
) -> Tensor:
    """With the products of the forward pass in bf16, and so those of the way back; the loss itself in fp32."""
    with torch.autocast(inputs_BT.device.type, torch.bfloat16):
        logits_BTV, _ = model(inputs_BT) if masks_NBTD is None else model(inputs_BT, Masks(masks_NBTD.unbind(0)))
    return language_model_loss(logits_BTV.float(), targets_BT, kind, ignore=PAD, reduction="sum")


LOSSES: dict[str, Loss] = {"fp32": summed_loss, "bf16": mixed_loss}
