"""One training run: a model, its optimiser and its place in the text, to be stopped and gone on with anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stages.model.language_model import LanguageModel, LanguageModelConfig, initialise
from stages.optim.schedules import Schedule
from stages.params import TrainParams
from stages.training.batches import Epoch, Epochs, Sentences
from stages.training.engine import Engine
from stages.training.randomness import Dropout, generator
from stages.training.records import Divergence, Record, Update, Validation, count_updates
from stages.training.scoring import score

if TYPE_CHECKING:
    from stages.training.process_group import ProcessGroup
    from stages.training.sharded import ShardedEngine

_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."
_ORDER, _DROPOUT, _TRAINED = "order", "dropout", "trained"
_PROCESSOR = torch.device("cpu")


class Session:
    """Trains one model from the seed in `settings`; equal settings and text give equal bytes.

    Args:
        settings: of one replica, that is with a seed of its own.
        vocab_size: entries of the vocabulary.
        splits: 'train' and 'valid'; measurements are on the first of 'valid' and 'train' that has sentences.
        group: of the processes that train it together, each with a session of its own; they go through the same
            records. None for this process alone, whatever `processes` says.
        device: where it is computed; draws and all that is saved are the processor's.

    Raises:
        ParamError: the text is too short for the windows asked for.
    """

    def __init__(
        self,
        settings: TrainParams,
        vocab_size: int,
        splits: Mapping[str, Sentences],
        group: ProcessGroup | None = None,
        device: torch.device = _PROCESSOR,
    ) -> None:
        self.settings = settings
        self.model = LanguageModel(model_config(settings, vocab_size))
        initialise(self.model, generator(settings.seed, "init"), settings.init)
        self._order = generator(settings.seed, "order")
        self._dropout = Dropout(settings.dropout, generator(settings.seed, "dropout"))
        self._epochs = epochs_of(splits["train"], settings)
        self.updates = count_updates(self._epochs.per_epoch, settings)
        self.model.to(device)
        if settings.fsdp and group is not None:
            from stages.training.sharded import ShardedEngine

            self._engine: Engine | ShardedEngine = ShardedEngine(
                self.model, settings, self._dropout, self.updates, group
            )
        else:
            self._engine = Engine(self.model, settings, self._dropout, self.updates, group)
        self._score_group = None if settings.fsdp else group  # a sharded model is all ranks' to compute with
        self._optimizer = self._engine.optimizer
        self._measured = "valid" if len(splits["valid"]) else "train"
        self._sentences = splits[self._measured]
        # The place: epoch under way, batches of it done, generator of the order as it was before the epoch.
        self._epoch, self._batch, self._before = 1, 0, self._order.get_state()
        self._validated = -1  # updates done at the last measurement
        self.divergence: Divergence | None = None

    @property
    def step(self) -> int:
        """Updates done."""
        return self._optimizer.updates

    @property
    def done(self) -> bool:
        return self.divergence is not None or (self.step >= self.updates and self._validated == self.step)

    def use_schedule(self, schedule: Schedule) -> None:
        """Rates by the number of the update, instead of those of the settings."""
        self._optimizer.schedule = schedule

    def records(self) -> Iterator[Record]:
        """Train to the end; yields each update, and a measurement before the first one, every `eval_every` epochs and
        every `eval_updates` updates.

        A loss or gradient that is not finite ends it: a `Divergence` is the last record then. Between two records
        the session may be saved with `state`; after `restore` the records go on where they were.
        """
        epoch: Epoch | None = None
        while not self.done:
            if self._is_measuring_due():
                yield self._measure()
            elif self._batch >= self._epochs.per_epoch:
                self._epoch, self._batch, epoch = self._epoch + 1, 0, None
            else:
                if epoch is None:
                    self._before = self._order.get_state()
                    epoch = self._epochs.draw(self._order)
                yield self._update(epoch)

    def _is_measuring_due(self) -> bool:
        if self._validated == self.step:
            return False
        over = self._batch >= self._epochs.per_epoch and self._epoch % self.settings.eval_every == 0
        often = self.settings.eval_updates
        return self.step in (0, self.updates) or over or (often > 0 and self.step % often == 0)

    def _update(self, epoch: Epoch) -> Update | Divergence:
        end = min(self._batch + self.settings.accumulate, self._epochs.per_epoch)
        loss, norm = self._engine.compute([epoch.batch(i) for i in range(self._batch, end)])
        # Each update is reported, and none is made with a gradient that is not finite: hence the two numbers here.
        if not math.isfinite(loss):
            return self._diverge(self.step + 1, f"loss {loss}")
        if not math.isfinite(norm):
            return self._diverge(self.step + 1, f"gradient norm {norm}")
        self._engine.step(norm)
        self._batch = end
        return Update(self.step, self._epoch, self._optimizer.rate(), loss, norm)

    def _measure(self) -> Validation | Divergence:
        tokens, window, threads = self.settings.eval_tokens, self.settings.window, self.settings.threads
        with self._engine.result():
            result = score(
                *(self.model, self._sentences),
                tokens=tokens,
                max_length=window,
                threads=threads,
                group=self._score_group,
                mode=torch.no_grad if self.settings.fsdp else torch.inference_mode,
            )
        if not math.isfinite(result.loss):
            return self._diverge(self.step, f"{self._measured} loss {result.loss}")
        self._validated = self.step
        epoch = self._epoch if self.step else 0
        return Validation(self.step, epoch, self._measured, result.loss, result.perplexity, result.accuracy)

    def _diverge(self, step: int, problem: str) -> Divergence:
        self.divergence = Divergence(step, self._epoch, self._optimizer.rate(step), problem)
        return self.divergence

    def weights(self) -> dict[str, Tensor]:
        """Those that count, by the names of the model's parameters: an average of the optimiser's where it has one.

        They may be the session's own: to be written before it goes on.
        """
        return self._engine.named_weights()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that the rest of the run depends on: tensors, and the place as plain values.

        The tensors are the session's own: to be written before it goes on.
        """
        dropout, pool = self._dropout.position()
        tensors = {_WEIGHTS + name: weight for name, weight in self.weights().items()}
        if self._engine.averages:
            tensors[_TRAINED] = self._engine.weights.detach().cpu()
        over = self._batch >= self._epochs.per_epoch  # then the next order is drawn by the generator as it is now
        tensors |= {_ORDER: self._order.get_state() if over else self._before, _DROPOUT: dropout}
        remembered, plan = self._engine.remembered()
        tensors |= {_OPTIMIZER + name: tensor for name, tensor in remembered.items()}
        place = {
            "step": self.step,
            "epoch": self._epoch,
            "batch": self._batch,
            "validated": self._validated,
            "pool": pool,
            "optimizer": plan,
        }
        return tensors, place

    def restore(self, tensors: Mapping[str, Tensor], place: Mapping[str, Any]) -> None:
        """Go on from a `state` of a session with the same settings and text.

        Raises:
            KeyError, ValueError, RuntimeError: it is none.
        """
        saved = {
            name.removeprefix(_OPTIMIZER): tensor for name, tensor in tensors.items() if name.startswith(_OPTIMIZER)
        }
        weights = {name: tensors[_WEIGHTS + name] for name, _ in self.model.named_parameters()}
        self._engine.restore(weights, saved, place["optimizer"], int(place["step"]))
        if self._engine.averages:
            self._engine.weights.detach().copy_(tensors[_TRAINED])
        self._epoch, self._batch, self._validated = (int(place[key]) for key in ("epoch", "batch", "validated"))
        self._before = tensors[_ORDER].clone()
        self._order.set_state(self._before)
        self._dropout.go_to(tensors[_DROPOUT].clone(), list(place["pool"]))


def epochs_of(sentences: Sentences, settings: TrainParams) -> Epochs:
    """The batches of each epoch of a training text."""
    shape = settings.batches, settings.batch_size, settings.context
    return Epochs(sentences, *shape, longest=settings.max_length)


def model_config(params: TrainParams, vocab_size: int) -> LanguageModelConfig:
    """The part of the parameters that shapes the model."""
    shape = params.model_dump(include=LanguageModelConfig.model_fields.keys() - {"vocab_size"})
    return LanguageModelConfig(vocab_size=vocab_size, **shape)


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in a `state`, under the names of the model's parameters."""
    return {name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
