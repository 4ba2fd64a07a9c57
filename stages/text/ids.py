"""The prepared text in parts, and its ids in a file: neither is ever in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from stages.errors import ArtifactError
from stages.text.reading import LINE_END
from stages.text.vocabulary import UNK, Vocabulary

_CHARACTERS = 2**20  # read at once


class Parts:
    """The units of a prepared split, each in one part or, where it is long, in several; can be gone through again.

    A part ends where any tokeniser may cut: at a line end, or before a space.

    Args:
        path: one unit a line, line ends within it as U+2028.
        progress: is told of every bit that was read, in bytes.
    """

    def __init__(self, path: Path, progress: Callable[[int], object] = lambda _: None) -> None:
        self._path, self._progress = path, progress

    def __iter__(self) -> Iterator[str]:
        return (part for part, _ in self.with_ends())

    def with_ends(self) -> Iterator[tuple[str, bool]]:
        """Each part, and whether its unit ends with it."""
        rest, read = "", 0
        try:
            with open(self._path, "rb") as raw, TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
                while text := file.read(_CHARACTERS):
                    *whole, rest = (rest + text).split("\n")
                    for unit in whole:
                        yield unit.replace(LINE_END, "\n"), True
                    if len(rest) >= _CHARACTERS:
                        rest = rest.replace(LINE_END, "\n")
                        cut = max(rest.rfind("\n") + 1, rest.rfind(" "))
                        if cut > 0:
                            yield rest[:cut], False
                            rest = rest[cut:]
                    self._progress(raw.tell() - read)
                    read = raw.tell()
        except FileNotFoundError:
            raise ArtifactError(self._path, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
        except UnicodeDecodeError as error:
            problem = f"not what stage prepare writes ({error}); `dvc repro -f` makes it anew"
            raise ArtifactError(self._path, problem) from None
        if rest:
            yield rest.replace(LINE_END, "\n"), True


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
