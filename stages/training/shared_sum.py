"""The sum of a vector over processes of one machine, through memory that they share.

Through gloo each number would travel twice over a socket, which takes longer than writing it down once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from stages.training.process_group import ProcessGroup


class SharedSum:
    """Each rank has a place to write its vector to, and adds up those of all, in the order of the ranks.

    There are two sets of places, used in turn: who is one sum ahead writes to what nobody reads any more.

    Args:
        file: that is mapped; as large as `bytes_of` says.
        like: a vector of the length and type of those that are added up.
    """

    def __init__(self, file: Path, like: Tensor, rank: int, size: int) -> None:
        count = 2 * size * len(like)
        self._places = torch.from_file(str(file), shared=True, size=count, dtype=like.dtype).view(2, size, len(like))
        self._rank, self._turn = rank, 0

    @staticmethod
    def bytes_of(like: Tensor, size: int) -> int:
        """That the file of so many ranks has."""
        return 2 * size * len(like) * like.element_size()

    @classmethod
    def of(cls, group: ProcessGroup, like: Tensor) -> Self | None:
        """One for a group, to be asked of all ranks; None where they are not on one machine or have no room."""
        if group.folder is None:
            return None
        file, failed = group.folder / "sum", 0.0
        if group.writes:
            try:
                _take_room(file, cls.bytes_of(like, group.size))
            except OSError:
                failed = 1.0
        if group.sum(failed):
            return None
        made = cls(file, like, group.rank, group.size)
        if group.sum(1.0) and group.writes:  # all have it: it goes with the last of them, however that ends
            file.unlink()
        return made

    def put(self, vector: Tensor) -> None:
        """Write down this rank's vector."""
        self._places[self._turn, self._rank].copy_(vector)

    def take(self, vector: Tensor) -> None:
        """Put the sum of all into a vector, once it is known that all have been written down."""
        first, second, *others = self._places[self._turn]
        torch.add(first, second, out=vector)
        for other in others:
            vector.add_(other)
        self._turn = 1 - self._turn


def _take_room(file: Path, size: int) -> None:
    """Make a file of that size, now: to find no room when it is written to would end the process."""
    with open(file, "wb") as made:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(made.fileno(), 0, size)
        else:
            made.write(bytes(size))
