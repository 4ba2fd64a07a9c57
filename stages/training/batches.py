"""Text as batches of ids: sentences padded to the longest of their batch, or windows of a fixed length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.errors import ArtifactError, ParamError
from stages.text.vocabulary import BOS, EOS, PAD, Ids

Indices = npt.NDArray[np.int64]

_CHUNK = 2**22  # ids looked at at once
_KEPT = 4096  # sentences that stay in memory as batches of one
_POOL = 100  # batches whose sentences are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Inputs [bos] w1 … wn and targets w1 … wn [eos], both [B, T], padded on the right with [pad].

    Text never has the id of [pad], so a target that is [pad] is no target. (In a shorter sentence the first input with
    no target is its [eos].) `count` is the number of targets.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    count: int

    @classmethod
    def of(cls, tokens_BT: npt.NDArray[np.int64], count: int) -> Batch:
        """From rows of tokens [B, T + 1]."""
        tokens = torch.from_numpy(tokens_BT)
        return cls(tokens[:, :-1], tokens[:, 1:], count)


class Examples(Protocol):
    """What an epoch goes through: sentences or windows."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Indices) -> Batch: ...


class Sentences:
    """The sentences of one split, read from a memory map.

    Args:
        ids: flat, each sentence from [bos] to [eos].
        longest: inputs that are read at once. A longer sentence counts as several, each of which begins with the last
            token of the one before: every word is a target once. 0 for no limit.
    """

    def __init__(self, ids: Ids, longest: int = 0) -> None:
        self.ids = ids
        self._longest = longest
        self._singles: dict[int, Batch] = {}
        if len(ids) and (ids[0] != BOS or ids[-1] != EOS):
            raise ValueError("the first must begin with [bos] and the last end with [eos]")

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

    @cached_property
    def bounds(self) -> Indices:
        """Where each sentence begins, and the end of the last."""
        starts = [
            np.flatnonzero(self.ids[first : first + _CHUNK] == BOS) + first for first in range(0, len(self.ids), _CHUNK)
        ]
        bounds = np.append(np.concatenate(starts) if starts else [], len(self.ids)).astype(np.int64)
        if len(bounds) > 1 and not (self.ids[bounds[1:] - 1] == EOS).all():
            raise ValueError("each sentence must begin with [bos] and end with [eos]")
        return bounds

    @cached_property
    def _rows(self) -> tuple[Indices, Indices]:
        """Where each begins and ends, in windows of at most `longest` inputs."""
        starts, ends = self.bounds[:-1], self.bounds[1:]
        if not self._longest:
            return starts, ends
        windows = -(-(ends - starts - 1) // self._longest)
        nth = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)  # of its sentence
        first = np.repeat(starts, windows) + nth * self._longest
        return first, np.minimum(first + self._longest + 1, np.repeat(ends, windows))

    def __len__(self) -> int:
        return len(self._rows[0])

    @property
    def targets(self) -> int:
        """Words plus one [eos] a sentence."""
        return len(self.ids) - (len(self.bounds) - 1)

    @property
    def lengths(self) -> Indices:
        starts, ends = self._rows
        return ends - starts

    def within(self, longest: int) -> Sentences:
        """The same text, in windows of at most so many inputs; itself, where none is longer."""
        fits = not longest or not len(self) or int(self.lengths.max()) - 1 <= longest
        return self if fits else Sentences(self.ids, longest)

    def batch(self, indices: Sequence[int] | Indices) -> Batch:
        """These sentences, padded to the longest of them."""
        if len(indices) == 1:
            return self._single(int(indices[0]))
        starts, ends = self._rows
        rows = [self.ids[starts[i] : ends[i]] for i in indices]
        padded_BT = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
        for row, ids in zip(padded_BT, rows, strict=True):
            row[: len(ids)] = ids
        return Batch.of(padded_BT, sum(map(len, rows)) - len(rows))

    def _single(self, i: int) -> Batch:
        """One sentence; of a short text each is made once."""
        batch = self._singles.get(i)
        if batch is None:
            starts, ends = self._rows
            tokens_T = self.ids[starts[i] : ends[i]].astype(np.int64)
            batch = Batch.of(tokens_T[None], len(tokens_T) - 1)
            if len(self._singles) < _KEPT:
                self._singles[i] = batch
        return batch


