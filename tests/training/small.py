"""A small text and small settings, and what tests ask of a session that trains on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stages.params import TrainParams
from stages.text.vocabulary import BOS, EOS
from stages.training.batches import Sentences
from stages.training.records import Divergence, Record, Update, Validation
from stages.training.session import Session

VOCABULARY = 20
TEXT = [[4, 5, 6], [7, 8], [4, 8, 9, 10], [11], [5, 5, 5], [12, 13, 14, 15, 16], [17, 18]]
HELD_OUT = [[4, 8], [5, 19, 6]]
SETTINGS: dict[str, Any] = {
    "d_model": 12,
    "n_heads": 3,
    "heads": "split",
    "hidden": 10,
    "layers": 2,
    "block": "post",
    "epochs": 3,
    "warmup": 5,
    "dropout": 0.3,
    "eval_every": 2,
}


def sentences(text: Sequence[Sequence[int]]) -> Sentences:
    return Sentences(np.array([i for words in text for i in (BOS, *words, EOS)], dtype=np.uint16))


def settings(**changes: Any) -> TrainParams:
    return TrainParams.model_validate(SETTINGS | changes)


def splits(text: Sequence[Sequence[int]] = TEXT, held_out: Sequence[Sequence[int]] = ()) -> dict[str, Sentences]:
    return {"train": sentences(text), "valid": sentences(held_out), "test": sentences([])}


def new_session(
    text: Sequence[Sequence[int]] = TEXT, held_out: Sequence[Sequence[int]] = (), **changes: Any
) -> Session:
    return Session(settings(**changes), VOCABULARY, splits(text, held_out))


def weights_of(session: Session) -> dict[str, bytes]:
    """The bytes of each weight, by name."""
    return bytes_of({name: weight.detach() for name, weight in session.model.named_parameters()})


def bytes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def updates(records: Sequence[Record]) -> list[Update]:
    return [record for record in records if isinstance(record, Update)]


def validations(records: Sequence[Record]) -> list[Validation]:
    return [record for record in records if isinstance(record, Validation)]


def divergences(records: Sequence[Record]) -> list[Divergence]:
    return [record for record in records if isinstance(record, Divergence)]
