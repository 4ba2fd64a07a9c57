"""From the one file of all units to a file for each split, reading it once more from the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from stages import paths
from stages.errors import LabError
from stages.text.reading import LINE_END
from stages.text.splitting import TRAIN, count_known, held_out, rank, to_ranks
from stages.text.units import Trim

_PIECE = 2**20  # characters of a line that are read at once


def route_units(everything: Path, folder: Path, splits: npt.NDArray[np.uint8]) -> dict[str, int]:
    """Write `train.txt`, `valid.txt` and `test.txt`, each in the order of the text.

    Args:
        everything: file of all units, one a line; it is gone afterwards.
        splits: (units,), as `splitting.assign` gives them.

    Returns:
        The number of units of each split.
    """
    if not splits.any():
        everything.replace(folder / "train.txt")  # all of it
        for name in paths.SPLITS[1:]:
            (folder / f"{name}.txt").touch()
    else:
        with _split_files(folder) as outs, open(everything, "rb") as units:
            writers = [out.write for out in outs]
            for unit, split in zip(units, splits.tobytes(), strict=True):
                writers[split](unit)
        everything.unlink()
    return dict(zip(paths.SPLITS, np.bincount(splits, minlength=len(paths.SPLITS)).tolist(), strict=True))


def route_stream(everything: Path, folder: Path, valid_fraction: float, test_fraction: float) -> dict[str, Any]:
    """Write the beginning of a running text as `train.txt`, what follows as `valid.txt`, the end as `test.txt`.

    Args:
        everything: the text with its line ends, none of them at its ends but a last one; it is gone afterwards.

    Returns:
        What the account says of the splits.

    Raises:
        LabError: fewer lines than splits, or a split of nothing but blank lines.
    """
    with open(everything, "rb") as file:
        n = sum(block.count(b"\n") for block in iter(lambda: file.read(_PIECE), b""))
    n_valid, n_test = held_out(n, valid_fraction, test_fraction, "line(s)")
    lengths = [n - n_valid - n_test, n_valid, n_test]
    ranks = [bytearray() for _ in lengths]
    trims = [Trim() for _ in lengths]
    with _split_files(folder) as outs, open(everything, encoding="utf-8", newline="\n") as text:
        split, left = TRAIN, lengths[TRAIN]
        while piece := text.readline(_PIECE):
            while not left:
                split += 1
                left = lengths[split]
            outs[split].write(trims[split].push(piece).replace("\n", LINE_END).encode())
            if n_valid + n_test and (line := piece.strip()):
                ranks[split] += rank(line.encode())
            left -= piece.endswith("\n")
        for name, length, trim, out in zip(paths.SPLITS, lengths, trims, outs, strict=True):
            if length and not trim.begun:
                raise LabError(f"corpus: the {length} line(s) held out as {name} are blank; set a larger fraction")
            out.write(b"\n" if trim.begun else b"")
    everything.unlink()
    train, *others = map(to_ranks, ranks)
    return {
        "sentences_by_split": {name: int(trim.begun) for name, trim in zip(paths.SPLITS, trims, strict=True)},
        "lines_by_split": dict(zip(paths.SPLITS, lengths, strict=True)),
        "held_out": "the last lines of the text, in its order; split_seed has no part",
        "held_out_lines_that_train_has_too": count_known(np.concatenate(others), train) if len(train) else 0,
    }


@contextmanager
def _split_files(folder: Path) -> Iterator[list[BinaryIO]]:
    with ExitStack() as stack:
        yield [stack.enter_context(open(folder / f"{name}.txt", "wb")) for name in paths.SPLITS]
