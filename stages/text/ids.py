"""The ids of the prepared text in a file: neither is ever in memory as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from stages.text.reading import Parts
from stages.text.vocabulary import UNK, Vocabulary


class Counted(NamedTuple):
    """What was saved: tokens with [bos] and [eos], and how many of them are [unk]."""

    tokens: int
    unknown: int


def save_ids(path: Path, vocabulary: Vocabulary, parts: Parts) -> Counted:
    """Write the ids of a split as `numpy.save` would write `vocabulary.flat_ids`, chunk by chunk."""
    tokens = unknown = 0
    with open(path, "wb") as file:
        start = _write_header(file, vocabulary, 0)
        for ids in vocabulary.id_chunks(parts.with_ends()):
            ids.tofile(file)
            tokens += len(ids)
            unknown += int(np.count_nonzero(ids == UNK))
        file.seek(0)
        if _write_header(file, vocabulary, tokens) != start:
            raise AssertionError("numpy leaves room for the length in its header")
    return Counted(tokens, unknown)


def _write_header(file: BinaryIO, vocabulary: Vocabulary, tokens: int) -> int:
    """numpy's header of so many ids; returns where they begin."""
    described = {"descr": np.dtype(vocabulary.dtype).str, "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(file, described)
    return file.tell()