class Windows:
    """A text as windows of `context` tokens, the first of which begins at `offset`.

    They run across the ends of sentences; [eos] and [bos] tell where these are, and nobody has to predict a [bos].
    """

    def __init__(self, ids: Ids, context: int, offset: int = 0) -> None:
        self.ids, self.context, self.offset = ids, context, offset
        self._window = np.arange(context + 1)

    def __len__(self) -> int:
        """The same for every offset; about one less than there is room for, so that an offset can be drawn."""
        return max(1, (len(self.ids) - self.context) // self.context)

    def batch(self, indices: Sequence[int] | Indices) -> Batch:
        starts = self.offset + np.asarray(indices, dtype=np.int64) * self.context
        tokens_BT = self.ids[starts[:, None] + self._window].astype(np.int64)
        targets_BT = np.where(tokens_BT[:, 1:] == BOS, PAD, tokens_BT[:, 1:])
        return Batch(
            torch.from_numpy(tokens_BT[:, :-1]), torch.from_numpy(targets_BT), int(np.count_nonzero(targets_BT))
        )


class Epochs:
    """The batches of every epoch: which examples, in which order.

    Args:
        sentences: the training text.
        batches: 'shuffled', 'bucketed' (sentences of like length together, to pad less) or 'packed' (windows).
        batch_size: examples a batch; the last one of an epoch may be smaller.
        context: tokens of a window.
        longest: inputs of a sentence that are read at once; longer ones are several examples.

    Raises:
        ParamError: the text is shorter than one window.
    """

    def __init__(self, sentences: Sentences, batches: str, batch_size: int, context: int, longest: int = 0) -> None:
        if batches != "packed":
            sentences = sentences.within(longest)
        self._sentences, self._batches, self._size, self._context = sentences, batches, batch_size, context
        if batches == "packed" and context < 2:
            rule = "at least 2 with batches: packed (after the end of a sentence there is nothing to predict)"
            raise ParamError("context", f" = {context}: expected {rule}")
        if batches == "packed" and len(sentences.ids) <= context:
            raise ParamError("context", f" = {context}: expected less than the {len(sentences.ids)} tokens of the text")
        count = len(Windows(sentences.ids, context)) if batches == "packed" else len(sentences)
        self.per_epoch = -(-count // batch_size)

    def draw(self, source: torch.Generator) -> Epoch:
        """The next epoch; all that is random in it comes from `source`."""
        if self._batches == "packed":
            spare = len(self._sentences.ids) - 1 - self._context * len(Windows(self._sentences.ids, self._context))
            offset = int(torch.randint(spare + 1, (1,), generator=source))  # so that the last tokens have turns too
            windows = Windows(self._sentences.ids, self._context, offset)
            return Epoch(windows, torch.randperm(len(windows), generator=source).numpy(), self._size)
        order = torch.randperm(len(self._sentences), generator=source).numpy()
        if self._batches == "shuffled":
            return Epoch(self._sentences, order, self._size)
        lengths, pool = self._sentences.lengths, _POOL * self._size
        for first in range(0, len(order), pool):
            part = order[first : first + pool]
            order[first : first + pool] = part[np.argsort(lengths[part], kind="stable")]
        return Epoch(self._sentences, order, self._size, torch.randperm(self.per_epoch, generator=source).numpy())


class Epoch:
    """One pass over the examples: batch i holds the next `size` of `order`; `turns` says which batch comes when."""

    def __init__(self, examples: Examples, order: Indices, size: int, turns: Indices | None = None) -> None:
        self._examples, self._order, self._size, self._turns = examples, order, size, turns

    def batch(self, i: int) -> Batch:
        first = int(self._turns[i] if self._turns is not None else i) * self._size
        return self._examples.batch(self._order[first : first + self._size])
