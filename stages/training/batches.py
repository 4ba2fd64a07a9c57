"""Sentences as padded batches of ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.errors import ArtifactError
from stages.text.vocabulary import BOS, EOS, PAD, Ids


@dataclass(frozen=True)
class Batch:
    """Inputs [bos] w1 … wn and targets w1 … wn [eos], both [B, T], padded on the right with [pad].

    Text never has the id of [pad], so a target that is [pad] is no target. (In a shorter sentence the first input with
    no target is its [eos].)
    """

    inputs_BT: Tensor
    targets_BT: Tensor


class Sentences:
    """The sentences of one split, read from a memory map; `ids` is flat, each sentence from [bos] to [eos]."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self._starts = np.flatnonzero(ids == BOS)
        self._ends = np.flatnonzero(ids == EOS) + 1
        if len(self._starts) != len(self._ends):
            raise ValueError("each sentence must begin with [bos] and end with [eos]")

    @classmethod
    def load(cls, path: Path) -> Sentences:
        """Open what the vocabulary stage saved.

        Raises:
            ArtifactError: missing or damaged.
        """
        try:
            return cls(np.load(path, mmap_mode="r", allow_pickle=False))
        except FileNotFoundError:
            raise ArtifactError(path, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
        except (ValueError, EOFError) as error:
            raise ArtifactError(path, f"not the ids of sentences ({error})") from None

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def targets(self) -> int:
        """Words plus one [eos] a sentence."""
        return len(self.ids) - len(self)

    def batch(self, indices: Sequence[int]) -> Batch:
        """These sentences, padded to the longest of them."""
        rows = [self.ids[self._starts[i] : self._ends[i]].astype(np.int64) for i in indices]
        padded_BT = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
        for row, ids in zip(padded_BT, rows, strict=True):
            row[: len(ids)] = ids
        tokens_BT = torch.from_numpy(padded_BT)
        return Batch(tokens_BT[:, :-1], tokens_BT[:, 1:])

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """All sentences once, in the order of the text."""
        for start in range(0, len(self), batch_size):
            yield self.batch(range(start, min(start + batch_size, len(self))))

    def shuffled(self, batch_size: int, source: torch.Generator) -> Iterator[Batch]:
        """All sentences once, in a new random order; the last batch may be smaller."""
        order = torch.randperm(len(self), generator=source).tolist()
        for start in range(0, len(self), batch_size):
            yield self.batch(order[start : start + batch_size])
