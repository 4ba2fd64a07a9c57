"""The training loop: one record an update, no files, no tracking."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from stages.errors import TrainingError
from stages.model.language_model import LanguageModel, language_model_loss
from stages.optim.noam import ScheduledOptimizer
from stages.params import TrainParams
from stages.text.vocabulary import PAD
from stages.training.batches import Sentences
from stages.training.randomness import Dropout, generator
from stages.training.scoring import score


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser update.

    Attributes:
        step: number of the update, from 1.
        epoch: pass over the text, from 1.
        lr: rate that this update used.
        loss: training loss in nats a token, with dropout, before the update.
        grad_norm: Euclidean norm of the gradient, before clipping.
    """

    step: int
    epoch: int
    lr: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Validation:
    """A measurement without dropout after `step` updates, on `split` ('valid', or 'train' without held-out text)."""

    step: int
    epoch: int
    split: str
    loss: float
    perplexity: float | None
    accuracy: float


def count_updates(sentences: int, settings: TrainParams) -> int:
    """Optimiser updates of a whole run."""
    return settings.epochs * math.ceil(sentences / settings.batch_size)


def train(
    model: LanguageModel,
    optimizer: ScheduledOptimizer,
    splits: dict[str, Sentences],
    settings: TrainParams,
) -> Iterator[Update | Validation]:
    """Train in place; yields every update, and a validation before the first one and every `eval_every` epochs.

    Order and dropout come from generators of `settings.seed`, so that equal settings give equal weights.

    Raises:
        TrainingError: loss or gradient are no longer finite; names the update.
    """
    order = generator(settings.seed, "order")
    drop = Dropout(settings.dropout, generator(settings.seed, "dropout"))
    weights = list(model.parameters())
    validation_split = "valid" if len(splits["valid"]) else "train"

    def validate(epoch: int) -> Validation:
        result = score(model, splits[validation_split])
        if not math.isfinite(result.loss):
            raise TrainingError(
                f"after update {optimizer.updates}: {validation_split} loss {result.loss}, no longer finite; "
                "lower factor, lr or decay, raise warmup, or set clip"
            )
        return Validation(optimizer.updates, epoch, validation_split, result.loss, result.perplexity, result.accuracy)

    yield validate(0)
    for epoch in range(1, settings.epochs + 1):
        for batch in splits["train"].shuffled(settings.batch_size, order):
            logits_BTV, _ = model(batch.inputs_BT, drop)
            loss = language_model_loss(logits_BTV, batch.targets_BT, settings.loss, ignore=PAD)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
            loss_value, norm_value, step = loss.item(), norm.item(), optimizer.updates + 1
            if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
                raise TrainingError(
                    f"update {step}: loss {loss_value}, gradient norm {norm_value}, no longer finite at rate "
                    f"{optimizer.rate(step):.3g}; lower factor, lr or decay, raise warmup, or set clip"
                )
            if settings.clip:
                torch.nn.utils.clip_grads_with_norm_(weights, settings.clip, norm)
            optimizer.step()
            optimizer.zero_grad()
            yield Update(step, epoch, optimizer.rate(), loss_value, norm_value)
        if epoch % settings.eval_every == 0 or epoch == settings.epochs:
            yield validate(epoch)
